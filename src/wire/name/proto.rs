//! The name in Kubernetes' protobuf: `runtime.Unknown{raw=2}`, in it the object `{metadata=1}`, in it
//! `ObjectMeta{name=1}` (`apimachinery/pkg/apis/meta/v1/generated.proto`).

use std::ops::Range;

use super::{BodyKind, METADATA, NAME, NameError, OBJECT};
use crate::wire::{
    frames::MAGIC,
    protobuf::{Delimited, Fields, Malformed, Payload, put_varint},
};

/// Replaces the name and the three lengths around it: its own, the metadata's and the object's.
pub(super) fn rename(
    body: &[u8],
    rename: impl Fn(&str) -> Option<String>,
) -> Result<Option<Vec<u8>>, NameError> {
    if !body.starts_with(MAGIC) {
        return Err(MALFORMED);
    }
    let mut around = MAGIC.len()..body.len();
    let mut way = Vec::with_capacity(3);
    for (number, field) in [(2, OBJECT), (1, METADATA), (1, NAME)] {
        let Some(delimited) = only(body, &around, number, field)? else {
            return Ok(None);
        };
        around = delimited.content.clone();
        way.push(delimited);
    }
    let name = body.get(around).unwrap_or_default();
    let name = std::str::from_utf8(name).map_err(|_| MALFORMED)?;
    let Some(new) = rename(name) else {
        return Ok(None);
    };
    let mut inner = new.into_bytes();
    while let Some(delimited) = way.pop() {
        // The magic precedes the outermost message.
        let around = way.last().map_or(0..body.len(), |outer| outer.content.clone());
        let mut outer = Vec::with_capacity(around.len() + inner.len());
        outer.extend_from_slice(body.get(around.start..delimited.length_at).unwrap_or_default());
        put_varint(inner.len() as u64, &mut outer);
        outer.extend_from_slice(&inner);
        outer.extend_from_slice(body.get(delimited.content.end..around.end).unwrap_or_default());
        inner = outer;
    }
    Ok(Some(inner))
}

const MALFORMED: NameError = NameError::Malformed(BodyKind::Protobuf);

/// The only field of this number in the message that fills `around`. Go merges repeated messages,
/// and takes the last of other repeated fields; no encoder writes these, so they are refused.
fn only(
    body: &[u8],
    around: &Range<usize>,
    number: u32,
    field: &'static str,
) -> Result<Option<Delimited>, NameError> {
    let mut found = None;
    for this in Fields::new(body, around) {
        match this.map_err(|Malformed| MALFORMED)? {
            (this, _) if this != number => {}
            (_, Payload::Bytes(_)) if found.is_some() => return Err(NameError::Repeated { field }),
            (_, Payload::Bytes(delimited)) => found = Some(delimited),
            _ => return Err(MALFORMED),
        }
    }
    Ok(found)
}
