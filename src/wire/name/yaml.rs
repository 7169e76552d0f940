//! The name in YAML, replaced at the place that the parser's events give, so that comments, anchors,
//! and scalars that YAML 1.1 and 1.2 read differently stay as they are. Aliases are never expanded.

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput};

use super::{BodyKind, Found, MAX_PARTS, METADATA, NAME, NameError, OBJECT, json, libyaml, splice};

/// Reads JSON as JSON: most of what is applied is written so, and there is no doubt about it. The
/// rest is YAML.
pub(super) fn rename(
    body: &str,
    rename: impl Fn(&str) -> Option<String>,
) -> Result<Option<Vec<u8>>, NameError> {
    match json::find(body) {
        Err(NameError::Malformed(_)) => {}
        found => {
            let found = found?;
            let raw = found.as_ref().and_then(|found| body.get(found.at.clone()));
            if raw.is_some_and(has_line_break) {
                return Err(NameError::LineBreak);
            }
            return Ok(splice(body.as_bytes(), found, rename, quote));
        }
    }
    if has_line_break(body) {
        return Err(NameError::LineBreak);
    }
    let found = find(body)?;
    libyaml::agrees(body, found.as_ref())?;
    let renamed = splice(body.as_bytes(), found, rename, quote);
    // A position from another's parser is believed when the result reads so.
    if let Some(renamed) = &renamed {
        let renamed = std::str::from_utf8(renamed).map_err(|_| indirect(NAME))?;
        if !differ_in_one_scalar(body, renamed) {
            return Err(indirect(NAME));
        }
        libyaml::agrees(renamed, find(renamed)?.as_ref())?;
    }
    Ok(renamed)
}

/// Of YAML 1.1 alone: YAML 1.2 and JSON read these as any other character.
const LINE_BREAKS: [(char, &str); 3] =
    [('\u{85}', "\\u0085"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];

fn has_line_break(text: &str) -> bool {
    text.contains(LINE_BREAKS.map(|(one, _)| one))
}

/// A string in JSON, which every YAML reads alike.
fn quote(_old: &[u8], new: &str) -> Vec<u8> {
    let mut quoted = json::text(new);
    for (one, escape) in LINE_BREAKS {
        quoted = quoted.replace(one, escape);
    }
    quoted.into_bytes()
}

/// Where the object's name stands in the one document of a stream. The API server reads the first
/// and drops the others, which nobody can want, so they are refused.
fn find(body: &str) -> Result<Option<Found>, NameError> {
    let mut document = Document { events: parser(body), left: MAX_PARTS };
    let none = NameError::WrongType { field: OBJECT, expected: "an object" };
    loop {
        match document.next()?.0 {
            Event::StreamStart => {}
            Event::DocumentStart(..) => break,
            _ => return Err(none),
        }
    }
    let found = match document.next()?.0 {
        Event::MappingStart(_, 0, None) => {
            document.member("metadata", OBJECT, METADATA, |document, event, _| {
                in_metadata(document, event)
            })?
        }
        other => return Err(unexpected(&other, OBJECT, "an object")),
    };
    loop {
        match document.next()?.0 {
            Event::DocumentEnd => {}
            Event::StreamEnd => return Ok(found),
            _ => return Err(NameError::SeveralDocuments),
        }
    }
}

fn in_metadata(document: &mut Document<'_>, event: &Event<'_>) -> Result<Option<Found>, NameError> {
    match event {
        Event::MappingStart(_, 0, None) => {
            document.member("name", METADATA, NAME, |_, event, span| in_name(event, span))
        }
        event if is_null(event) => Ok(None),
        other => Err(unexpected(other, METADATA, "an object")),
    }
}

fn in_name(event: &Event<'_>, span: Span) -> Result<Option<Found>, NameError> {
    match event {
        event if is_null(event) => Ok(None),
        Event::Scalar(
            text,
            ScalarStyle::Plain | ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted,
            0,
            None,
        ) => {
            let (start, end) = (span.start.byte_offset(), span.end.byte_offset());
            let (Some(start), Some(end)) = (start, end) else {
                return Err(indirect(NAME));
            };
            Ok(Some(Found { name: text.clone().into_owned(), at: start..end }))
        }
        Event::Scalar(..) => Err(indirect(NAME)),
        other => Err(unexpected(other, NAME, "a string")),
    }
}

/// What is shared, tagged or elsewhere is indirect, all else of the wrong type.
fn unexpected(event: &Event<'_>, field: &'static str, expected: &'static str) -> NameError {
    match event {
        Event::MappingStart(_, 0, None)
        | Event::SequenceStart(_, 0, None)
        | Event::Scalar(_, _, 0, None) => NameError::WrongType { field, expected },
        _ => indirect(field),
    }
}

const fn indirect(field: &'static str) -> NameError {
    NameError::Indirect { field }
}

/// YAML 1.1's null.
fn is_null(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::Scalar(text, ScalarStyle::Plain, 0, None)
            if matches!(text.as_ref(), "" | "~" | "null" | "Null" | "NULL")
    )
}

struct Document<'a> {
    events: Parser<'a, StrInput<'a>>,
    left: usize,
}

impl<'a> Document<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), NameError> {
        self.left = self.left.checked_sub(1).ok_or(NameError::TooManyParts)?;
        match self.events.next() {
            Some(Ok(event)) => Ok(event),
            Some(Err(_)) | None => Err(NameError::Malformed(BodyKind::Yaml)),
        }
    }

    /// Passes the mapping that has begun: what `read` makes of the value of `key`. Keys that are
    /// no plain or quoted strings may come to anything, as a merge key may bring in any.
    fn member(
        &mut self,
        key: &str,
        mapping: &'static str,
        member: &'static str,
        mut read: impl FnMut(&mut Self, &Event<'a>, Span) -> Result<Option<Found>, NameError>,
    ) -> Result<Option<Found>, NameError> {
        let mut found = None;
        loop {
            let this = match self.next()?.0 {
                Event::MappingEnd => return Ok(found.flatten()),
                Event::Scalar(text, style, _, None)
                    if text != "<<" || style != ScalarStyle::Plain =>
                {
                    text
                }
                _ => return Err(indirect(mapping)),
            };
            let (value, span) = self.next()?;
            if this != key {
                self.skip(&value)?;
            } else if found.replace(read(self, &value, span)?).is_some() {
                return Err(NameError::Repeated { field: member });
            }
        }
    }

    /// Passes what is left of the node that has begun.
    fn skip(&mut self, begun: &Event<'_>) -> Result<(), NameError> {
        let mut depth = depth_change(begun);
        while depth > 0 {
            depth += depth_change(&self.next()?.0);
        }
        Ok(())
    }
}

const fn depth_change(event: &Event<'_>) -> i32 {
    match event {
        Event::MappingStart(..) | Event::SequenceStart(..) => 1,
        Event::MappingEnd | Event::SequenceEnd => -1,
        _ => 0,
    }
}

/// Whether both are the same but for one scalar.
fn differ_in_one_scalar(before: &str, after: &str) -> bool {
    let (mut before, mut after) = (parser(before), parser(after));
    let mut differences = 0;
    loop {
        match (before.next(), after.next()) {
            (None, None) => return differences == 1,
            (Some(Ok((before, _))), Some(Ok((after, _)))) if before == after => {}
            (Some(Ok((Event::Scalar(..), _))), Some(Ok((Event::Scalar(..), _)))) => {
                differences += 1
            }
            _ => return false,
        }
    }
}

/// Nests 255 deep by itself, which no object comes near.
fn parser(body: &str) -> Parser<'_, StrInput<'_>> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    Parser::new_from_str_with_options(body, options)
}
