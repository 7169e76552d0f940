//! A filtered body is compared with the body that a server would have sent of the kept objects
//! alone, as independent decoders read both.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    random::{any_value, pretty, split},
    write,
};
use crate::wire::{
    Encoding, ResourceVersion,
    frames::{
        Bookmark, Counts, EventKind, Fault, FrameError, ListFilter, ListMeta, Object, Verdict,
        WatchFilter,
    },
};

/// The rule of these tests: what is in a namespace whose name begins with `k` is kept.
fn rule(object: &Object<'_>) -> Verdict {
    match object.namespace.chars().next() {
        Some('k') => Verdict::Keep,
        Some('?') => Verdict::Unknown,
        _ => Verdict::Drop,
    }
}

struct Filtered {
    body: Vec<u8>,
    meta: ListMeta,
    counts: Counts,
}

fn list(encoding: Encoding, chunks: &[&[u8]]) -> Result<Filtered, FrameError> {
    let mut filter = ListFilter::new(encoding).expect("a list");
    let mut body = Vec::new();
    for chunk in chunks {
        filter.feed(chunk, &mut |object| rule(object), &mut body)?;
    }
    let counts = filter.counts();
    let meta = filter.finish(&mut body)?;
    Ok(Filtered { body, meta, counts })
}

fn list_fault(encoding: Encoding, body: &[u8]) -> Option<Fault> {
    let whole = list(encoding, &[body]).err().map(|error| error.fault);
    let bytes: Vec<_> = body.chunks(1).collect();
    assert_eq!(list(encoding, &bytes).err().map(|error| error.fault), whole);
    whole
}

fn pod(namespace: &str, name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}"),
        "labels": {"namespace": "k", "metadata": "x"}},
        "spec": {"items": [{"metadata": {"namespace": "k"}}], "text": "}]\"\\{["}})
}

fn pods(items: &[Value]) -> Value {
    json!({"kind": "PodList", "apiVersion": "v1",
        "metadata": {"resourceVersion": "77", "continue": "token", "remainingItemCount": 12_345},
        "items": items})
}

/// The same list without what is dropped, and without its count.
fn thinned(list: &Value) -> Value {
    let mut list = list.clone();
    for name in ["items", "rows"] {
        if let Some(items) = list.get_mut(name).and_then(Value::as_array_mut) {
            items.retain(|item| {
                let object = if name == "rows" { &item["object"] } else { item };
                let namespace = &object["metadata"]["namespace"];
                namespace.as_str().is_some_and(|namespace| namespace.starts_with('k'))
            });
        }
    }
    if let Some(count) = list["metadata"].get_mut("remainingItemCount") {
        *count = Value::Null;
    }
    list
}

fn json_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

/// What `ciborium` reads, as JSON; byte strings are text.
fn cbor_of(bytes: &[u8]) -> Value {
    use ciborium::Value as Cbor;

    fn json(value: &Cbor) -> Value {
        match value {
            Cbor::Tag(_, inner) => json(inner),
            Cbor::Integer(number) => {
                Value::from(u64::try_from(i128::from(*number)).expect("natural"))
            }
            Cbor::Bytes(bytes) => Value::from(std::str::from_utf8(bytes).expect("UTF-8")),
            Cbor::Text(text) => Value::from(text.as_str()),
            Cbor::Bool(truth) => Value::from(*truth),
            Cbor::Float(number) => Value::from(*number),
            Cbor::Array(items) => items.iter().map(json).collect(),
            Cbor::Map(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(name, value)| {
                        (json(name).as_str().expect("a name").to_owned(), json(value))
                    })
                    .collect(),
            ),
            _ => Value::Null,
        }
    }
    json(&ciborium::from_reader(bytes).expect("CBOR"))
}

fn cbor(value: &Value, style: u8) -> Vec<u8> {
    let mut out = Vec::new();
    write::cbor(value, style, &mut out);
    out
}

/// A protobuf item: its metadata, and bytes that nobody looks into.
fn proto_item(namespace: &str, name: &str) -> Vec<u8> {
    let meta = [
        write::field(1, name.as_bytes()),
        write::field(3, namespace.as_bytes()),
        write::noise(),
        write::field(5, b"uid"),
    ];
    [write::field(1, &meta.concat()), write::noise(), write::field(2, &[7; 300])].concat()
}

fn proto_list(items: &[Vec<u8>]) -> Vec<u8> {
    let meta =
        [write::field(2, b"77"), write::field(3, b"token"), vec![4 << 3, 0xb9, 0x60]].concat();
    let items: Vec<u8> = items.iter().flat_map(|item| write::field(2, item)).collect();
    write::envelope(&[write::field(1, &meta), items, write::noise()].concat())
}

/// The fields of a protobuf message, as any decoder reads them: number and payload.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = message[0];
            *message = &message[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let length = match tag & 7 {
            0 => {
                found.push((tag >> 3, varint(&mut message).to_be_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)).expect("short"),
            _ => 4,
        };
        found.push((tag >> 3, message[..length].to_vec()));
        message = &message[length..];
    }
    found
}

fn field_of(message: &[u8], number: u64) -> Vec<u8> {
    let mut all = fields(message).into_iter().filter(|(field, _)| *field == number);
    all.next().expect("the field").1
}

#[test]
fn t36_kept_items_are_the_same_bytes() {
    let body = br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[
 {"metadata":{"namespace":"d"},"n":1.0} , {"metadata":{"namespace":"k"},"n":1.50,"u":"\u0041"}
,{"metadata":{"namespace":"d"}},{ "metadata" : {"namespace":"k"} } ,{"metadata":{"namespace":"d"}}
 ] , "more":true}
"#;
    let expected =
        br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[ {"metadata":{"namespace":"k"},"n":1.50,"u":"\u0041"},{ "metadata" : {"namespace":"k"} }
 ] , "more":true}
"#;
    for size in [1, 2, 7, 1000] {
        let chunks: Vec<_> = body.chunks(size).collect();
        let filtered = list(Encoding::Json, &chunks).expect("a list");
        assert_eq!(
            String::from_utf8_lossy(&filtered.body),
            String::from_utf8_lossy(expected),
            "{size}"
        );
        assert_eq!(filtered.counts, Counts { kept: 2, dropped: 3 });
    }
}

#[test]
fn t33_t25_a_list_of_which_nothing_is_kept_is_empty_and_goes_on() {
    let body = pods(&[pod("d", "a"), pod("d", "b")]);
    let filtered = list(Encoding::Json, &[body.to_string().as_bytes()]).expect("a list");
    assert_eq!(json_of(&filtered.body)["items"], json!([]));
    assert_eq!(json_of(&filtered.body)["metadata"]["continue"], "token");
    for style in 0..8 {
        let filtered = list(Encoding::Cbor, &[&cbor(&body, style)]).expect("a list");
        assert_eq!(cbor_of(&filtered.body), thinned(&body), "style {style}");
    }
}

#[test]
fn t26_the_count_of_what_remains_is_left_out_and_nothing_else() {
    let all_kept = pods(&[pod("k", "a"), pod("k", "b")]);
    let body = all_kept.to_string();
    for size in [1, 3, 4096] {
        let chunks: Vec<_> = body.as_bytes().chunks(size).collect();
        let filtered = list(Encoding::Json, &chunks).expect("a list");
        let expected = body.replace("\"remainingItemCount\":12345", "\"remainingItemCount\":null");
        assert_eq!(String::from_utf8_lossy(&filtered.body), expected);
        assert_eq!(filtered.meta.resource_version, ResourceVersion::At(77));
    }
    let null = body.replace("12345", "null");
    assert_eq!(list(Encoding::Json, &[null.as_bytes()]).expect("a list").body, null.as_bytes());
}

#[test]
fn the_metadata_may_stand_behind_the_items() {
    let items = json!([pod("d", "a"), pod("k", "b")]).to_string();
    let body = format!(
        r#"{{"apiVersion":"v1","items":{items},"kind":"List","metadata":{{"remainingItemCount":5,"resourceVersion":"9"}}}}"#
    );
    for size in [1, 5, 4096] {
        let chunks: Vec<_> = body.as_bytes().chunks(size).collect();
        let filtered = list(Encoding::Json, &chunks).expect("a list");
        assert_eq!(json_of(&filtered.body), thinned(&json_of(body.as_bytes())));
        assert_eq!(filtered.meta.resource_version, ResourceVersion::At(9));
    }
}

#[test]
fn t34_protobuf_keeps_every_length_and_every_other_byte() {
    let items =
        [("k", "a"), ("d", "b"), ("d", "c"), ("k", "d")].map(|(ns, name)| proto_item(ns, name));
    let body = proto_list(&items);
    for size in [1, 2, 50, 4096] {
        let chunks: Vec<_> = body.chunks(size).collect();
        let filtered = list(Encoding::Protobuf, &chunks).expect("a list");
        assert_eq!(filtered.body.len(), body.len());
        assert_eq!(filtered.counts, Counts { kept: 2, dropped: 2 });
        assert_eq!(filtered.meta.resource_version, ResourceVersion::At(77));
        let (before, after) = (&body[4..], &filtered.body[4..]);
        assert_eq!(field_of(after, 1), field_of(before, 1), "the kind");
        let raw = fields(&field_of(after, 2));
        let kept: Vec<_> = raw.iter().filter(|(number, _)| *number == 2).collect();
        assert_eq!(kept, [&(2, items[0].clone()), &(2, items[3].clone())]);
        let unknown: Vec<_> = raw.iter().filter(|(number, _)| *number == 15).collect();
        assert_eq!(unknown[0].1, vec![0; items[1].len()], "nothing of it is left");
        let meta = fields(&field_of(&field_of(after, 2), 1));
        assert_eq!(meta.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2, 3, 15]);
    }
}

#[test]
fn t41_an_empty_protobuf_item_is_no_object() {
    let body = proto_list(&[Vec::new()]);
    assert_eq!(list_fault(Encoding::Protobuf, &body), Some(Fault::Item));
    let empty = proto_list(&[]);
    let filtered = list(Encoding::Protobuf, &[&empty]).expect("a list");
    assert_eq!(filtered.counts, Counts::default());
}

#[test]
fn t40_rows_are_judged_by_the_object_that_they_stand_for() {
    let row = |ns: &str, name: &str| json!({"cells": [name, "metadata"], "object": pod(ns, name)});
    let table = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "5"}, "columnDefinitions": [{"name": "Name"}],
        "rows": [row("k", "a"), row("d", "b"), row("k", "c")]});
    let filtered = list(Encoding::Json, &[table.to_string().as_bytes()]).expect("a list");
    assert_eq!(json_of(&filtered.body), thinned(&table));
    for style in 0..8 {
        let filtered = list(Encoding::Cbor, &[&cbor(&table, style)]).expect("a list");
        assert_eq!(cbor_of(&filtered.body), thinned(&table));
    }
    let mut without = table;
    without["rows"] = json!([{"cells": ["a"], "object": null}]);
    assert_eq!(list_fault(Encoding::Json, without.to_string().as_bytes()), Some(Fault::Item));
}

#[test]
fn t44_what_cannot_be_judged_in_one_way_is_refused() {
    let item = |item: &str| format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{item}]}}"#);
    let cases = [
        (r#"{"metadata":{"namespace":"k"},"metadata":{"namespace":"d"}}"#, Fault::Item),
        (r#"{"metadata":{"namespace":"k","namespace":"d"}}"#, Fault::Item),
        (r#"{"metadata":{"namespace":"k","n\u0061mespace":"d"}}"#, Fault::Item),
        (r#"{"metadata":{"namespace":7}}"#, Fault::Item),
        (r#"{"metadata":{"namespace":"?"}}"#, Fault::Item),
        (r#"{"metadata":null}"#, Fault::Item),
        (r#"{"metadata":"k"}"#, Fault::Item),
        (r#"{"Metadata":{"namespace":"k"}}"#, Fault::Item),
        (r"{}", Fault::Item),
        ("null", Fault::NotAnObject),
        ("7", Fault::NotAnObject),
        (r#""k""#, Fault::NotAnObject),
        ("[]", Fault::NotAnObject),
    ];
    for (text, fault) in cases {
        assert_eq!(list_fault(Encoding::Json, item(text).as_bytes()), Some(fault), "{text}");
    }
    let broken_utf8 = [b"{\"items\":[{\"metadata\":{\"namespace\":\"k\xff\"}}]}".as_slice()];
    assert_eq!(list_fault(Encoding::Json, broken_utf8[0]), Some(Fault::Item));
    let long = item(&format!(r#"{{"metadata":{{"namespace":"k{}"}}}}"#, "a".repeat(600)));
    assert_eq!(list_fault(Encoding::Json, long.as_bytes()), Some(Fault::Item));
    let twice = [write::field(1, &write::field(3, b"k")), write::field(1, &write::field(3, b"d"))];
    let body = proto_list(&[twice.concat()]);
    assert_eq!(list_fault(Encoding::Protobuf, &body), Some(Fault::Item));
}

#[test]
fn t43_only_the_items_own_metadata_decides() {
    let body = json!({"metadata": {"namespace": "k"}, "items": [{
        "spec": {"metadata": {"namespace": "k"}, "items": [{"metadata": {"namespace": "k"}}]},
        "metadata": {"labels": {"namespace": "k"}, "ownerReferences": [{"namespace": "k"}],
            "namespace": "d", "name": "\"}]{\\"},
    }]});
    let filtered = list(Encoding::Json, &[body.to_string().as_bytes()]).expect("a list");
    assert_eq!(filtered.counts, Counts { kept: 0, dropped: 1 });
    let escaped = br#"{"i\u0074ems":[{"met\u0061data":{"n\u0061mespace":"\u006b"}},{"metadata":{"namespace":"d"}}]}"#;
    let filtered = list(Encoding::Json, &[escaped]).expect("a list");
    assert_eq!(filtered.counts, Counts { kept: 1, dropped: 1 });
}

#[test]
fn what_is_no_list_never_leaves() {
    let secret = r#"{"kind":"Other","entries":[{"metadata":{"namespace":"d"}}]}"#;
    assert_eq!(list_fault(Encoding::Json, secret.as_bytes()), Some(Fault::NotAList));
    let cbor = cbor(&json!({"entries": [1]}), 4);
    assert_eq!(list_fault(Encoding::Cbor, &cbor), Some(Fault::NotAList));
    let odd = r#"{"items":{"a":{"metadata":{"namespace":"d"}}}}"#;
    assert_eq!(list_fault(Encoding::Json, odd.as_bytes()), Some(Fault::NotItems));
    assert_eq!(list_fault(Encoding::Json, b"{\"items\":[{\"meta"), Some(Fault::Truncated));
    let mut filter = ListFilter::new(Encoding::Json).expect("a list");
    let mut out = Vec::new();
    let fed = filter.feed(&secret.as_bytes()[..40], &mut |object| rule(object), &mut out);
    assert_eq!((fed, out.as_slice()), (Ok(()), b"".as_slice()));
    let null = br#"{"kind":"PodList","items":null,"metadata":{}}"#;
    assert_eq!(list(Encoding::Json, &[null]).expect("a list").body, null);
}

#[test]
fn memory_is_that_of_one_item() {
    let items: Vec<_> = (0..2000).map(|n| pod(if n % 2 == 0 { "k" } else { "d" }, "x")).collect();
    let value = pods(&items);
    let proto: Vec<_> =
        (0..2000).map(|n| proto_item(if n % 2 == 0 { "k" } else { "d" }, "x")).collect();
    for (encoding, body) in [
        (Encoding::Json, value.to_string().into_bytes()),
        (Encoding::Cbor, cbor(&value, 4)),
        (Encoding::Protobuf, proto_list(&proto)),
    ] {
        let mut filter = ListFilter::new(encoding).expect("a list");
        for chunk in body.chunks(16 << 10) {
            let mut out = Vec::new();
            filter.feed(chunk, &mut |object| rule(object), &mut out).expect("a list");
            assert!(filter.held() < 64 << 10, "{} bytes", filter.held());
        }
    }
}

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
    let unknown = json!({"type": "SHINY", "object": {"metadata": {"namespace": "d"}}});
    let all = [end, error, unknown];
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
        let mut reader = crate::wire::frames::WatchScanner::new(encoding).expect("a stream");
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

fn any_item() -> impl Strategy<Value = Value> {
    let namespace = prop::sample::select(vec!["k1", "k2", "d1", "d2"]);
    (namespace, "[a-z]{1,9}", any_value(), any_value()).prop_map(|(ns, name, noise, spec)| {
        json!({"metadata": {"name": name, "namespace": ns, "other": noise}, "spec": spec})
    })
}

proptest! {
    #[test]
    fn t36_any_split_of_any_list_gives_the_list_of_what_is_kept(
        items in prop::collection::vec(any_item(), 0..6),
        is_table in any::<bool>(),
        noise in any_value(),
        style in 0u8..8,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut value = pods(&items);
        if is_table {
            let rows: Vec<_> = items.iter().map(|item| json!({"cells": [1], "object": item})).collect();
            value = json!({"kind": "Table", "metadata": {"remainingItemCount": 3}, "rows": rows});
        }
        value["noise"] = noise;
        // Text in pieces may be cut in a character, which the oracle does not read.
        let style = style & 5;
        let text = pretty(&value, style);
        let filtered = list(Encoding::Json, &split(&text, &cuts)).expect("a list");
        prop_assert_eq!(json_of(&filtered.body), thinned(&json_of(&text)));
        let binary = cbor(&value, style);
        let filtered = list(Encoding::Cbor, &split(&binary, &cuts)).expect("a list");
        prop_assert_eq!(cbor_of(&filtered.body), cbor_of(&cbor(&thinned(&value), style)));
        let bytes: Vec<_> = binary.chunks(1).collect();
        prop_assert_eq!(list(Encoding::Cbor, &bytes).expect("a list").body, filtered.body);
    }

    #[test]
    fn t34_any_split_of_protobuf_keeps_its_length(
        items in prop::collection::vec((prop::sample::select(vec!["k", "d"]), "[a-z]{0,200}"), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let written: Vec<_> = items.iter().map(|(ns, name)| proto_item(ns, name)).collect();
        let body = proto_list(&written);
        let filtered = list(Encoding::Protobuf, &split(&body, &cuts)).expect("a list");
        prop_assert_eq!(filtered.body.len(), body.len());
        let raw = fields(&field_of(&filtered.body[4..], 2));
        let kept: Vec<_> = raw.into_iter().filter(|(number, _)| *number == 2).map(|(_, item)| item).collect();
        let expected: Vec<_> = items.iter().zip(written).filter(|((ns, _), _)| *ns == "k").map(|(_, item)| item).collect();
        prop_assert_eq!(kept, expected);
    }

    #[test]
    fn damaged_lists_split_alike_and_never_panic(
        items in prop::collection::vec(any_item(), 0..3),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let proto: Vec<_> = items.iter().map(|item| proto_item(item["metadata"]["namespace"].as_str().unwrap_or(""), "x")).collect();
        let value = pods(&items);
        for (encoding, mut body) in [
            (Encoding::Json, value.to_string().into_bytes()),
            (Encoding::Cbor, cbor(&value, 4)),
            (Encoding::Protobuf, proto_list(&proto)),
        ] {
            for (at, byte) in &damage {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            let outcome = |filtered: Result<Filtered, FrameError>| match filtered {
                Ok(filtered) => Ok(filtered.body),
                Err(error) => Err(error.fault),
            };
            let whole = outcome(list(encoding, &[&body]));
            prop_assert_eq!(outcome(list(encoding, &split(&body, &cuts))), whole);
        }
    }
}
