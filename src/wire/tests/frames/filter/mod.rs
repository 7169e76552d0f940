//! A filtered body is compared with the body that a server would have sent for the kept objects
//! alone. Independent decoders read both.

mod lists;
mod watches;

use serde_json::{Value, json};

use super::write;
use crate::{
    Encoding, ResourceVersion,
    frames::{
        Bookmark, Counts, EventKind, Fault, FrameError, ListFilter, ListMeta, Verdict, WatchFilter,
    },
    object::Object,
};

/// The rule of these tests: objects in a namespace whose name begins with `k` are kept.
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

/// The same list without dropped items, and without its count.
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

pub(super) fn json_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

/// The value that `ciborium` reads, as JSON; byte strings are text.
pub(super) fn cbor_of(bytes: &[u8]) -> Value {
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

pub(super) fn cbor(value: &Value, style: u8) -> Vec<u8> {
    let mut out = Vec::new();
    write::cbor(value, style, &mut out);
    out
}

/// A protobuf item: its metadata, and bytes that are not parsed.
pub(super) fn proto_item(namespace: &str, name: &str) -> Vec<u8> {
    let meta = [
        write::field(1, name.as_bytes()),
        write::field(3, namespace.as_bytes()),
        write::noise(),
        write::field(5, b"uid"),
    ];
    [write::field(1, &meta.concat()), write::noise(), write::field(2, &[7; 300])].concat()
}

pub(super) fn proto_list(items: &[Vec<u8>]) -> Vec<u8> {
    let meta =
        [write::field(2, b"77"), write::field(3, b"token"), vec![4 << 3, 0xb9, 0x60]].concat();
    let items: Vec<u8> = items.iter().flat_map(|item| write::field(2, item)).collect();
    write::envelope(&[write::field(1, &meta), items, write::noise()].concat())
}

/// The fields of a protobuf message, as any decoder reads them: number and payload.
pub(super) fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
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

pub(super) fn field_of(message: &[u8], number: u64) -> Vec<u8> {
    let mut all = fields(message).into_iter().filter(|(field, _)| *field == number);
    all.next().expect("the field").1
}
