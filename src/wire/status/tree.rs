//! JSON and CBOR as Kubernetes' serializers write them.

use serde::Serialize;
use serde_json::Value;

/// Appends JSON as Go writes it: without spaces, safe inside HTML.
pub(in crate::wire) fn json(object: &(impl Serialize + ?Sized), out: &mut Vec<u8>) {
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
pub(in crate::wire) fn json_event(kind: &str, object: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
    json(object, out);
    out.extend_from_slice(b"}\n");
}

/// Appends CBOR: fields in core deterministic order; strings and keys are byte strings, as
/// Kubernetes' serializer writes them.
pub(in crate::wire) fn cbor(value: &Value, out: &mut Vec<u8>) {
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
            let number = number.as_u64().and_then(|number| usize::try_from(number).ok());
            head(0, number.unwrap_or_default(), out);
        }
        Value::Bool(is_true) => out.push(0xf4 | u8::from(*is_true)),
        Value::Null => out.push(0xf6),
    }
}

/// Appends the part of an event before its object.
pub(in crate::wire) fn cbor_event(kind: &str, out: &mut Vec<u8>) {
    head(5, 2, out);
    for text in ["type", kind, "object"] {
        cbor_text(text, out);
    }
}

/// Appends a text.
pub(in crate::wire) fn cbor_text(text: &str, out: &mut Vec<u8>) {
    head(2, text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// The head of an item, major type and argument, in the fewest bytes (RFC 8949, 4.2.1).
pub(in crate::wire) fn head(major: u8, argument: usize, out: &mut Vec<u8>) {
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
