//! Percent-encoding as Go's `net/url` reads it.

use std::borrow::Cow;

/// A `%` that is not followed by two hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BrokenEscape;

/// The escapes that are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// A path: `%XX` only.
    Path,
    /// A query: `%XX`, and `+` for a space.
    Query,
}

/// Decodes as Go's `url.unescape` does; borrows if there is nothing to decode.
pub(super) fn unescape(raw: &str, mode: Mode) -> Result<Cow<'_, [u8]>, BrokenEscape> {
    let bytes = raw.as_bytes();
    let special = match mode {
        Mode::Path => memchr::memchr(b'%', bytes),
        Mode::Query => memchr::memchr2(b'%', b'+', bytes),
    };
    let Some(start) = special else {
        return Ok(Cow::Borrowed(bytes));
    };
    let (plain, rest) = bytes.split_at(start);
    let mut decoded = Vec::with_capacity(bytes.len());
    decoded.extend_from_slice(plain);
    let mut rest = rest.iter();
    while let Some(&byte) = rest.next() {
        decoded.push(match byte {
            b'%' => hex_pair(rest.next(), rest.next())?,
            b'+' if mode == Mode::Query => b' ',
            other => other,
        });
    }
    Ok(Cow::Owned(decoded))
}

/// Whether [`unescape`] would succeed.
pub(super) fn is_escaped_well(raw: &str) -> bool {
    let bytes = raw.as_bytes();
    memchr::memchr_iter(b'%', bytes).all(|at| {
        let digits = bytes.get(at + 1..at + 3).unwrap_or_default();
        digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit)
    })
}

fn hex_pair(high: Option<&u8>, low: Option<&u8>) -> Result<u8, BrokenEscape> {
    let high = high.copied().and_then(hex_value).ok_or(BrokenEscape)?;
    let low = low.copied().and_then(hex_value).ok_or(BrokenEscape)?;
    Ok(high << 4 | low)
}

/// The value of one hexadecimal digit of either case.
pub(super) fn hex_value(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| value.try_into().ok())
}
