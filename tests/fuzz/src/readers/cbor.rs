//! CBOR, read as a whole and by the book (RFC 8949).

use super::tree::{Field, Node, Value};

/// Deeper than anything that is compared.
const DEPTH: usize = 64;

/// One item, and the bytes behind it. `None` for malformed CBOR.
pub(crate) fn first(bytes: &[u8]) -> Option<(Node<'_>, &[u8])> {
    let mut reader = Reader { bytes, at: 0 };
    let node = reader.node(DEPTH)?;
    Some((node, bytes.get(reader.at..)?))
}

/// All items of a sequence.
pub(crate) fn sequence(mut bytes: &[u8]) -> Option<Vec<Node<'_>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (node, rest) = first(bytes)?;
        all.push(node);
        bytes = rest;
    }
    Some(all)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Its major type and argument; nothing for an indefinite length.
type Head = (u8, Option<u64>);

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn head(&mut self) -> Option<Head> {
        let initial = *self.take(1)?.first()?;
        let length = match initial & 31 {
            short @ 0..24 => return Some((initial >> 5, Some(short.into()))),
            24 => 1,
            25 => 2,
            26 => 4,
            27 => 8,
            31 => return Some((initial >> 5, None)),
            _ => return None,
        };
        let argument = self.take(length)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Some((initial >> 5, Some(argument)))
    }

    /// Whether a break stands here, which is taken.
    fn at_break(&mut self) -> bool {
        let is_break = self.bytes.get(self.at) == Some(&0xff);
        self.at += usize::from(is_break);
        is_break
    }

    fn node(&mut self, depth: usize) -> Option<Node<'a>> {
        let start = self.at;
        let depth = depth.checked_sub(1)?;
        let mut head = self.head()?;
        while head.0 == 6 {
            head.1?;
            head = self.head()?;
        }
        let value = match head {
            (0 | 1, Some(_)) => Value::Number,
            (major @ (2 | 3), length) => Value::Text(self.text(major, length)?),
            (4, count) => {
                let mut all = Vec::new();
                while self.goes_on(count, all.len()) {
                    all.push(self.node(depth)?);
                }
                Value::Array(all)
            }
            (5, count) => {
                let mut all = Vec::new();
                while self.goes_on(count, all.len()) {
                    let name = self.node(depth)?;
                    let is_tagged = name.is_tagged();
                    let name = if let Value::Text(text) = name.value { Some(text) } else { None };
                    all.push(Field { name, is_tagged, value: self.node(depth)? });
                }
                Value::Map(all)
            }
            (7, Some(22 | 23)) => Value::Null,
            (7, Some(_)) => Value::Other,
            _ => return None,
        };
        Some(Node { raw: self.bytes.get(start..self.at)?, value })
    }

    fn goes_on(&mut self, count: Option<u64>, read: usize) -> bool {
        match count {
            Some(count) => (read as u64) < count,
            None => !self.at_break(),
        }
    }

    fn text(&mut self, major: u8, length: Option<u64>) -> Option<Vec<u8>> {
        if let Some(length) = length {
            return Some(self.take(length)?.to_vec());
        }
        let mut text = Vec::new();
        while !self.at_break() {
            match self.head()? {
                (same, Some(length)) if same == major => text.extend(self.take(length)?),
                _ => return None,
            }
        }
        Some(text)
    }
}
