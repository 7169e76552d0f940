use ciborium::Value;
use proptest::prelude::*;

use super::{indirect, objects, renamed, repeated, wrong};
use crate::name::{BodyKind::Cbor, MAX_BODY, NameError};

fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    ciborium::into_writer(value, &mut out).expect("memory");
    out
}

/// The value with every string as bytes, as Kubernetes writes them.
fn bytes(value: &Value) -> Value {
    match value {
        Value::Text(text) => Value::Bytes(text.clone().into_bytes()),
        Value::Array(items) => Value::Array(items.iter().map(bytes).collect()),
        Value::Map(pairs) => {
            Value::Map(pairs.iter().map(|(key, value)| (bytes(key), bytes(value))).collect())
        }
        other => other.clone(),
    }
}

fn value(json: &str) -> Value {
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    Value::serialized(&json).expect("CBOR has all of JSON")
}

#[test]
fn t72_cbor_changes_the_name_alone() {
    for object in [
        r#"{"kind":"Lease","metadata":{"labels":{"name":"lock"},"name":<name>},"spec":{"leaseDurationSeconds":15,"x":-1.5,"y":null,"z":true}}"#,
        r#"{"data":{"name":"lock","metadata":"lock"},"metadata":{"name":<name>},"kind":"ConfigMap"}"#,
        r#"{"subsets":[{"ports":[{"name":"lock","port":65536}]}],"metadata":{"name":<name>,"Name":"lock"}}"#,
    ] {
        let [old, new, other] = ["lock", "lock---s1", "other"]
            .map(|name| value(&object.replace("<name>", &format!("\"{name}\""))));
        for form in [Value::clone as fn(&Value) -> Value, bytes] {
            for tag in [&b""[..], b"\xd9\xd9\xf7"] {
                let body = |value| [tag, &encode(&form(value))].concat();
                assert_eq!(renamed(Cbor, body(&old)), Ok(Some(body(&new))), "{object}");
                assert_eq!(renamed(Cbor, body(&other)), Ok(None), "{object}");
            }
        }
    }
}

/// Encodings that Kubernetes reads but does not write.
#[test]
fn t72_cbor_of_indefinite_length_stays_so() {
    // {_ "x": [_ 1, {_ "a": (_ "b")}, h'' with tag 22], "metadata": {_ "name": …, (_ "na"): 1.0}}
    let begin = b"\xbf\x61x\x9f\x01\xbf\x61a\x7f\x61b\xff\xff\xd6\x40\xff\x68metadata\xbf\x44name";
    let end = b"\x7f\x62na\xff\xf9\x3c\x00\xff\xff";
    let body = |name: &[u8]| [begin, name, end].concat();
    for (old, new) in [
        (&b"\x64lock"[..], &b"\x69lock---s1"[..]),
        (b"\x44lock", b"\x49lock---s1"),
        // In chunks, with a length longer than it need be.
        (b"\x7f\x62lo\x60\x62ck\xff", b"\x69lock---s1"),
        (b"\x5f\x42lo\x58\x02ck\xff", b"\x49lock---s1"),
        (b"\x5b\x00\x00\x00\x00\x00\x00\x00\x04lock", b"\x49lock---s1"),
    ] {
        assert_eq!(renamed(Cbor, body(old)), Ok(Some(body(new))), "{old:x?}");
    }
    for other in [&b"\x60"[..], b"\xf6", b"\x45other"] {
        assert_eq!(renamed(Cbor, body(other)), Ok(None), "{other:x?}");
    }
    // The key in chunks.
    assert_eq!(
        renamed(Cbor, b"\xa1\x5f\x44meta\x44data\xff\xa1\x7f\x64name\xff\x44lock"),
        Ok(Some(b"\xa1\x5f\x44meta\x44data\xff\xa1\x7f\x64name\xff\x49lock---s1".to_vec()))
    );
}

#[test]
fn t72_cbor_headers_fit_the_name() {
    for length in [0, 1, 23, 24, 255, 256, 65535, 65536] {
        let new = "x".repeat(length);
        let body = |name: &str| encode(&value(&format!(r#"{{"metadata":{{"name":"{name}"}}}}"#)));
        let found = crate::name::rename(Cbor, &body("lock"), |_, _| Some(new.clone()));
        assert_eq!(found, Ok(Some(body(&new))), "{length}");
    }
}

#[test]
fn t72_cbor_without_a_name_stays() {
    for body in [
        &b"\xa0"[..],
        b"\xbf\xff",
        b"\xa1\x68metadata\xf6",
        b"\xa1\x48metadata\xa0",
        b"\xa1\x44name\x44lock",
        b"\xa1\x48metadata\xa1\x44name\xf6",
        b"\xa1\x48Metadata\xa1\x44name\x44lock",
    ] {
        assert_eq!(renamed(Cbor, body), Ok(None), "{body:x?}");
    }
}

#[test]
fn t72_cbor_that_cannot_be_relied_on_is_refused() {
    let malformed = NameError::Malformed(Cbor);
    for (body, expected) in [
        (&b"\xa2\x48metadata\xa1\x44name\x44lock\x48metadata\xf6"[..], repeated("metadata")),
        (b"\xa2\x48metadata\xa1\x44name\x44lock\x68metadata\xf6", repeated("metadata")),
        (b"\xa1\x48metadata\xa2\x44name\x44lock\x64name\x44lock", repeated("metadata.name")),
        (
            b"\xa1\x48metadata\xa2\x44name\x44lock\x7f\x62na\x62me\xff\xf6",
            repeated("metadata.name"),
        ),
        // Tags: the key in base64, the map, the object, the self-described tag twice.
        (b"\xa1\xd6\x46\x99\xeb\x5a\x75\xab\x5a\xa1\x44name\x44lock", indirect("the whole")),
        (b"\xa1\x48metadata\xa1\xd6\x43\x9d\xa9\x9e\x44lock", indirect("metadata")),
        (b"\xa1\x48metadata\xd8\x64\xa1\x44name\x44lock", indirect("metadata")),
        (b"\xd9\xd9\xf7\xd9\xd9\xf7\xa0", indirect("the whole")),
        (b"\xa1\x01\x44lock", indirect("the whole")),
        (b"\xa1\x48metadata\xa1\x44name\x01", wrong("metadata.name", "a string")),
        (b"\xa1\x48metadata\xa1\x44name\xd6\x43\x96\x87\x24", indirect("metadata.name")),
        (b"\xa1\x48metadata\x44lock", wrong("metadata", "a map")),
        (b"\x80", wrong("the whole", "a map")),
        (b"\xf6", wrong("the whole", "a map")),
        (b"", malformed),
        (b"\xd9\xd9\xf7", malformed),
        (b"\xa1\x48metadata\xa1\x44name\x44loc", malformed),
        (b"\xa1\x48metadata\xa1\x44name\x44lock\x00", malformed),
        (b"\xa1\x48metadata\xa1\x44name\x44\xff\xff\xff\xff", malformed),
        (b"\xbf\x48metadata\xa1\x44name\x44lock", malformed),
        (b"\xa2\x48metadata\xa1\x44name\x44lock\x61x\xff", malformed),
        (b"\xa1\x61x\xbf\x01\xff", malformed),
        (b"\xa1\x61x\x7f\x41b\xff", malformed),
        (b"\xa1\x61x\x7f\x7f\xff\xff", malformed),
        (b"\xa1\x61x\x1c", malformed),
        (b"\xa1\x61x\x1f", malformed),
        (b"\xa1\x61x\xdf", malformed),
        (b"\xa1\x61x\x5b\xff\xff\xff\xff\xff\xff\xff\xff", malformed),
        (b"\xa1\x61x\xbb\xff\xff\xff\xff\xff\xff\xff\xff", malformed),
        (b"\xa1\x61x\x9b\xff\xff\xff\xff\xff\xff\xff\xff", malformed),
        (b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff", malformed),
    ] {
        assert_eq!(renamed(Cbor, body), Err(expected), "{body:x?}");
    }
}

#[test]
fn t72_cbor_is_read_as_deep_as_upstream_reads_it() {
    let nested = |head: u8, depth: usize| {
        [&b"\xa2\x61x"[..], &vec![head; depth], b"\x01\x48metadata\xa1\x44name\x44lock"].concat()
    };
    for head in [0x81, 0xc1] {
        assert!(matches!(renamed(Cbor, nested(head, 10_000)), Ok(Some(_))), "{head:x}");
        assert_eq!(renamed(Cbor, nested(head, 10_001)), Err(NameError::TooDeep), "{head:x}");
        assert_eq!(renamed(Cbor, nested(head, MAX_BODY - 100)), Err(NameError::TooDeep));
    }
}

proptest! {
    #[test]
    fn t72_cbor_is_the_same_object_by_another_name(object in objects(), as_bytes in any::<bool>()) {
        let old = Value::serialized(&object).expect("CBOR has all of JSON");
        let mut object = object;
        object["metadata"]["name"] = "lock---s1".into();
        let new = Value::serialized(&object).expect("CBOR has all of JSON");
        let form = if as_bytes { bytes } else { Value::clone };
        prop_assert_eq!(renamed(Cbor, encode(&form(&old))), Ok(Some(encode(&form(&new)))));
    }
}
