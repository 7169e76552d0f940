//! Bodies of lists and watches, made of one pod that a real API server wrote in each encoding.
//!
//! Hides how each encoding puts objects one after the other; does not know how they are filtered.
//! The pod has what pods have: labels, annotations, an owner, two managers of fields, probes,
//! resources and a status. It is 4.0 kB in protobuf, 4.7 in CBOR and 5.8 in JSON.

use ctrlmesh::wire::{Encoding, frames::MAGIC};

/// The namespace of the pods that are kept.
pub const KEPT: &str = "team-alpha";
/// The namespace of those that are not; as long as the other.
pub const DROPPED: &str = "team-bravo";

const JSON: &[u8] = include_bytes!("pods/pod.json");
const PROTOBUF: &[u8] = include_bytes!("pods/pod.protobuf");
const CBOR: &[u8] = include_bytes!("pods/pod.cbor");

/// A list of `count` pods, of which `percent` of a hundred, evenly spread, are in [`KEPT`].
#[must_use]
pub fn list(encoding: Encoding, count: u32, percent: u32) -> Vec<u8> {
    let mut pods = pods(encoding, count, percent);
    match encoding {
        Encoding::Protobuf => {
            let items: Vec<u8> = pods.flat_map(|pod| field(2, &pod)).collect();
            envelope("PodList", &[field(1, &field(2, b"77")), items].concat())
        }
        Encoding::Cbor => {
            let mut out = vec![0xd9, 0xd9, 0xf7, 0xa2];
            text("metadata", &mut out);
            out.push(0xa1);
            text("resourceVersion", &mut out);
            text("77", &mut out);
            text("items", &mut out);
            head(4, count, &mut out);
            out.extend(pods.flatten());
            out
        }
        Encoding::Json | Encoding::Yaml => {
            let mut out = br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"77"},"items":["#.to_vec();
            out.extend(pods.next().unwrap_or_default());
            for pod in pods {
                out.push(b',');
                out.extend(pod);
            }
            out.extend_from_slice(b"]}\n");
            out
        }
    }
}

/// A stream of `count` events about such pods.
#[must_use]
pub fn watch(encoding: Encoding, count: u32, percent: u32) -> Vec<u8> {
    pods(encoding, count, percent).flat_map(|pod| event(encoding, &pod)).collect()
}

fn event(encoding: Encoding, pod: &[u8]) -> Vec<u8> {
    match encoding {
        Encoding::Protobuf => {
            let extension = field(1, &envelope("Pod", pod));
            let message = [field(1, b"MODIFIED"), field(2, &extension)].concat();
            let length = u32::try_from(message.len()).unwrap_or_default().to_be_bytes();
            [&length, message.as_slice()].concat()
        }
        Encoding::Cbor => {
            let mut out = vec![0xa2];
            text("type", &mut out);
            text("MODIFIED", &mut out);
            text("object", &mut out);
            out.extend_from_slice(pod);
            out
        }
        Encoding::Json | Encoding::Yaml => {
            [br#"{"type":"MODIFIED","object":"#, pod, b"}\n"].concat()
        }
    }
}

fn pods(encoding: Encoding, count: u32, percent: u32) -> impl Iterator<Item = Vec<u8>> {
    let kept = match encoding {
        Encoding::Protobuf => PROTOBUF,
        Encoding::Cbor => CBOR,
        Encoding::Json | Encoding::Yaml => JSON,
    };
    let dropped = moved(kept);
    (0..count).map(move |number| {
        let is_kept = number * percent / 100 != (number + 1) * percent / 100;
        if is_kept { kept.to_vec() } else { dropped.clone() }
    })
}

/// The same pod in the other namespace, which it names once.
fn moved(pod: &[u8]) -> Vec<u8> {
    let mut moved = pod.to_vec();
    let at = moved.windows(KEPT.len()).position(|text| text == KEPT.as_bytes());
    if let Some(place) = at.and_then(|at| moved.get_mut(at..at + DROPPED.len())) {
        place.copy_from_slice(DROPPED.as_bytes());
    }
    moved
}

/// Magic and `runtime.Unknown`.
fn envelope(kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    [MAGIC.as_slice(), &field(1, &meta), &field(2, raw), &field(3, b""), &field(4, b"")].concat()
}

/// A field of bytes, whose number is below 16.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = bytes.len();
    loop {
        let [low, ..] = length.to_le_bytes();
        length >>= 7;
        if length == 0 {
            out.push(low & 0x7f);
            break;
        }
        out.push(low | 0x80);
    }
    out.extend_from_slice(bytes);
    out
}

/// A byte string, as the API server writes text.
fn text(text: &str, out: &mut Vec<u8>) {
    head(2, u32::try_from(text.len()).unwrap_or_default(), out);
    out.extend_from_slice(text.as_bytes());
}

fn head(major: u8, argument: u32, out: &mut Vec<u8>) {
    match u8::try_from(argument) {
        Ok(short @ 0..24) => out.push(major << 5 | short),
        _ => {
            out.push(major << 5 | 26);
            out.extend_from_slice(&argument.to_be_bytes());
        }
    }
}
