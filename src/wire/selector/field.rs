//! Field selectors (`apimachinery/pkg/fields/selector.go`), as far as needed to find and replace a
//! name in them.

use std::borrow::Cow;

/// A parsed field selector, which keeps the text of its terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

/// The error for a text that is not a field selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    /// A term without an operator.
    #[error("field selector: term {0:?} needs one of = == !=")]
    NoOperator(String),
    /// A value with `,`, `=` or `\` that is not escaped by `\`.
    #[error("field selector: value {0:?} must escape each of , = \\ by a \\ and nothing else")]
    Escape(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    raw: String,
    field: String,
    /// Whether the field must have the value; else it must not.
    has_value: bool,
    value: String,
}

impl FieldSelector {
    /// Reads the API server's string form, as in `?fieldSelector=`. Spaces are part of the field or
    /// value around them, as in the API server.
    pub fn parse(text: &str) -> Result<Self, FieldSelectorError> {
        let terms = split(text).filter(|term| !term.is_empty()).map(Term::parse);
        Ok(Self { terms: terms.collect::<Result<_, _>>()? })
    }

    /// The value that a field must have. Of several, the API server's first: it sorts the terms by
    /// their text.
    pub fn requires(&self, field: &str) -> Option<&str> {
        let demands = |term: &&Term| term.field == field && term.has_value;
        self.terms.iter().filter(demands).min_by_key(|term| &term.raw).map(|term| &*term.value)
    }

    /// The selector with values of one field replaced if `replace` returns a new one. Both operators
    /// are treated so (an excluded name is still a name). The other terms stay unchanged. `None` if
    /// nothing was replaced.
    pub fn replace(
        &self,
        field: &str,
        mut replace: impl FnMut(&str) -> Option<String>,
    ) -> Option<String> {
        let mut replaced = false;
        let terms: Vec<Cow<'_, str>> = self
            .terms
            .iter()
            .map(|term| {
                match Some(&term.value).filter(|_| term.field == field).and_then(|old| replace(old))
                {
                    Some(new) => {
                        replaced = true;
                        let operator = if term.has_value { "=" } else { "!=" };
                        Cow::Owned(format!("{field}{operator}{}", escape(&new)))
                    }
                    None => Cow::Borrowed(&*term.raw),
                }
            })
            .collect();
        replaced.then(|| terms.join(","))
    }
}

impl Term {
    fn parse(raw: &str) -> Result<Self, FieldSelectorError> {
        // The first operator of the text; of two at one place the longer one.
        let at = raw
            .find(['=', '!'])
            .and_then(|first| (first..raw.len()).find(|at| operator(raw, *at).is_some()));
        let Some((at, (has_value, length))) = at.and_then(|at| Some((at, operator(raw, at)?)))
        else {
            return Err(FieldSelectorError::NoOperator(raw.to_owned()));
        };
        let field = raw.get(..at).unwrap_or_default().to_owned();
        let value = unescape(raw.get(at + length..).unwrap_or_default())?;
        Ok(Self { raw: raw.to_owned(), field, has_value, value })
    }
}

/// Whether the operator at a place is no `!=`, and its length. There are `=`, `==` and `!=` alone.
fn operator(raw: &str, at: usize) -> Option<(bool, usize)> {
    match raw.as_bytes().get(at..)? {
        [b'!', b'=', ..] => Some((false, 2)),
        [b'=', b'=', ..] => Some((true, 2)),
        [b'=', ..] => Some((true, 1)),
        _ => None,
    }
}

/// Splits at each comma that no backslash escapes.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |character| {
        let splits = character == ',' && !escaped;
        escaped = character == '\\' && !escaped;
        splits
    })
}

fn unescape(value: &str) -> Result<String, FieldSelectorError> {
    let broken = || FieldSelectorError::Escape(value.to_owned());
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => characters
                .next()
                .filter(|next| matches!(next, '\\' | ',' | '='))
                .ok_or_else(broken)?,
            ',' | '=' => return Err(broken()),
            other => other,
        });
    }
    Ok(plain)
}

/// The term that requires one value of a field.
pub fn equal_to(field: &str, value: &str) -> String {
    format!("{field}={}", escape(value))
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}
