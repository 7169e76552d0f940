//! Cases that only JSON has.

use super::*;

#[test]
fn t43_odd_json() {
    let one = event(EventKind::Added, 1);
    for body in [
        r#"{"type":"ADDED","object":{"met\u0061data":{"resource\u0056ersion":"\u0031"}}}"#,
        r#"{"t\u0079pe":"ADD\u0045D","object":{"metadata":{"resourceVersion":"1"}}}"#,
        // The last of two wins; metadata is merged, as Go decodes into a struct.
        r#"{"type":"ERROR","type":"ADDED","object":{"metadata":{"resourceVersion":"2","resourceVersion":"1"}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"metadata":{"name":"x"}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"metadata":null}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"9"}},"object":{"metadata":{"resourceVersion":"1"}}}"#,
        r#"{"object":{"metadata":{"resourceVersion":"1"}},"object":null,"type":"ADDED"}"#,
        // Only the top-level metadata of the object counts, and only these exact names.
        r#"{"object":{"spec":{"metadata":{"resourceVersion":"2"}},"metadata":{"resourceVersion":"1"}},"type":"ADDED"}"#,
        r#"{"metadata":{"resourceVersion":"2"},"type":"ADDED","object":{"Metadata":{"resourceVersion":"3"},"metadata":{"ResourceVersion":"4","resourceVersion":"1"}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1","labels":{"resourceVersion":"2"}}},"x":1e400,"y":-0.5E+7,"z":[[],{},""]}"#,
        " \t\r\n{ \"type\" : \"ADDED\" , \"object\" : { \"metadata\" : { \"resourceVersion\" : \"1\" } } }\n",
        r#"{"type":"ADDED","object":{"metadata":{"a\ud83d\ude00":{},"\"":1,"\\":[],"\/\b\f\n\r\t":2,"resourceVersion":"1"}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"a":{"\\\\\"}":"\\\"]{"}}}"#,
    ] {
        assert_eq!(json_event(body), one, "{body}");
    }
    for (body, expected) in [
        // A replaced object loses its position.
        (
            r#"{"object":{"metadata":{"resourceVersion":"9"}},"object":{}}"#,
            unset(EventKind::Unknown),
        ),
        (
            r#"{"object":{"metadata":{"resourceVersion":"9"}},"object":7}"#,
            unset(EventKind::Unknown),
        ),
        ("{}", unset(EventKind::Unknown)),
        (r#"{"type":7,"object":[]}"#, unset(EventKind::Unknown)),
        (
            r#"{"type":"ADDED","object":{"metadata":[{"resourceVersion":"9"}]}}"#,
            unset(EventKind::Added),
        ),
        (
            r#"{"type":"ADDED","object":{"metadata":{"resource\ud800Version":"9"}}}"#,
            unset(EventKind::Added),
        ),
        (
            r#"{"type":"ADDED","object":{"metadata":{"resourceVersio":"9","resourceVersionn":"8"}}}"#,
            unset(EventKind::Added),
        ),
    ] {
        assert_eq!(json_event(body), expected, "{body}");
    }
}

#[test]
fn malformed_json_is_named() {
    for (body, expected) in [
        ("[", Fault::NotAnObject),
        ("1", Fault::NotAnObject),
        ("\u{feff}{}", Fault::NotAnObject),
        ("{}x", Fault::NotAnObject),
        ("{,", Fault::Unexpected),
        ("{1", Fault::Unexpected),
        (r#"{"a","#, Fault::Unexpected),
        (r#"{"a":}"#, Fault::Unexpected),
        (r#"{"a":1,}"#, Fault::Unexpected),
        (r#"{"a":1]"#, Fault::Unexpected),
        (r#"{"a":"x" "b""#, Fault::Unexpected),
        (r#"{"object":{"rows":[{},]"#, Fault::Unexpected),
        (r#"{"object":{"rows":[}"#, Fault::Unexpected),
        (r#"{"a\x"#, Fault::Escape),
        (r#"{"a\u12g"#, Fault::Escape),
    ] {
        assert_eq!(fault(Encoding::Json, body.as_bytes()), Some(expected), "{body}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(20_000));
    assert_eq!(fault(Encoding::Json, deep.as_bytes()), Some(Fault::TooDeep));
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(9_000), "]".repeat(9_000));
    assert_eq!(events(Encoding::Json, deep.as_bytes()).len(), 1);
}

#[test]
fn a_newline_belongs_to_its_event() {
    let (found, _) = scan(Encoding::Json, &[b"{}\n{}{}\n\n", b"\n{}", b"\n{}\r\n"]);
    assert_eq!(found.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [3, 5, 8, 12, 15]);
}

#[test]
fn an_error_stays() {
    let mut scanner = WatchScanner::new(Encoding::Json).expect("a stream");
    let found: Vec<_> = scanner.feed(b"{}\nx{}").collect();
    let error = FrameError { fault: Fault::NotAnObject, at: 3 };
    assert!(found[0].is_ok());
    assert_eq!(found[1..], [Err(error)]);
    assert_eq!(scanner.feed(b"{}").collect::<Vec<_>>(), [Err(error)]);
    assert!(!scanner.is_between());
    assert_eq!(error.to_string(), "not an object (byte 3 of the body)");
}

#[test]
fn events_that_nobody_takes_are_still_scanned() {
    let mut scanner = WatchScanner::new(Encoding::Json).expect("a stream");
    assert!(scanner.feed(b"{}{}{\"type").next().is_some());
    assert!(!scanner.is_between());
    assert_eq!(scanner.feed(b"\":\"ADDED\"}").count(), 1);
}
