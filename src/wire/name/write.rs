//! Names written in place of others.

use std::ops::Range;

use super::{find::Found, kind::BodyKind};
use crate::wire::{
    protobuf::{number, put_varint},
    status::write::cbor_head,
};

/// New bytes in place of others.
pub(super) type Edit = (Range<usize>, Vec<u8>);

/// Appends the edits that give the object another name, in the order of the body.
pub(super) fn edit(kind: BodyKind, body: &[u8], found: &Found, new: &str, edits: &mut Vec<Edit>) {
    let Found { at, around, .. } = found;
    let first = body.get(at.start).copied().unwrap_or_default();
    let outer = edits.len();
    let name = encode(kind, first, new);
    let (mut old_length, mut new_length) = (at.len(), name.len());
    edits.push((at.clone(), name));
    // Each message around the name is longer by what is longer in it.
    for token in around.iter().rev() {
        let old = number(body.get(token.clone()).unwrap_or_default());
        let mut length = Vec::new();
        put_varint(old + (new_length as u64) - (old_length as u64), &mut length);
        old_length += token.len();
        new_length += length.len();
        edits.insert(outer, (token.clone(), length));
    }
}

/// A name, as text or bytes if CBOR has these first.
fn encode(kind: BodyKind, first: u8, new: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(new.len().saturating_add(16));
    match kind {
        BodyKind::Protobuf => put_varint(new.len() as u64, &mut out),
        BodyKind::Cbor => cbor_head(first >> 5, new.len(), &mut out),
        BodyKind::Json | BodyKind::JsonPatch | BodyKind::Yaml => {
            let mut quoted = serde_json::Value::from(new).to_string();
            for (one, escape) in LINE_BREAKS.into_iter().filter(|_| kind == BodyKind::Yaml) {
                quoted = quoted.replace(one, escape);
            }
            return quoted.into_bytes();
        }
    }
    out.extend_from_slice(new.as_bytes());
    out
}

/// Line breaks in YAML 1.1, which the API server reads; ordinary characters in JSON.
const LINE_BREAKS: [(char, &str); 3] =
    [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];

/// Whether the bytes of the name have a line break of YAML.
pub(super) fn has_line_break(body: &[u8], found: &Found) -> bool {
    let raw = std::str::from_utf8(body.get(found.at.clone()).unwrap_or_default());
    raw.is_ok_and(|raw| raw.contains(LINE_BREAKS.map(|(one, _)| one)))
}

/// The body with its edits; `None` without any.
pub(super) fn splice(body: &[u8], edits: Vec<Edit>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut copied = 0;
    for (at, new) in edits {
        out.extend_from_slice(body.get(copied..at.start).unwrap_or_default());
        out.extend_from_slice(&new);
        copied = at.end;
    }
    (copied > 0).then(|| {
        out.extend_from_slice(body.get(copied..).unwrap_or_default());
        out
    })
}
