//! The metadata of objects that leave.

use ciborium::{Value as Cbor, cbor};
use serde_json::{Value, json};

use super::*;
use crate::{
    frames::{EventKind, Listed, TypeMeta, WatchScanner, object_event},
    rv::ResourceVersion,
};

const AT: u64 = 1_234_567_890_123;

fn leaving(shows_deletion: bool) -> Leaving {
    Leaving { at: AT, deleted: shows_deletion.then_some(1_800_000_000) }
}

fn in_json(object: &str, shows_deletion: bool) -> Value {
    let changed = leaving(shows_deletion).put_into(Encoding::Json, object.as_bytes()).unwrap();
    serde_json::from_slice(&changed).unwrap()
}

/// The object with these fields in its metadata.
fn with(object: &str, fields: &[(&str, Value)]) -> Value {
    let mut object: Value = serde_json::from_str(object).unwrap();
    for (name, value) in fields {
        object["metadata"][name] = value.clone();
    }
    object
}

fn version() -> (&'static str, Value) {
    ("resourceVersion", AT.to_string().into())
}

fn deletion() -> [(&'static str, Value); 2] {
    [("deletionTimestamp", "2027-01-15T08:00:00Z".into()), ("deletionGracePeriodSeconds", 0.into())]
}

const OBJECTS: [&str; 6] = [
    r#"{"metadata":{"name":"a","resourceVersion":"7","labels":{"resourceVersion":"x"}},"spec":{"metadata":1}}"#,
    r#"{"kind":"K","spec":{"metadata":{"resourceVersion":"1"}},"metadata": { "resourceVersion" : "7" }}"#,
    r#"{"metadata":{"name":"a","finalizers":["f"],"deletionTimestamp":"2020-01-01T00:00:00Z","resourceVersion":"7"}}"#,
    r#"{"metadata":{"name":"\"}{","annotations":{"a":"{\"metadata\":{}}"},"resourceVersion":"7"}}"#,
    r#"{"metadata":{"name":"without"}}"#,
    r#"{"metadata": { }}"#,
];

#[test]
fn an_object_in_json_is_as_of_the_position_and_else_the_same() {
    for object in OBJECTS {
        assert_eq!(in_json(object, false), with(object, &[version()]), "{object}");
        let [time, grace] = deletion();
        assert_eq!(in_json(object, true), with(object, &[version(), time, grace]), "{object}");
    }
}

#[test]
fn a_name_of_metadata_in_escapes_is_read_too() {
    let changed = in_json(r#"{"\u006detadata":{"resourceVersion":"7"}}"#, false);
    assert_eq!(changed, json!({"metadata": {"resourceVersion": AT.to_string()}}));
}

#[test]
fn what_has_no_metadata_or_two_is_not_changed() {
    for object in [
        "",
        "{}",
        "[]",
        r#"[{"a":{}}]"#,
        r#"{"metadata":["1"]}"#,
        r#"{"metadata":1}"#,
        r#"{"metadata":null}"#,
        r#"{"metadata":{},"metadata":{}}"#,
        r#"{"metadata":{"resourceVersion":"1","resourceVersion":"2"}}"#,
        r#"{"metadata":{}"#,
    ] {
        assert_eq!(leaving(true).put_into(Encoding::Json, object.as_bytes()), None, "{object}");
    }
    for object in [&b""[..], &[0xa0], &[0x80], &[0xa1, 0x48], &[0xff]] {
        assert_eq!(leaving(true).put_into(Encoding::Cbor, object), None, "{object:x?}");
    }
    // Nothing, a number, metadata that is a number, or is cut off, or comes twice.
    for object in
        [&b""[..], b"\x10\x01", b"\x08\x01", b"\x0a\x02\x0a", b"\x0a\x00\x0a\x00", b"\x0b"]
    {
        assert_eq!(leaving(true).put_into(Encoding::Protobuf, object), None, "{object:x?}");
    }
    assert_eq!(leaving(true).put_into(Encoding::Yaml, b"metadata: {}"), None);
}

/// A text as the API server writes it.
fn bytes(text: &str) -> Cbor {
    Cbor::Bytes(text.as_bytes().to_vec())
}

fn in_cbor(object: &Cbor, shows_deletion: bool) -> Cbor {
    let mut bytes = Vec::new();
    ciborium::into_writer(object, &mut bytes).unwrap();
    let changed = leaving(shows_deletion).put_into(Encoding::Cbor, &bytes).unwrap();
    ciborium::from_reader(&changed[..]).unwrap()
}

#[test]
fn an_object_in_cbor_is_as_of_the_position_and_else_the_same() {
    let object = cbor!({
        "spec" => {"metadata" => [1, -2.5, null, {"resourceVersion" => "1"}], "x" => "y"},
        "metadata" => {"name" => "a", "resourceVersion" => "7", "labels" => {"resourceVersion" => "x"}},
        "status" => {"at" => true},
    });
    let expected = |fields: &[(&str, Cbor)]| {
        let mut meta =
            vec![("name", "a".into()), ("labels", cbor!({"resourceVersion" => "x"}).unwrap())];
        let mut meta: Vec<_> =
            meta.drain(..).map(|(name, value)| (Cbor::from(name), value)).collect();
        meta.extend(fields.iter().map(|(name, value)| (bytes(name), value.clone())));
        let mut whole = object.as_ref().unwrap().clone().into_map().unwrap();
        whole[1].1 = Cbor::Map(meta);
        Cbor::Map(whole)
    };
    let version = (VERSION, bytes(&AT.to_string()));
    assert_eq!(in_cbor(object.as_ref().unwrap(), false), expected(std::slice::from_ref(&version)));
    let deletion = [version, (DELETION, bytes("2027-01-15T08:00:00Z")), (GRACE, 0.into())];
    assert_eq!(in_cbor(object.as_ref().unwrap(), true), expected(&deletion));
}

#[test]
fn maps_and_texts_of_cbor_without_a_length_are_read() {
    // {_ h'metadata': {_ "resourceVersion": (_ "1", "2"), "x": [_ 1]}, "y": 24(h'00')}
    let mut object = vec![0xbf, 0x48];
    object.extend(b"metadata");
    object.extend([0xbf, 0x6f]);
    object.extend(b"resourceVersion");
    object.extend([0x7f, 0x61, b'1', 0x61, b'2', 0xff, 0x61, b'x', 0x9f, 0x01, 0xff, 0xff]);
    object.extend([0x61, b'y', 0xd8, 24, 0x41, 0, 0xff]);
    let changed = leaving(false).put_into(Encoding::Cbor, &object).unwrap();
    let changed: Cbor = ciborium::from_reader(&changed[..]).unwrap();
    let whole = changed.into_map().unwrap();
    let meta = [("x".into(), cbor!([1]).unwrap()), (bytes(VERSION), bytes(&AT.to_string()))];
    assert_eq!(whole[0].1, Cbor::Map(meta.to_vec()));
    assert_eq!(whole.len(), 2);
}

#[test]
fn the_event_of_an_object_that_leaves_is_at_the_position() {
    let json = br#"{"metadata":{"name":"a","resourceVersion":"7"}}"#.to_vec();
    let mut cbor = Vec::new();
    let value = cbor!({"metadata" => {"name" => "a", "resourceVersion" => "7"}}).unwrap();
    ciborium::into_writer(&value, &mut cbor).unwrap();
    let protobuf = b"\x0a\x06\x0a\x01a\x32\x017".to_vec();
    let kind = TypeMeta { api_version: "v1".into(), kind: "ConfigMap".into() };
    for (encoding, object) in
        [(Encoding::Json, json), (Encoding::Cbor, cbor), (Encoding::Protobuf, protobuf)]
    {
        for shows_deletion in [false, true] {
            let changed = leaving(shows_deletion).put_into(encoding, &object).unwrap();
            let listed = Listed { bytes: &changed, has_type: false };
            let event = object_event(encoding, EventKind::Deleted, Some(&kind), listed).unwrap();
            let mut scanner = WatchScanner::new(encoding).unwrap();
            let mut events = scanner.feed(&event);
            let end = events.next().unwrap().unwrap();
            assert_eq!(end.event.resource_version, ResourceVersion::At(AT.into()), "{encoding:?}");
            assert_eq!(events.object().unwrap().name, "a", "the rest is the same");
        }
    }
    // Fields in front of the metadata and behind it, one that is replaced and one that stays.
    let object = b"\x12\x01s\x0a\x0d\x32\x017\x50\x1e\x4a\x02\x08\x05\x0a\x02ab\x18\x01";
    let shown = leaving(true).put_into(Encoding::Protobuf, object).unwrap();
    let version = b"\x32\x0d1234567890123";
    let deletion = b"\x4a\x06\x08\x80\xa4\xa7\xda\x06\x50\x00";
    let meta = [&b"\x0a\x02ab"[..], version, deletion].concat();
    let length = u8::try_from(meta.len()).unwrap();
    assert_eq!(shown, [&b"\x12\x01s\x0a"[..], &[length], &meta, b"\x18\x01"].concat());
}
