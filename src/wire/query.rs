//! A raw query string, read as the API server reads it (Go's `url.ParseQuery`, errors ignored,
//! first value of a key).

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::escape::{Mode, is_escaped_well, unescape};

/// Most pairs in one query. Go 1.26 ignores a query of more than 10,000 pairs **altogether** (a
/// selector in it would be lost, and everything returned), older versions have no limit; this is
/// far below, whatever the server was built with.
pub const MAX_PAIRS: usize = 1024;

/// Characters that we escape in a query or a segment of a path: all but RFC 3986's unreserved ones,
/// as Go's `url.QueryEscape`.
pub const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A query that an API server might read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Parameters beyond [`MAX_PAIRS`].
    #[error("query has {0} parameters, at most {MAX_PAIRS} are read reliably by every API server")]
    TooManyPairs(usize),
}

/// A raw query whose pairs can be read and rewritten without decoding the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Query<'a> {
    raw: &'a str,
}

impl<'a> Query<'a> {
    /// Takes the text behind the `?`; `None` is the same as an empty text.
    pub fn parse(raw: Option<&'a str>) -> Result<Self, QueryError> {
        let raw = raw.unwrap_or_default();
        // Pairs are counted before any is parsed, as in Go. Each but the first has an `&`, so a
        // query of fewer bytes needs no count.
        if raw.len() >= MAX_PAIRS {
            let found = memchr::memchr_iter(b'&', raw.as_bytes()).count() + 1;
            if found > MAX_PAIRS {
                return Err(QueryError::TooManyPairs(found));
            }
        }
        Ok(Self { raw })
    }

    /// The raw query.
    pub const fn as_str(&self) -> &'a str {
        self.raw
    }

    /// The decoded value of the first pair with this key, which is the only one that the API server
    /// uses. A key without `=` has the value `""`. Pairs that Go rejects are skipped. Bytes that
    /// are not UTF-8 become U+FFFD, which no key, selector or name has.
    pub fn first(&self, key: &str) -> Option<Cow<'a, str>> {
        self.pairs().find(|pair| pair.key_is(key)).map(Parameter::value)
    }

    /// Number of pairs that Go drops: broken percent-encoding, or a `;`.
    pub fn broken_pairs(&self) -> usize {
        self.pieces().filter(|piece| Parameter::parse(piece).is_none()).count()
    }

    /// The query with keys set (`Some`, unescaped) or removed (`None`). A key that is set
    /// occurs once, at its first place or at the end, canonically escaped; one that is set and
    /// removed is set if that comes first. All other pairs stay byte for byte, except those that Go
    /// drops: another server might read them.
    pub fn rewrite(&self, changes: &[(&str, Option<&str>)]) -> String {
        let added: usize =
            changes.iter().map(|(key, value)| key.len() + 3 * value.map_or(0, str::len) + 2).sum();
        let mut out = String::with_capacity(self.raw.len() + added);
        let mut written = vec![false; changes.len()];
        for pair in self.pairs() {
            let change = changes.iter().zip(&mut written).find(|((key, _), _)| pair.key_is(key));
            match change {
                None => push_pair(&mut out, |out| out.push_str(pair.raw)),
                Some(((key, Some(value)), written)) if !*written => {
                    *written = true;
                    push_pair(&mut out, |out| push_escaped(out, key, value));
                }
                Some(_) => {}
            }
        }
        for ((key, value), written) in changes.iter().zip(written) {
            if let (Some(value), false) = (value, written) {
                push_pair(&mut out, |out| push_escaped(out, key, value));
            }
        }
        out
    }

    /// The pairs that Go accepts.
    pub(super) fn pairs(&self) -> impl DoubleEndedIterator<Item = Parameter<'a>> + use<'a> {
        self.pieces().filter_map(Parameter::parse)
    }

    fn pieces(&self) -> impl DoubleEndedIterator<Item = &'a str> + use<'a> {
        self.raw.split('&').filter(|piece| !piece.is_empty())
    }
}

/// A boolean as the API server reads it (`apimachinery/pkg/runtime/conversion.go`): `0` and `false`
/// in any case are false, every other value is true, also the empty one.
pub(super) fn is_true(value: &str) -> bool {
    // Go's `strings.EqualFold`, for which U+017F equals `s`.
    value != "0" && !value.replace('\u{17f}', "s").eq_ignore_ascii_case("false")
}

/// One pair that Go accepts, not decoded.
#[derive(Clone, Copy)]
pub(super) struct Parameter<'a> {
    raw: &'a str,
    key: &'a str,
    value: &'a str,
}

impl<'a> Parameter<'a> {
    fn parse(raw: &'a str) -> Option<Self> {
        let (key, value) = raw.split_once('=').unwrap_or((raw, ""));
        let accepted = memchr::memchr(b';', raw.as_bytes()).is_none() && is_escaped_well(raw);
        accepted.then_some(Self { raw, key, value })
    }

    fn key_is(self, key: &str) -> bool {
        // Decoding never lengthens a key.
        self.key.len() >= key.len() && *self.key() == *key.as_bytes()
    }

    /// The decoded key.
    pub(super) fn key(self) -> Cow<'a, [u8]> {
        unescape(self.key, Mode::Query).unwrap_or_default()
    }

    /// The decoded value.
    pub(super) fn value(self) -> Cow<'a, str> {
        match unescape(self.value, Mode::Query) {
            Ok(Cow::Owned(bytes)) => Cow::Owned(match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(bad) => String::from_utf8_lossy(bad.as_bytes()).into_owned(),
            }),
            // Nothing to decode.
            _ => Cow::Borrowed(self.value),
        }
    }
}

fn push_pair(out: &mut String, write: impl FnOnce(&mut String)) {
    if !out.is_empty() {
        out.push('&');
    }
    write(out);
}

fn push_escaped(out: &mut String, key: &str, value: &str) {
    out.extend(utf8_percent_encode(key, ESCAPED));
    out.push('=');
    out.extend(utf8_percent_encode(value, ESCAPED));
}
