//! Protobuf messages that are there as a whole: their fields read, varints written.

use std::ops::Range;

/// The fields of the message that fills a range of a body. After a malformed one there are none.
pub(super) struct Fields<'a> {
    body: &'a [u8],
    at: usize,
    end: usize,
}

/// A field's number and payload.
pub(super) type Field = (u32, Payload);

/// The payload of a field.
pub(super) enum Payload {
    Number(u64),
    /// Four or eight bytes.
    Fixed,
    Bytes(Delimited),
}

/// The offset of a length, and the content, which follows it.
pub(super) struct Delimited {
    pub(super) length_at: usize,
    pub(super) content: Range<usize>,
}

/// The error for bytes that are not a message.
pub(super) struct Malformed;

impl<'a> Fields<'a> {
    pub(super) const fn new(body: &'a [u8], message: &Range<usize>) -> Self {
        Self { body, at: message.start, end: message.end }
    }

    fn field(&mut self) -> Result<Field, Malformed> {
        // A key has 32 bits. Go truncates longer ones, which makes another field of them.
        let key = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        let payload = match key & 7 {
            0 => Payload::Number(self.varint()?),
            1 => self.pass(8).map(|_| Payload::Fixed)?,
            2 => {
                let length_at = self.at;
                let length = self.varint()?;
                Payload::Bytes(Delimited { length_at, content: self.pass(length)? })
            }
            5 => self.pass(4).map(|_| Payload::Fixed)?,
            // 3 and 4 are groups, which Kubernetes does not use.
            _ => return Err(Malformed),
        };
        if key >> 3 == 0 { Err(Malformed) } else { Ok((key >> 3, payload)) }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.body.get(self.at).filter(|_| self.at < self.end);
            let byte = *byte.ok_or(Malformed)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if bits.leading_zeros() < shift {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn pass(&mut self, length: u64) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        self.at = end.filter(|end| *end <= self.end).ok_or(Malformed)?;
        Ok(start..self.at)
    }
}

impl Iterator for Fields<'_> {
    type Item = Result<Field, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = (self.at < self.end).then(|| self.field())?;
        if field.is_err() {
            self.at = self.end;
        }
        Some(field)
    }
}

/// Appends seven bits a byte, the lowest first; all bytes but the last have their highest bit set.
pub(super) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let low = value.to_le_bytes().first().copied().unwrap_or_default() & 0x7f;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}
