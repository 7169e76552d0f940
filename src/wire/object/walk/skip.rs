//! Skips a JSON object or array without parsing it, 64 bytes at a time.

use memchr::memchr2;

/// Finds the end of a skipped container, over any split of the bytes. Brackets are counted outside
/// strings, not matched by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Skip {
    depth: u32,
    in_text: bool,
    /// Whether the last byte was a backslash that escapes the next one.
    escaped: bool,
}

/// The progress of a skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skipped {
    /// More to come: all bytes are inside the container.
    More,
    /// The container ended after this many bytes.
    End(usize),
    TooDeep,
}

/// Deepest nesting, as in Go's decoder.
const MAX_DEPTH: u32 = 10_000;
const BLOCK: usize = 64;

/// Bit masks of a block, one bit for each byte.
struct Masks {
    quote: u64,
    backslash: u64,
    open: u64,
    close: u64,
}

impl Skip {
    /// Starts behind the bracket that opens the container.
    pub(super) const fn new() -> Self {
        Self { depth: 1, in_text: false, escaped: false }
    }

    pub(super) fn run(&mut self, bytes: &[u8]) -> Skipped {
        let mut tail = bytes;
        let mut done = 0;
        while let Some((block, rest)) = tail.split_first_chunk::<BLOCK>() {
            match self.block(block, BLOCK) {
                Skipped::More => done += BLOCK,
                Skipped::End(length) => return Skipped::End(done + length),
                Skipped::TooDeep => return Skipped::TooDeep,
            }
            let text = self.rest_of_text(rest);
            (tail, done) = (rest.get(text..).unwrap_or_default(), done + text);
        }
        if tail.is_empty() {
            return Skipped::More;
        }
        let mut padded = [b' '; BLOCK];
        for (to, from) in padded.iter_mut().zip(tail) {
            *to = *from;
        }
        match self.block(&padded, tail.len()) {
            Skipped::End(length) => Skipped::End(done + length),
            other => other,
        }
    }

    /// The bytes of a text up to its next quote or backslash, which are looked for 32 at a time. Zero
    /// outside of texts.
    fn rest_of_text(&self, bytes: &[u8]) -> usize {
        if !self.in_text || self.escaped {
            return 0;
        }
        memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len())
    }

    /// Skips a block: the first `length` bytes are real, the others are spaces.
    fn block(&mut self, block: &[u8; BLOCK], length: usize) -> Skipped {
        let Masks { mut quote, backslash, mut open, mut close } = Masks::of(block);
        if backslash != 0 || self.escaped {
            quote &= !self.escapes(backslash, length);
        }
        // Each bit between two quotes is set, and that of the opening quote.
        let mut text = quote;
        for shift in [1, 2, 4, 8, 16, 32] {
            text ^= text << shift;
        }
        if self.in_text {
            text = !text;
        }
        self.in_text = text >> 63 != 0;
        open &= !text;
        close &= !text;
        if self.depth <= close.count_ones() {
            if let Some(end) = self.end(open, close) {
                return Skipped::End(end);
            }
        } else {
            self.depth = self.depth + open.count_ones() - close.count_ones();
        }
        if self.depth > MAX_DEPTH { Skipped::TooDeep } else { Skipped::More }
    }

    /// The bytes that a backslash escapes; an escaped backslash escapes nothing. In a row of
    /// backslashes each second one escapes: an addition carries to the end of the rows that begin at
    /// odd places, and so turns over what the even places say.
    fn escapes(&mut self, backslash: u64, length: usize) -> u64 {
        const EVEN: u64 = 0x5555_5555_5555_5555;
        let before = u64::from(self.escaped);
        let backslash = backslash & !before;
        let behind = backslash << 1 | before;
        let odd = backslash & !EVEN & !behind;
        let (rows, carried) = odd.overflowing_add(backslash);
        let escaped = (EVEN ^ (rows << 1)) & behind;
        self.escaped = if length == BLOCK { carried } else { escaped >> length & 1 != 0 };
        escaped
    }

    /// Walks the brackets of the block in which the container may end.
    fn end(&mut self, open: u64, close: u64) -> Option<usize> {
        let mut brackets = open | close;
        while brackets != 0 {
            let at = brackets.trailing_zeros();
            brackets &= brackets - 1;
            if open >> at & 1 != 0 {
                self.depth += 1;
            } else {
                self.depth -= 1;
            }
            if self.depth == 0 {
                return Some(at as usize + 1);
            }
        }
        None
    }
}

impl Masks {
    /// Masks of eight bytes, compared in one register. (The vector instructions for sixteen need
    /// `unsafe`, and the compiler does not find them by itself.)
    fn of(block: &[u8; BLOCK]) -> Self {
        let mut masks = Self { quote: 0, backslash: 0, open: 0, close: 0 };
        let (words, _) = block.as_chunks::<8>();
        for (position, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            // `[` and `{`, and `]` and `}`, differ in this bit alone.
            let lowered = word | splat(0x20);
            let shift = 8 * position;
            masks.quote |= gather(equal(word, b'"')) << shift;
            masks.open |= gather(equal(lowered, b'{')) << shift;
            masks.close |= gather(equal(lowered, b'}')) << shift;
            let backslash = equal(word, b'\\');
            if backslash != 0 {
                masks.backslash |= gather(backslash) << shift;
            }
        }
        masks
    }
}

const fn splat(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The high bit of each byte that is equal.
const fn equal(word: u64, byte: u8) -> u64 {
    let zero = word ^ splat(byte);
    let low = splat(0x7f);
    !(((zero & low) + low) | zero | low)
}

/// The high bits of eight bytes, as one byte.
const fn gather(high: u64) -> u64 {
    (high >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"\"\\{}[] az\xff\xdb".to_vec()), BLOCK)
    }

    /// A block, or a part of a long text.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![block(), prop::collection::vec(Just(b'a'), 0..200)]
    }

    proptest! {
        #[test]
        fn masks_have_a_bit_for_each_byte(bytes in block()) {
            let block: &[u8; BLOCK] = bytes.as_slice().try_into().expect("64 bytes");
            let masks = Masks::of(block);
            for (at, byte) in block.iter().enumerate() {
                prop_assert_eq!(masks.quote >> at & 1 == 1, *byte == b'"');
                prop_assert_eq!(masks.backslash >> at & 1 == 1, *byte == b'\\');
                prop_assert_eq!(masks.open >> at & 1 == 1, matches!(byte, b'{' | b'['));
                prop_assert_eq!(masks.close >> at & 1 == 1, matches!(byte, b'}' | b']'));
            }
        }

        #[test]
        fn blocks_skip_like_single_bytes(bytes in prop::collection::vec(piece(), 1..6)) {
            let bytes = bytes.concat();
            let mut slow = Skip::new();
            let mut expected = Skipped::More;
            for (at, byte) in bytes.iter().enumerate() {
                if slow.run(&[*byte]) != Skipped::More {
                    expected = Skipped::End(at + 1);
                    break;
                }
            }
            prop_assert_eq!(Skip::new().run(&bytes), expected);
        }
    }

    #[test]
    fn a_text_ends_behind_its_escapes_wherever_blocks_end() {
        for before in 0..2 * BLOCK {
            for escape in [r"\n", r#"\""#, r"\\", r#"\\\""#] {
                let text = ["a".repeat(before), escape.to_owned(), "}".repeat(3 * BLOCK)].concat();
                let object = format!("\"k\":\"{text}\"}}");
                let ended = Skip::new().run(object.as_bytes());
                assert_eq!(ended, Skipped::End(object.len()), "{escape} at {before}");
            }
        }
    }
}
