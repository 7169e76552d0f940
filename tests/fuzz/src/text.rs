//! The parts of a query.

use std::borrow::Cow;

use ctrlmesh::wire::{FieldSelector, Query, Selector, query::MAX_PAIRS};

/// One pair as Go reads it, and as it stood there.
struct Pair<'a> {
    raw: &'a str,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// `url.ParseQuery`: broken parts are left out.
fn pairs(raw: &str) -> Vec<Pair<'_>> {
    let read = |raw| {
        let (key, value) = str::split_once(raw, '=').unwrap_or((raw, ""));
        let is_read = !raw.is_empty() && !raw.contains(';');
        let pair = || Some(Pair { raw, key: unescape(key, true)?, value: unescape(value, true)? });
        is_read.then(pair).flatten()
    };
    raw.split('&').filter_map(read).collect()
}

/// `url.unescape`: `None` for a `%` without its two digits.
pub(crate) fn unescape(text: &str, is_query: bool) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                u8::try_from(high << 4 | low).ok()?
            }
            b'+' if is_query => b' ',
            other => other,
        });
    }
    Some(out)
}

/// The first value of a key.
pub(crate) fn first(raw: &str, key: &str) -> Option<String> {
    let pair = pairs(raw).into_iter().find(|pair| pair.key == key.as_bytes())?;
    Some(String::from_utf8_lossy(&pair.value).into_owned())
}

/// A query, then on lines of their own a key and the value that it is to have.
pub(crate) fn query(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut lines = text.splitn(3, '\n');
    let (raw, key, value) =
        (lines.next().unwrap_or_default(), lines.next().unwrap_or("watch"), lines.next());
    let count = raw.split('&').count();
    let Ok(query) = Query::parse(Some(raw)) else {
        assert!(count > MAX_PAIRS);
        return;
    };
    assert!(count <= MAX_PAIRS);
    let old = pairs(raw);
    let pieces = raw.split('&').filter(|piece| !piece.is_empty()).count();
    assert_eq!(query.broken_pairs(), pieces - old.len());
    for key in [key, "labelSelector", "watch", ""] {
        assert_eq!(query.first(key).map(Cow::into_owned), first(raw, key), "{key:?}");
    }
    check_rewrite(&query, &old, key, value);
}

/// Only the key is changed, and what Go leaves out is gone.
fn check_rewrite(query: &Query<'_>, old: &[Pair<'_>], key: &str, value: Option<&str>) {
    let text = query.rewrite(&[(key, value)]);
    let mut new = pairs(&text).into_iter();
    assert_eq!(Query::parse(Some(&text)).map(|query| query.broken_pairs()), Ok(0), "{text}");
    let mut is_set = false;
    for pair in old {
        if pair.key != key.as_bytes() {
            assert_eq!(new.next().map(|pair| pair.raw), Some(pair.raw));
        } else if let (Some(value), false) = (value, is_set) {
            is_set = true;
            check_set(new.next(), key, value);
        }
    }
    if let (Some(value), false) = (value, is_set) {
        check_set(new.next(), key, value);
    }
    assert!(new.next().is_none());
}

fn check_set(pair: Option<Pair<'_>>, key: &str, value: &str) {
    let pair = pair.expect("the new value");
    assert_eq!((pair.key.as_slice(), pair.value.as_slice()), (key.as_bytes(), value.as_bytes()));
}

/// A label selector, a line that is another one, and the same as field selectors.
pub(crate) fn selector(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (text, other) = text.split_once('\n').unwrap_or((text, "a,!b,c in (d,e),f notin (g),h>1"));
    if let (Ok(one), Ok(two)) = (Selector::parse(text), Selector::parse(other)) {
        check_label(&one);
        check_label(&two);
        let both = one.and(&two);
        check_label(&both);
        assert_eq!(both, two.and(&one));
        for value in [None, Some(""), Some("1"), Some("d")] {
            let matches = |selector: &Selector| selector.matches(|_| value);
            assert_eq!(matches(&both), matches(&one) && matches(&two), "{value:?}");
        }
    }
    let own = FieldSelector::parse(text);
    let naive = terms(text);
    assert_eq!(own.is_ok(), naive.is_some(), "{text:?}");
    if let (Ok(own), Some(naive)) = (own, naive) {
        check_field(&own, &naive);
    }
}

/// A written selector is read as the same, and is the same when it is written again.
fn check_label(selector: &Selector) {
    let text = selector.to_string();
    assert_eq!(Selector::parse(&text).as_ref(), Ok(selector), "{text:?}");
    assert_eq!(&selector.and(selector), selector);
    assert_eq!(&selector.and(&Selector::everything()), selector);
    assert_eq!(selector.is_everything(), text.is_empty());
}

/// `lhs`, whether they are to be equal, `rhs`.
type Term = (String, bool, String);

/// `fields.ParseSelector`, in its order; `None` where it fails.
pub(crate) fn terms(text: &str) -> Option<Vec<Term>> {
    let (mut parts, mut part, mut is_escaped) = (Vec::new(), String::new(), false);
    for character in text.chars() {
        if character == ',' && !is_escaped {
            parts.push(std::mem::take(&mut part));
            continue;
        }
        is_escaped = character == '\\' && !is_escaped;
        part.push(character);
    }
    parts.push(part);
    parts.sort_unstable();
    parts.retain(|part| !part.is_empty());
    parts.iter().map(|part| term(part)).collect()
}

fn term(text: &str) -> Option<Term> {
    for (at, _) in text.char_indices() {
        let (lhs, rest) = text.split_at(at);
        for operator in ["!=", "==", "="] {
            if let Some(rhs) = rest.strip_prefix(operator) {
                return Some((lhs.to_owned(), operator != "!=", unescape_value(rhs)?));
            }
        }
    }
    None
}

fn unescape_value(text: &str) -> Option<String> {
    let (mut out, mut is_escaped) = (String::new(), false);
    for character in text.chars() {
        match (is_escaped, character) {
            (true, '\\' | ',' | '=') => is_escaped = false,
            (true, _) | (false, ',' | '=') => return None,
            (false, '\\') => {
                is_escaped = true;
                continue;
            }
            (false, _) => {}
        }
        out.push(character);
    }
    (!is_escaped).then_some(out)
}

/// The value that a field must have (`RequiresExactMatch`).
pub(crate) fn required(terms: &[Term], field: &str) -> Option<String> {
    let found = terms.iter().find(|(lhs, is_equal, _)| lhs == field && *is_equal)?;
    Some(found.2.clone())
}

fn check_field(own: &FieldSelector, naive: &[Term]) {
    let fields = naive.iter().map(|(field, _, _)| field.as_str()).chain(["metadata.name"]);
    for field in fields {
        assert_eq!(own.requires(field).map(str::to_owned), required(naive, field), "{field:?}");
        let is_there = naive.iter().any(|(lhs, _, _)| lhs == field);
        // Every character that must be escaped.
        let new = own.replace(field, |old| Some(format!("{old}\\,=!x")));
        assert_eq!(new.is_some(), is_there);
        let Some(new) = new else { continue };
        let mut expected = naive.to_vec();
        for (_, _, rhs) in expected.iter_mut().filter(|(lhs, _, _)| lhs == field) {
            rhs.push_str("\\,=!x");
        }
        let mut found = terms(&new).unwrap_or_else(|| panic!("{new:?}"));
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected, "{new:?}");
    }
}
