//! Watch events as the API server writes them, in every encoding of a stream.

use ciborium::cbor;
use ctrlmesh::{policy::Refusal, wire::media::Encoding};

pub const ENCODINGS: [Encoding; 3] = [Encoding::Json, Encoding::Protobuf, Encoding::Cbor];

/// An event of type ADDED with a ConfigMap at this resourceVersion.
pub fn added(encoding: Encoding, rv: u64) -> Vec<u8> {
    let rv = rv.to_string();
    match encoding {
        Encoding::Protobuf => {
            let meta = [field(1, b"one"), field(6, rv.as_bytes())].concat();
            let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
            let unknown = [field(1, &kind), field(2, &field(1, &meta))].concat();
            let raw = [&b"k8s\0"[..], &unknown].concat();
            let event = [field(1, b"ADDED"), field(2, &field(1, &raw))].concat();
            [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
        }
        Encoding::Cbor => {
            let event = cbor!({
                "type" => "ADDED",
                "object" => {
                    "kind" => "ConfigMap", "apiVersion" => "v1",
                    "metadata" => {"name" => "one", "resourceVersion" => rv},
                },
            });
            let mut bytes = Vec::new();
            ciborium::into_writer(&event.unwrap(), &mut bytes).unwrap();
            bytes
        }
        _ => format!(
            "{{\"type\":\"ADDED\",\"object\":{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\
             \"metadata\":{{\"name\":\"one\",\"resourceVersion\":\"{rv}\"}}}}}}\n"
        )
        .into_bytes(),
    }
}

/// An empty list at this resourceVersion.
pub fn list(rv: u64) -> String {
    format!(
        "{{\"kind\":\"ConfigMapList\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"{rv}\"}},\"items\":[]}}"
    )
}

/// The ERROR event that ends a watch whose scope has changed.
pub fn expired(encoding: Encoding) -> Vec<u8> {
    let why = "the objects that this shard sees have changed: list again";
    Refusal::Expired.because(why).status.error_event(encoding).to_vec()
}

/// The ERROR event that answers a watch from a resourceVersion before a change.
pub fn too_old(encoding: Encoding) -> Vec<u8> {
    let why = "the objects that this shard sees have changed since: list again";
    Refusal::Expired.because(why).status.error_event(encoding).to_vec()
}

/// A field of type bytes in protobuf.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 127 {
        out.push(u8::try_from(length & 127).unwrap() | 128);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    out.extend_from_slice(bytes);
    out
}
