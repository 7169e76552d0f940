//! Texts written in place of others.

use std::ops::Range;

use super::{find::Found, kind::BodyKind};
use crate::{
    protobuf::{number, put_varint},
    status::write::cbor_head,
};

/// New bytes in place of others.
pub(super) type Edit = (Range<usize>, Vec<u8>);

/// The edits that write each new text in place of the found one, in the order of the body.
/// All that was found is in one message, where the body is protobuf.
pub(super) fn edits(
    kind: BodyKind,
    body: &[u8],
    renamed: impl Iterator<Item = (Found, String)>,
) -> Vec<Edit> {
    let (mut edits, mut around) = (Vec::new(), Vec::new());
    for (found, new) in renamed {
        let first = body.get(found.at.start).copied().unwrap_or_default();
        edits.push((found.at, encode(kind, first, &new)));
        around = found.around;
    }
    // Each message around the edits grows by as much as its content.
    for token in around.iter().rev() {
        let [old, new] = edits.iter().fold([0, 0], |[old, new], (at, bytes): &Edit| {
            [old + at.len() as u64, new + bytes.len() as u64]
        });
        let mut length = Vec::new();
        put_varint(number(body.get(token.clone()).unwrap_or_default()) + new - old, &mut length);
        edits.insert(0, (token.clone(), length));
    }
    edits
}

/// A text, or bytes if CBOR has these first.
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

/// Whether the bytes of the text have a line break of YAML.
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
