//! The name in Kubernetes' protobuf: `runtime.Unknown{raw=2}`, in it the object `{metadata=1}`, in it
//! `ObjectMeta{name=1}` (`apimachinery/pkg/apis/meta/v1/generated.proto`).

use std::ops::Range;

use super::{BodyKind, METADATA, NAME, NameError, OBJECT};
use crate::wire::{frames::MAGIC, varint::put_varint};

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
        let Some(delimited) = only(body, around, number, field)? else {
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

/// A length-delimited field: the offset of its length, and its content, which follows that.
struct Delimited {
    length_at: usize,
    content: Range<usize>,
}

/// The only field of this number in the message that fills `around`. Go merges repeated messages,
/// and takes the last of other repeated fields; no encoder writes these, so they are refused.
fn only(
    body: &[u8],
    around: Range<usize>,
    number: u32,
    field: &'static str,
) -> Result<Option<Delimited>, NameError> {
    let mut reader = Reader { body, at: around.start, end: around.end };
    let mut found = None;
    while reader.at < reader.end {
        let (this, delimited) = reader.field()?;
        if this == number && found.replace(delimited.ok_or(MALFORMED)?).is_some() {
            return Err(NameError::Repeated { field });
        }
    }
    Ok(found)
}

struct Reader<'a> {
    body: &'a [u8],
    at: usize,
    end: usize,
}

impl Reader<'_> {
    /// Reads past one field: its number, and its place if it is length-delimited.
    fn field(&mut self) -> Result<(u32, Option<Delimited>), NameError> {
        // A key has 32 bits. Go truncates longer ones, which makes another field of them.
        let key = u32::try_from(self.varint()?).map_err(|_| MALFORMED)?;
        let number = key >> 3;
        if number == 0 {
            return Err(MALFORMED);
        }
        match key & 7 {
            0 => {
                self.varint()?;
            }
            1 => self.pass(8)?,
            2 => {
                let length_at = self.at;
                let length = self.varint()?;
                let start = self.at;
                self.pass(length)?;
                return Ok((number, Some(Delimited { length_at, content: start..self.at })));
            }
            5 => self.pass(4)?,
            // 3 and 4 are groups, which Kubernetes does not use.
            _ => return Err(MALFORMED),
        }
        Ok((number, None))
    }

    fn varint(&mut self) -> Result<u64, NameError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.body.get(self.at).filter(|_| self.at < self.end);
            let byte = *byte.ok_or(MALFORMED)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if bits.leading_zeros() < shift {
                return Err(MALFORMED);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(MALFORMED)
    }

    fn pass(&mut self, length: u64) -> Result<(), NameError> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        self.at = end.filter(|end| *end <= self.end).ok_or(MALFORMED)?;
        Ok(())
    }
}
