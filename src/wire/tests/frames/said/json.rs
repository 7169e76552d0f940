//! What objects say in JSON.

use super::*;

/// The fault of a list and of a watch of this one object.
fn refused(wanted: Wanted, object: &str) -> [Option<Fault>; 2] {
    let list = format!(r#"{{"items":[{object}]}}"#);
    let watch = format!(r#"{{"type":"ADDED","object":{object}}}"#);
    [
        in_list(Encoding::Json, wanted, &[list.as_bytes()]).err().map(|error| error.fault),
        in_watch(Encoding::Json, wanted, &[watch.as_bytes()]).err().map(|error| error.fault),
    ]
}

#[test]
fn t44_what_says_its_labels_or_owners_in_two_ways_is_refused_where_they_matter() {
    let none = Wanted::default();
    let labels = Wanted { labels: true, ..none };
    let owners = Wanted { owners: true, ..none };
    let version = Wanted { version: true, ..none };
    let (long, longer) = ("v".repeat(63), "v".repeat(64));
    let (key, longer_key) = ("k".repeat(317), "k".repeat(318));
    for (wanted, meta, is_refused) in [
        (labels, r#""labels":{"a":"1","a":"2"}"#, true),
        (labels, r#""labels":{"a":"1","b":"1","\u0061":"1"}"#, true),
        (labels, r#""labels":{"a":"1"},"labels":{}"#, true),
        (labels, r#""labels":{"a":null}"#, true),
        (labels, r#""labels":{"a":7}"#, true),
        (labels, r#""labels":{"a":{}}"#, true),
        (labels, r#""labels":["a"]"#, true),
        (labels, r#""labels":"a""#, true),
        (labels, r#""labels":null"#, false),
        (labels, r#""labels":{}"#, false),
        (labels, &format!(r#""labels":{{"a":"{long}"}}"#), false),
        (labels, &format!(r#""labels":{{"a":"{longer}"}}"#), true),
        (labels, &format!(r#""labels":{{"{key}":""}}"#), false),
        (labels, &format!(r#""labels":{{"{longer_key}":""}}"#), true),
        (owners, r#""ownerReferences":[{"uid":"1"}],"ownerReferences":[]"#, true),
        (owners, r#""ownerReferences":[{"uid":"1","uid":"1"}]"#, true),
        (owners, r#""ownerReferences":[{"uid":1}]"#, true),
        (owners, r#""ownerReferences":[{"controller":true,"controller":false}]"#, true),
        (owners, r#""ownerReferences":[{"controller":"true"}]"#, true),
        (owners, r#""ownerReferences":[{"controller":null,"uid":null}]"#, false),
        (owners, r#""ownerReferences":[null]"#, true),
        (owners, r#""ownerReferences":["a"]"#, true),
        (owners, r#""ownerReferences":{}"#, true),
        (owners, r#""ownerReferences":null"#, false),
        (version, r#""resourceVersion":"1","resourceVersion":"1""#, true),
        (version, r#""resourceVersion":1"#, true),
        (version, r#""resourceVersion":null"#, false),
    ] {
        let object = format!(r#"{{"metadata":{{"name":"x",{meta}}}}}"#);
        let fault = is_refused.then_some(Fault::Item);
        assert_eq!(refused(wanted, &object), [fault; 2], "{meta}");
        assert_eq!(refused(none, &object), [None; 2], "{meta}");
    }
    let broken = b"{\"items\":[{\"metadata\":{\"labels\":{\"a\":\"\xff\"}}}]}".as_slice();
    let fault = |wanted| in_list(Encoding::Json, wanted, &[broken]).err().map(|error| error.fault);
    assert_eq!([fault(labels), fault(none)], [Some(Fault::Item), None]);
}

#[test]
fn t44_a_write_that_readers_decode_differently_is_refused() {
    let mut json = Reader::new(Encoding::Json, EVERYTHING);
    let plain = r#"{"metadata":{"name":"x","labels":null,"uid":null,"ownerReferences":null}}"#;
    for body in [plain, &format!(" \n{plain}\r\n\t ")] {
        assert_eq!(json.read(body.as_bytes()).map(|object| object.name), Ok("x"));
    }
    for meta in [
        r#""labels":{"a":"1"},"labels":null"#,
        r#""labels":null,"labels":{"a":"1"}"#,
        r#""namespace":"a","namespace":null"#,
        r#""namespace":null,"namespace":"a""#,
        r#""resourceVersion":null,"resourceVersion":"1""#,
        r#""ownerReferences":null,"ownerReferences":[]"#,
        r#""ownerReferences":[{"controller":null,"controller":true}]"#,
        r#""ownerReferences":[{"uid":null,"uid":"1"}]"#,
    ] {
        let body = format!(r#"{{"metadata":{{"name":"x",{meta}}}}}"#);
        assert_eq!(json.read(body.as_bytes()).err(), Some(Fault::Item), "{meta}");
    }
    for (body, fault) in [
        (r#"{"metadata":{"name":"x"},"metadata":null}"#, Fault::Item),
        (r#"{"metadata":null,"metadata":{"name":"x"}}"#, Fault::Item),
        (r#"{"metadata":{"name":"x"},"kind":"A","kind":null}"#, Fault::Item),
        (r#"{"metadata":{}} {}"#, Fault::Unexpected),
        (r#"{"metadata":{}}x"#, Fault::Unexpected),
        ("{}", Fault::Item),
        ("[]", Fault::NotAnObject),
        (r#"{"metadata":{}"#, Fault::Truncated),
        (" ", Fault::Truncated),
        ("", Fault::Truncated),
    ] {
        assert_eq!(json.read(body.as_bytes()).err(), Some(fault), "{body}");
    }
    assert_eq!(Reader::new(Encoding::Yaml, EVERYTHING).read(b"{}").err(), Some(Fault::NotAnObject));
}

#[test]
fn t44_what_cannot_be_read_in_one_way_is_shown_as_unknown() {
    let objects = [
        r#"{"metadata":{"name":"a"}}"#,
        r#"{"metadata":{"name":"b","labels":{"k":"1","k":"2"}}}"#,
        r#"{"metadata":{"name":"c"}}"#,
    ];
    let names = |shown: Vec<Option<Said>>| -> Vec<_> {
        shown.into_iter().map(|said| said.map(|said| said.texts[1].clone())).collect()
    };
    let list =
        format!(r#"{{"items":[{}],"metadata":{{"resourceVersion":"77"}}}}"#, objects.join(","));
    let watch = objects.map(|object| format!(r#"{{"type":"ADDED","object":{object}}}"#)).concat();
    for (wanted, second) in [(Wanted::default(), Some("b")), (EVERYTHING, None)] {
        let expected = [Some("a"), second, Some("c")].map(|name| name.map(str::to_owned));
        let shown = shown_in_list(Encoding::Json, wanted, &[list.as_bytes()]).expect("a list");
        assert_eq!(names(shown), expected);
        assert_eq!(names(shown_in_watch(Encoding::Json, wanted, &[watch.as_bytes()])), expected);
    }
    for end in 1..list.len() {
        assert!(shown_in_list(Encoding::Json, EVERYTHING, &[&list.as_bytes()[..end]]).is_err());
    }
}

#[test]
fn items_that_nobody_asked_for_are_not_read() {
    let body =
        br#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},"no item"]}"#;
    let mut scanner = ListScanner::new(Encoding::Json).expect("a list");
    let known = scanner.feed_each(body, &mut |_| panic!("an item"));
    assert_eq!(known.expect("a list").expect("known").resource_version, ResourceVersion::At(7));
    let body = br#"{"items":[{"metadata":{"name":"a"}}],"metadata":{"resourceVersion":"7"}}"#;
    let mut scanner = ListScanner::new(Encoding::Json).expect("a list");
    assert!(scanner.feed_each(body, &mut |_| panic!("an item")).is_ok());
}
