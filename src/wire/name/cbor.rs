//! The name in CBOR (RFC 8949). Kubernetes writes definite lengths, strings as byte strings and the
//! self-described tag in front; it reads text strings, indefinite lengths and no tag, too
//! (`apimachinery/pkg/runtime/serializer/cbor/internal/modes/decode.go`).

use super::{BodyKind, Found, METADATA, NAME, NameError, OBJECT};
use crate::wire::{object::walk::CborHead as Head, status::write::cbor_head};

/// Finds the object's name.
pub(super) fn find(body: &[u8]) -> Result<Option<Found>, NameError> {
    let mut root = Reader { body, at: 0 };
    if body.starts_with(&SELF_DESCRIBED) {
        root.at = SELF_DESCRIBED.len();
    }
    let metadata = root.member(b"metadata", OBJECT, METADATA)?;
    if root.at != body.len() {
        return Err(MALFORMED);
    }
    let Some(at) = metadata else { return Ok(None) };
    let mut metadata = Reader { body, at };
    if metadata.is_null() {
        return Ok(None);
    }
    let Some(at) = metadata.member(b"name", METADATA, NAME)? else {
        return Ok(None);
    };
    let mut name = Reader { body, at };
    if name.is_null() {
        return Ok(None);
    }
    let Some(decoded) = name.string()? else {
        return Err(NameError::WrongType { field: NAME, expected: "a string" });
    };
    let decoded = String::from_utf8(decoded).map_err(|_| MALFORMED)?;
    Ok(Some(Found { name: decoded, at: at..name.at }))
}

/// A string of definite length, text or bytes as the old one.
pub(super) fn encode(old: &[u8], new: &str) -> Vec<u8> {
    let major = old.first().copied().unwrap_or(BYTES << 5) >> 5;
    let mut out = Vec::with_capacity(new.len().saturating_add(Head::MAX));
    cbor_head(major, new.len(), &mut out);
    out.extend_from_slice(new.as_bytes());
    out
}

const MALFORMED: NameError = NameError::Malformed(BodyKind::Cbor);

/// Tag 55799.
const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// Deepest nesting, tags counted, as in Kubernetes.
const MAX_DEPTH: usize = 10_000;

/// Major types.
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;

const BREAK: u8 = 0xff;
const NULL: u8 = 0xf6;

/// A collection with items still to read.
enum Open {
    /// Number of items left.
    Items(u64),
    /// Items until the break; in a map only after a value.
    ToBreak { map: bool, odd: bool },
}

struct Reader<'a> {
    body: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// Reads past a map and returns the offset of the value of `key`. Keys other than strings are
    /// refused, and so are tagged ones, which may stand for base64.
    fn member(
        &mut self,
        key: &[u8],
        map: &'static str,
        member: &'static str,
    ) -> Result<Option<usize>, NameError> {
        let head = self.head()?;
        match head.major {
            MAP => {}
            TAG => return Err(NameError::Indirect { field: map }),
            _ => return Err(NameError::WrongType { field: map, expected: "a map" }),
        }
        let mut found = None;
        let mut left = head.argument;
        loop {
            match &mut left {
                Some(0) => return Ok(found),
                Some(left) => *left -= 1,
                None if self.body.get(self.at) == Some(&BREAK) => {
                    self.at += 1;
                    return Ok(found);
                }
                None => {}
            }
            let this = self.string()?.ok_or(NameError::Indirect { field: map })?;
            if this == key && found.replace(self.at).is_some() {
                return Err(NameError::Repeated { field: member });
            }
            self.skip()?;
        }
    }

    /// Reads a string, text or bytes, in one piece or in chunks; `None` if the item is not a
    /// string.
    fn string(&mut self) -> Result<Option<Vec<u8>>, NameError> {
        let Head { major, argument, .. } = self.head()?;
        if !matches!(major, BYTES | TEXT) {
            return Ok(None);
        }
        let Some(length) = argument else {
            let mut whole = Vec::new();
            while let Some(chunk) = self.chunk(major)? {
                whole.extend_from_slice(chunk);
            }
            return Ok(Some(whole));
        };
        Ok(Some(self.take(length)?.to_vec()))
    }

    /// Reads one chunk of a string of indefinite length; `None` at its break.
    fn chunk(&mut self, of: u8) -> Result<Option<&[u8]>, NameError> {
        if self.body.get(self.at) == Some(&BREAK) {
            self.at += 1;
            return Ok(None);
        }
        match self.head()? {
            Head { major, argument: Some(length), .. } if major == of => {
                self.take(length).map(Some)
            }
            _ => Err(MALFORMED),
        }
    }

    /// Skips one item of any kind, without recursion.
    fn skip(&mut self) -> Result<(), NameError> {
        let mut open = vec![Open::Items(1)];
        while let Some(innermost) = open.last_mut() {
            match innermost {
                Open::Items(0) => {
                    open.pop();
                    continue;
                }
                Open::Items(left) => *left -= 1,
                Open::ToBreak { map, odd } => {
                    if self.body.get(self.at) == Some(&BREAK) {
                        if *map && *odd {
                            return Err(MALFORMED);
                        }
                        self.at += 1;
                        open.pop();
                        continue;
                    }
                    *odd = !*odd;
                }
            }
            if let Some(inner) = self.enter()? {
                if open.len() > MAX_DEPTH {
                    return Err(NameError::TooDeep);
                }
                open.push(inner);
            }
        }
        Ok(())
    }

    /// Skips an item; of one that holds others only the head, which it returns.
    fn enter(&mut self) -> Result<Option<Open>, NameError> {
        let Head { major, argument, .. } = self.head()?;
        Ok(match (major, argument) {
            (BYTES | TEXT, Some(length)) => {
                self.take(length)?;
                None
            }
            (BYTES | TEXT, None) => {
                while self.chunk(major)?.is_some() {}
                None
            }
            (ARRAY, Some(items)) => Some(Open::Items(items)),
            (MAP, Some(pairs)) => Some(Open::Items(pairs.checked_mul(2).ok_or(MALFORMED)?)),
            (TAG, Some(_)) => Some(Open::Items(1)),
            (ARRAY | MAP, None) => Some(Open::ToBreak { map: major == MAP, odd: false }),
            (_, Some(_)) => None,
            // A break where none can be, or an integer or tag of indefinite length.
            (_, None) => return Err(MALFORMED),
        })
    }

    fn head(&mut self) -> Result<Head, NameError> {
        let head = Head::read(self.body.get(self.at..).unwrap_or_default());
        let head = head.ok().flatten().ok_or(MALFORMED)?;
        self.take(head.length as u64)?;
        Ok(head)
    }

    fn take(&mut self, length: u64) -> Result<&[u8], NameError> {
        let length = usize::try_from(length).map_err(|_| MALFORMED)?;
        let end = self.at.checked_add(length).ok_or(MALFORMED)?;
        let taken = self.body.get(self.at..end).ok_or(MALFORMED)?;
        self.at = end;
        Ok(taken)
    }

    fn is_null(&self) -> bool {
        self.body.get(self.at) == Some(&NULL)
    }
}
