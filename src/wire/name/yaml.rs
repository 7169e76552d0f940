//! The name in JSON that is sent as YAML, which is how kubectl and client-go apply. Other YAML is
//! not read: that takes a reader like the API server's own, and time that other requests wait for.

use super::{NameError, json, splice};

/// # Errors
/// [`NameError::NotJson`] for everything other than JSON, well-formed YAML or not.
pub(super) fn rename(
    body: &[u8],
    rename: impl Fn(&str) -> Option<String>,
) -> Result<Option<Vec<u8>>, NameError> {
    let text = std::str::from_utf8(body).map_err(|_| NameError::NotJson)?;
    let found = match json::find(text) {
        Err(NameError::Malformed(_)) => return Err(NameError::NotJson),
        found => found?,
    };
    let raw = found.as_ref().and_then(|found| text.get(found.at.clone()));
    if raw.is_some_and(|raw| raw.contains(LINE_BREAKS.map(|(one, _)| one))) {
        return Err(NameError::LineBreak);
    }
    Ok(splice(body, found, rename, quote))
}

/// Line breaks in YAML 1.1, which the API server reads; ordinary characters in JSON.
const LINE_BREAKS: [(char, &str); 3] =
    [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];

/// A JSON string that YAML reads as the same.
fn quote(_old: &[u8], new: &str) -> Vec<u8> {
    let mut quoted = json::text(new);
    for (one, escape) in LINE_BREAKS {
        quoted = quoted.replace(one, escape);
    }
    quoted.into_bytes()
}
