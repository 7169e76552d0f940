//! JSON, YAML and CBOR as Kubernetes' serializers write them.

use serde::Serialize;
use serde_json::{Map, Value};

/// Appends JSON as Go writes it: without spaces, safe inside HTML.
pub(crate) fn json(object: &(impl Serialize + ?Sized), out: &mut Vec<u8>) {
    // Writing texts and numbers into memory cannot fail.
    let plain = serde_json::to_string(object).unwrap_or_default();
    for character in plain.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.extend_from_slice(format!("\\u{:04x}", u32::from(character)).as_bytes());
            }
            other => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Appends an event and its newline.
pub(crate) fn json_event(kind: &str, object: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
    json(object, out);
    out.extend_from_slice(b"}\n");
}

/// Appends YAML: fields in alphabetical order, one a line; texts as in JSON, of which YAML is a
/// superset. Without quotes YAML 1.1, which Kubernetes reads, takes more texts for something else
/// than YAML 1.2.
pub(super) fn yaml(fields: &Map<String, Value>, indent: usize, out: &mut Vec<u8>) {
    for (name, value) in fields {
        // The first field of a list's item follows the dash.
        if !out.ends_with(b"- ") {
            out.resize(out.len() + indent, b' ');
        }
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push(b'\n');
                yaml(inner, indent + 2, out);
            }
            Value::Array(items) if items.iter().all(Value::is_object) => {
                out.push(b'\n');
                for item in items.iter().filter_map(Value::as_object) {
                    out.resize(out.len() + indent, b' ');
                    out.extend_from_slice(b"- ");
                    yaml(item, indent + 2, out);
                }
            }
            plain => {
                out.push(b' ');
                json(plain, out);
                out.push(b'\n');
            }
        }
    }
}

/// Appends CBOR: fields in core deterministic order; strings and keys are byte strings, as
/// Kubernetes' serializer writes them.
pub(crate) fn cbor(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => {
            head(5, fields.len(), out);
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| (name.len(), *name));
            for (name, value) in sorted {
                cbor_text(name, out);
                cbor(value, out);
            }
        }
        Value::Array(items) => {
            head(4, items.len(), out);
            items.iter().for_each(|item| cbor(item, out));
        }
        Value::String(text) => cbor_text(text, out),
        Value::Number(number) => {
            // A Status has no other numbers than its code and seconds.
            let number = number.as_u64().and_then(|number| usize::try_from(number).ok());
            head(0, number.unwrap_or_default(), out);
        }
        Value::Bool(is_true) => out.push(0xf4 | u8::from(*is_true)),
        Value::Null => out.push(0xf6),
    }
}

/// Appends the part of an event before its object.
pub(crate) fn cbor_event(kind: &str, out: &mut Vec<u8>) {
    head(5, 2, out);
    for text in ["type", kind, "object"] {
        cbor_text(text, out);
    }
}

pub(crate) fn cbor_text(text: &str, out: &mut Vec<u8>) {
    head(2, text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// The head of an item, major type and argument, in the fewest bytes (RFC 8949, 4.2.1).
pub(crate) fn head(major: u8, argument: usize, out: &mut Vec<u8>) {
    let first = |low: u8| major << 5 | low;
    if let Ok(small) = u8::try_from(argument) {
        if small < 24 {
            out.push(first(small));
        } else {
            out.extend_from_slice(&[first(24), small]);
        }
    } else if let Ok(short) = u16::try_from(argument) {
        out.push(first(25));
        out.extend_from_slice(&short.to_be_bytes());
    } else if let Ok(word) = u32::try_from(argument) {
        out.push(first(26));
        out.extend_from_slice(&word.to_be_bytes());
    } else {
        out.push(first(27));
        out.extend_from_slice(&(argument as u64).to_be_bytes());
    }
}
