//! YAML as kubectl reads it, in and out.
//!
//! kubectl reads YAML 1.1 (the Go module sigs.k8s.io/yaml): `0644` is 420 and `yes` is true. A YAML
//! 1.2 library would read and print both as strings. A library parses the events; this module
//! resolves the scalars.

use std::collections::{HashMap, hash_map::Entry};

use granit_parser::{Event, Options, Parser, ScalarStyle, StrInput, Tag};
use serde_json::{Map, Number, Value};

/// The maximum number of nodes of a document, aliases expanded.
const MAX_NODES: usize = 1 << 20;

/// The reason why kubectl would not read a text as one document.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    #[error("{0}")]
    Malformed(String),
    #[error("the key `{0}` occurs twice in one mapping: keep one")]
    Twice(String),
    #[error("line {0}: a key is neither text nor a whole number: quote it")]
    Key(usize),
    /// A tag that Kubernetes does not know, and its line.
    #[error("line {0}: the tag `{1}` is not supported: remove it")]
    Tag(usize, String),
    /// Infinity and other numbers that JSON lacks, and the line.
    #[error("line {0}: `{1}` is not a number in JSON: quote it, or write it in decimal")]
    Number(usize, String),
    #[error("it has more than {MAX_NODES} values")]
    TooLarge,
    #[error("line {0}: `<<` merges mappings only")]
    Merge(usize),
    #[error("line {0}: a second document begins without `---` on a line of its own")]
    Several(usize),
}

/// The documents of a text, verbatim, separated by lines that begin with `---`. Blank documents are
/// left out.
pub fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.strip_prefix('\u{feff}').unwrap_or(text).lines() {
        let begun = line
            .strip_prefix("---")
            .filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        match begun {
            None => push_line(&mut documents, line),
            Some(rest) => {
                documents.push(String::new());
                if !rest.trim().is_empty() && !rest.trim_start().starts_with('#') {
                    push_line(&mut documents, rest);
                }
            }
        }
    }
    documents.retain(|document| !document.trim().is_empty());
    documents
}

fn push_line(documents: &mut [String], line: &str) {
    if let Some(last) = documents.last_mut() {
        last.push_str(line);
        last.push('\n');
    }
}

/// The value of one document. `None` if it has only comments. Fails with [`YamlError`].
pub fn parse(document: &str) -> Result<Option<Value>, YamlError> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    let events = Parser::new_from_str_with_options(document, options);
    let mut reader = Reader { events, anchors: HashMap::new(), left: MAX_NODES };
    let mut value = None;
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok(value),
            (Event::StreamStart | Event::DocumentEnd, _) => {}
            (Event::DocumentStart(..), line) if value.is_some() => {
                return Err(YamlError::Several(line));
            }
            (Event::DocumentStart(..), _) => {
                let (event, line) = reader.next()?;
                value = Some(reader.node(event, line)?);
            }
            (other, line) => return Err(unexpected(&other, line)),
        }
    }
}

/// Prints `value` as one document that [`parse`] reads back equal.
pub fn print(value: &Value) -> String {
    // If the library's quotes are read back differently, JSON is printed: it is YAML too.
    match serde_saphyr::to_string(value) {
        Ok(yaml) if matches!(parse(&yaml), Ok(Some(read)) if read == *value) => yaml,
        _ => format!("{value:#}\n"),
    }
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// The value of each anchor, and its number of nodes.
    anchors: HashMap<usize, (Value, usize)>,
    /// The number of nodes that the document may still have.
    left: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), YamlError> {
        match self.events.next() {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => Err(YamlError::Malformed(error.to_string())),
            None => Err(YamlError::Malformed("it ends early".to_owned())),
        }
    }

    fn take(&mut self, nodes: usize) -> Result<(), YamlError> {
        self.left = self.left.checked_sub(nodes).ok_or(YamlError::TooLarge)?;
        Ok(())
    }

    /// The node that `event` begins. The parser limits the nesting to 255.
    fn node(&mut self, event: Event<'a>, line: usize) -> Result<Value, YamlError> {
        let before = self.left;
        self.take(1)?;
        let (anchor, value) = match event {
            Event::Alias(anchor) => {
                let (value, nodes) = self.anchors.get(&anchor).cloned().unwrap_or_default();
                self.take(nodes)?;
                return Ok(value);
            }
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, scalar(&text, style == ScalarStyle::Plain, tag.as_deref(), line)?)
            }
            Event::SequenceStart(_, anchor, tag) => {
                untagged(tag.as_deref(), "seq", line)?;
                (anchor, self.sequence()?)
            }
            Event::MappingStart(_, anchor, tag) => {
                untagged(tag.as_deref(), "map", line)?;
                (anchor, Value::Object(self.mapping()?))
            }
            other => return Err(unexpected(&other, line)),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, (value.clone(), before - self.left));
        }
        Ok(value)
    }

    fn sequence(&mut self) -> Result<Value, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::Array(items)),
                (event, line) => items.push(self.node(event, line)?),
            }
        }
    }

    fn mapping(&mut self) -> Result<Map<String, Value>, YamlError> {
        let (mut map, mut merged) = (HashMap::new(), Map::new());
        loop {
            let (event, line) = self.next()?;
            if event == Event::MappingEnd {
                merged.extend(map);
                return Ok(merged);
            }
            let is_merge =
                matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.node(event, line)?;
            let (event, line) = self.next()?;
            let value = self.node(event, line)?;
            if is_merge {
                merge(&mut merged, value, line)?;
                continue;
            }
            match map.entry(key_text(key).ok_or(YamlError::Key(line))?) {
                Entry::Occupied(twice) => return Err(YamlError::Twice(twice.key().clone())),
                Entry::Vacant(place) => place.insert(value),
            };
        }
    }
}

/// Merges `value` into `into`; mappings merged earlier win.
fn merge(into: &mut Map<String, Value>, value: Value, line: usize) -> Result<(), YamlError> {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                into.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(maps) => maps.into_iter().try_for_each(|map| match map {
            Value::Object(_) => merge(into, map, line),
            _ => Err(YamlError::Merge(line)),
        }),
        _ => Err(YamlError::Merge(line)),
    }
}

/// The text of a key. kubectl shortens fractions in keys and refuses numbers beyond an `i64`.
fn key_text(key: Value) -> Option<String> {
    match key {
        Value::String(text) => Some(text),
        Value::Number(number) if !number.is_i64() => None,
        Value::Bool(_) | Value::Number(_) => Some(key.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn unexpected(event: &Event<'_>, line: usize) -> YamlError {
    YamlError::Malformed(format!("line {line}: {event:?} has no place here"))
}

fn untagged(tag: Option<&Tag>, core: &str, line: usize) -> Result<(), YamlError> {
    match tag {
        Some(tag) if !is_core(tag, core) => Err(YamlError::Tag(line, tag.to_string())),
        _ => Ok(()),
    }
}

fn is_core(tag: &Tag, suffix: &str) -> bool {
    ["tag:yaml.org,2002:", "!!"].iter().any(|core| tag.to_string() == format!("{core}{suffix}"))
}

fn scalar(text: &str, is_plain: bool, tag: Option<&Tag>, line: usize) -> Result<Value, YamlError> {
    match tag {
        None if is_plain => resolve(text).ok_or_else(|| YamlError::Number(line, text.to_owned())),
        None => Ok(text.into()),
        Some(tag) if is_core(tag, "str") => Ok(text.into()),
        Some(tag) => Err(YamlError::Tag(line, tag.to_string())),
    }
}

/// The value of a plain scalar, by go.yaml.in/yaml/v2, resolve.go. `None` if JSON lacks it.
fn resolve(text: &str) -> Option<Value> {
    let value = match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF"
        | "-.inf" | "-.Inf" | "-.INF" => return None,
        _ if text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) => {
            // A scalar that starts with a point keeps its underscores.
            let plain = if text.starts_with('.') { text.to_owned() } else { text.replace('_', "") };
            // A float that is out of range is text.
            let number = integer(&plain).or_else(|| float(&plain));
            number.map_or_else(|| text.into(), Value::Number)
        }
        _ => text.into(),
    };
    Some(value)
}

/// Reads an integer as Go's `strconv.ParseInt` with base 0 does.
fn integer(text: &str) -> Option<Number> {
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    match is_negative {
        false => Some(size.into()),
        true => 0_i64.checked_sub_unsigned(size).map(Number::from),
    }
}

/// Reads a float: `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`. A whole number is an
/// integer in JSON, as Go prints it.
fn float(text: &str) -> Option<Number> {
    const WHOLE: f64 = (1_u64 << 53) as f64;
    // Rust reads the same, and `inf`, `infinity` and `nan` too.
    let float: f64 = text.parse().ok().filter(|_| !text.contains(['n', 'N']))?;
    if float.fract() == 0.0 && float.abs() < WHOLE {
        return format!("{float:.0}").parse::<i64>().ok().map(Number::from);
    }
    Number::from_f64(float)
}

#[cfg(test)]
mod tests {
    use ctrlmesh_wire::{
        Encoding,
        status::{Details, Reason, Status},
    };

    use super::*;

    /// Go reads YAML 1.1, where these are no texts unless they are quoted.
    #[test]
    fn t71_yaml_of_version_1_1_says_the_same() {
        let words =
            ["yes", "N", "on", "~", "0644", "1_000", "12:30:00", "2001-01-01", "<<", "=", "no\n"];
        for word in words {
            let details = Details { name: word.to_owned(), ..Details::default() };
            let status = Status { details: Some(details), ..Status::new(Reason::Expired, word) };
            let yaml = String::from_utf8(status.encode(Encoding::Yaml).into()).unwrap();
            let json = serde_json::from_slice(&status.encode(Encoding::Json)).unwrap();
            assert_eq!(parse(&yaml).unwrap(), Some(json), "{yaml}");
        }
    }
}
