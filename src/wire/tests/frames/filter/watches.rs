//! Watches.

use serde_json::json;

use super::super::write;
use super::*;

struct Stream {
    body: Vec<u8>,
    kept: Vec<bool>,
}

fn watch(encoding: Encoding, chunks: &[&[u8]]) -> Result<Stream, FrameError> {
    let mut filter = WatchFilter::new(encoding).expect("a stream");
    let (mut body, mut kept) = (Vec::new(), Vec::new());
    for chunk in chunks {
        let mut rest = *chunk;
        while let Some(passed) = filter.next(rest, &mut |object| rule(object), &mut body)? {
            kept.push(passed.is_kept);
            rest = &rest[passed.at..];
        }
    }
    Ok(Stream { body, kept })
}

fn event(kind: &str, namespace: &str, version: &str) -> Value {
    let mut object = pod(namespace, "p");
    object["kind"] = "Pod".into();
    object["apiVersion"] = "v1".into();
    object["metadata"]["resourceVersion"] = version.into();
    json!({"type": kind, "object": object})
}

fn lines(body: &[u8]) -> Vec<Value> {
    body.split_inclusive(|byte| *byte == b'\n').map(json_of).collect()
}

#[test]
fn t15_what_was_never_in_the_shard_is_silent() {
    let all = [
        event("ADDED", "k", "1"),
        event("ADDED", "d", "2"),
        event("MODIFIED", "d", "3"),
        event("DELETED", "d", "4"),
        event("DELETED", "k", "5"),
    ];
    let expected = [all[0].clone(), all[4].clone()];
    let text: String = all.iter().map(|event| format!("{event}\n")).collect();
    for size in [1, 10, 4096] {
        let chunks: Vec<_> = text.as_bytes().chunks(size).collect();
        let stream = watch(Encoding::Json, &chunks).expect("a stream");
        assert_eq!(lines(&stream.body), expected);
        assert_eq!(stream.kept, [true, false, false, false, true]);
    }
    for style in 0..8 {
        let parts: Vec<_> = all.iter().map(|event| cbor(event, style)).collect();
        let stream = watch(Encoding::Cbor, &[&parts.concat()]).expect("a stream");
        assert_eq!(stream.body, [parts[0].clone(), parts[4].clone()].concat());
    }
    let proto = |kind: &str, namespace: &str| {
        let meta = [write::field(3, namespace.as_bytes()), write::field(5, b"u")].concat();
        write::proto_event(kind, &meta)
    };
    let parts = [proto("ADDED", "k"), proto("ADDED", "d"), proto("DELETED", "k")];
    let stream = watch(Encoding::Protobuf, &[&parts.concat()]).expect("a stream");
    assert_eq!(stream.body, [parts[0].clone(), parts[2].clone()].concat());
}

#[test]
fn t02_t03_t11_what_is_about_no_object_passes() {
    let end = json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1",
        "metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}}});
    let error = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410}});
    let all = [end, error];
    let text: String = all.iter().map(|event| format!("{event}\n")).collect();
    let stream = watch(Encoding::Json, &[text.as_bytes()]).expect("a stream");
    assert_eq!(lines(&stream.body), all);
}

#[test]
fn t44_an_event_that_cannot_be_judged_ends_the_stream() {
    for object in [r"{}", r#"{"metadata":{"namespace":"k","namespace":"d"}}"#, "null", "7"] {
        let text = format!(r#"{{"type":"ADDED","object":{object}}}"#);
        let error = watch(Encoding::Json, &[text.as_bytes()]).err().expect(object);
        assert_eq!(error.fault, Fault::Item, "{object}");
    }
    let before = event("ADDED", "k", "1");
    let text = format!("{before}\n{}\n", r#"{"type":"ADDED"}"#);
    assert!(watch(Encoding::Json, &[text.as_bytes()]).is_err(), "nothing of the event before");
}

#[test]
fn t44_an_event_of_a_type_that_nobody_knows_ends_the_stream() {
    let table = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[]}"#;
    for (kind, object) in [
        (r#""type":"SHINY","#, r#"{"metadata":{"namespace":"k"}}"#),
        (r#""type":"added","#, r#"{"metadata":{"namespace":"d"}}"#),
        (r#""type":"SHINY","#, table),
        (r#""type":null,"#, "null"),
        ("", r#"{"metadata":{"namespace":"k"}}"#),
    ] {
        let text = format!(r#"{{{kind}"object":{object}}}"#);
        let error = watch(Encoding::Json, &[text.as_bytes()]).err().expect(&text);
        assert_eq!(error.fault, Fault::Event, "{text}");
    }
    let event = event("SHINY", "k", "1");
    assert!(watch(Encoding::Cbor, &[&cbor(&event, 4)]).is_err());
    assert!(watch(Encoding::Protobuf, &[&write::proto_event("SHINY", b"")]).is_err());
}

#[test]
fn t05_a_position_that_nobody_saw_becomes_a_bookmark() {
    for encoding in [Encoding::Json, Encoding::Cbor, Encoding::Protobuf] {
        let write = |kind: &str, namespace: &str, version: &str| match encoding {
            Encoding::Json => format!("{}\n", event(kind, namespace, version)).into_bytes(),
            Encoding::Cbor => cbor(&event(kind, namespace, version), 4),
            _ => {
                let meta =
                    [write::field(3, namespace.as_bytes()), write::field(6, version.as_bytes())];
                write::proto_event(kind, &meta.concat())
            }
        };
        let mut filter = WatchFilter::new(encoding).expect("a stream");
        let feed = |filter: &mut WatchFilter, body: &[u8]| {
            let mut out = Vec::new();
            let passed = filter.next(body, &mut |object| rule(object), &mut out);
            assert!(passed.expect("a stream").is_some());
        };
        feed(&mut filter, &write("ADDED", "k", "7"));
        assert!(!filter.has_bookmark());
        feed(&mut filter, &write("MODIFIED", "d", "8"));
        feed(&mut filter, &write("MODIFIED", "d", "9"));
        assert!(filter.has_bookmark());
        let bookmark = filter.take_bookmark().expect("a position");
        assert_eq!(filter.take_bookmark(), None);
        let mut reader = crate::frames::WatchScanner::new(encoding).expect("a stream");
        let events: Vec<_> =
            reader.feed(&bookmark).map(|end| end.expect("an event").event).collect();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].kind, EventKind::Bookmark);
        assert_eq!(events[0].resource_version, ResourceVersion::At(9));
        assert!(!events[0].initial_events_end);
        feed(&mut filter, &write("MODIFIED", "d", "10"));
        feed(&mut filter, &write("MODIFIED", "k", "11"));
        assert!(!filter.has_bookmark(), "the client was told a later one");
    }
}

#[test]
fn bookmarks_have_the_kind_of_their_stream() {
    let bookmark = |encoding| {
        let bookmark = Bookmark::new("apps/v1", "Deployment", ResourceVersion::At(12));
        bookmark.expect("known").event(encoding)
    };
    assert_eq!(
        String::from_utf8_lossy(&bookmark(Encoding::Json)),
        concat!(
            r#"{"type":"BOOKMARK","object":{"kind":"Deployment","apiVersion":"apps/v1","#,
            r#""metadata":{"resourceVersion":"12"}}}"#,
            "\n"
        )
    );
    assert_eq!(cbor_of(&bookmark(Encoding::Cbor)), json_of(&bookmark(Encoding::Json)));
    let proto = bookmark(Encoding::Protobuf);
    let event = fields(&proto[4..]);
    assert_eq!(event[0], (1, b"BOOKMARK".to_vec()));
    let envelope = field_of(&event[1].1, 1);
    let kind = field_of(&envelope[4..], 1);
    assert_eq!(fields(&kind), [(1, b"apps/v1".to_vec()), (2, b"Deployment".to_vec())]);
    let object = field_of(&envelope[4..], 2);
    assert_eq!(field_of(&field_of(&object, 1), 6), b"12");
    assert_eq!(Bookmark::new("", "", ResourceVersion::At(1)), None);
    assert_eq!(Bookmark::new("v1", "Pod", ResourceVersion::Opaque), None);
}

#[test]
fn t40_the_first_table_that_is_kept_describes_the_columns() {
    let table = |columns: Value, rows: &[(&str, &str)]| {
        let rows: Vec<_> = rows
            .iter()
            .map(|(ns, name)| json!({"cells": [name], "object": pod(ns, name)}))
            .collect();
        json!({"type": "ADDED", "object": {"kind": "Table", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "5"}, "columnDefinitions": columns, "rows": rows}})
    };
    let columns = json!([{"name": "Name", "type": "string"}]);
    let all = [
        table(columns.clone(), &[("d", "a")]),
        table(Value::Null, &[("d", "b")]),
        table(Value::Null, &[("k", "c")]),
        table(Value::Null, &[("k", "d"), ("d", "e")]),
    ];
    let text: String = all.iter().map(|event| format!("{event}\n")).collect();
    let stream = watch(Encoding::Json, &[text.as_bytes()]).expect("a stream");
    let expected = [table(columns, &[("k", "c")]), table(Value::Null, &[("k", "d")])];
    assert_eq!(lines(&stream.body), expected);
    let refused = watch(Encoding::Cbor, &[&cbor(&all[2], 4)]).err().expect("refused");
    assert_eq!(refused.fault, Fault::Item);
}

#[test]
fn a_kind_that_somebody_else_calls_table_is_an_object() {
    let table = |namespace: &str| {
        let mut event = event("ADDED", namespace, "1");
        event["object"]["kind"] = "Table".into();
        event["object"]["apiVersion"] = "db.example.com/v1".into();
        event
    };
    let text = format!("{}\n{}\n", table("k"), table("d"));
    let stream = watch(Encoding::Json, &[text.as_bytes()]).expect("a stream");
    assert_eq!(lines(&stream.body), [table("k")]);
}

#[test]
fn an_event_larger_than_anything_stored_is_refused_whole_and_in_chunks() {
    let length = |more: usize| {
        let fill = (64 << 20) - 1000 + more;
        let spec = write::field(2, &vec![0; fill]);
        let object = [write::field(1, &write::field(3, b"k")), spec].concat();
        let extension = write::field(1, &write::envelope(&object));
        write::frame(&[write::field(1, b"ADDED"), write::field(2, &extension)].concat())
    };
    let (fits, is_too_large) = (length(0), length(1000));
    for size in [1 << 20, usize::MAX] {
        let fault = |body: &[u8]| {
            let chunks: Vec<_> = body.chunks(size).collect();
            watch(Encoding::Protobuf, &chunks).err().map(|error| error.fault)
        };
        assert_eq!(fault(&fits), None, "{size}");
        assert_eq!(fault(&is_too_large), Some(Fault::TooLarge), "{size}");
    }
}

#[test]
fn a_filter_of_bookmarks_leaves_out_nothing_else() {
    let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"9"}}}"#;
    let others = [
        r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7"}}}"#,
        r#"{"type":"RENAMED","object":{"metadata":{}}}"#,
        r#"{"type":"ADDED","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"rows":[{"cells":[]}]}}"#,
        r#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#,
    ];
    let [added, renamed, table, error] = others;
    let body = format!("{bookmark}\n{added}\n{bookmark}\n{renamed}\n{table}{bookmark}\n{error}");
    let expected = others.map(|event| format!("{event}\n")).concat();
    for size in [1, 7, body.len()] {
        let mut filter = WatchFilter::of_bookmarks(Encoding::Json).unwrap();
        let mut out = Vec::new();
        for mut chunk in body.as_bytes().chunks(size) {
            let mut asked = |_: &Object<'_>| panic!("no one judges");
            while let Some(event) = filter.next(chunk, &mut asked, &mut out).unwrap() {
                chunk = &chunk[event.at..];
            }
        }
        assert_eq!(String::from_utf8(out).unwrap(), expected, "in chunks of {size}");
        assert!(!filter.has_bookmark());
    }
}
