//! A tree, written as JSON, YAML or CBOR as Kubernetes' serializers write it.

use crate::wire::object::walk::SELF_DESCRIBED;

/// A value in a Status or a similar object.
pub(in crate::wire) enum Node<'a> {
    /// An API object: tagged as self-described in CBOR.
    Object(Vec<(&'static str, Self)>),
    Map(Vec<(&'static str, Self)>),
    List(Vec<Self>),
    Text(&'a str),
    Number(u32),
}

impl Node<'_> {
    /// Appends JSON: fields in the given order, without spaces.
    pub(in crate::wire) fn json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Object(fields) | Self::Map(fields) => {
                let mut open = b'{';
                for (name, value) in fields {
                    out.push(open);
                    open = b',';
                    text(name, out);
                    out.push(b':');
                    value.json(out);
                }
                out.extend_from_slice(if fields.is_empty() { b"{}" } else { b"}" });
            }
            Self::List(items) => {
                out.push(b'[');
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        out.push(b',');
                    }
                    item.json(out);
                }
                out.push(b']');
            }
            Self::Text(value) => text(value, out),
            Self::Number(value) => out.extend_from_slice(value.to_string().as_bytes()),
        }
    }

    /// Appends YAML: fields in alphabetical order, one a line; strings as in JSON, of which YAML is
    /// a superset.
    pub(super) fn yaml(&self, out: &mut Vec<u8>) {
        match self {
            Self::Object(fields) | Self::Map(fields) if !fields.is_empty() => {
                self.yaml_lines(0, out)
            }
            _ => {
                self.json(out);
                out.push(b'\n');
            }
        }
    }

    fn yaml_lines(&self, indent: usize, out: &mut Vec<u8>) {
        let (Self::Object(fields) | Self::Map(fields)) = self else {
            return;
        };
        let mut sorted: Vec<_> = fields.iter().collect();
        sorted.sort_unstable_by_key(|(name, _)| *name);
        for (name, value) in sorted {
            // The first field of a list's item follows the dash.
            if !out.ends_with(b"- ") {
                out.resize(out.len() + indent, b' ');
            }
            out.extend_from_slice(name.as_bytes());
            out.push(b':');
            match value {
                Self::Object(inner) | Self::Map(inner) if !inner.is_empty() => {
                    out.push(b'\n');
                    value.yaml_lines(indent + 2, out);
                }
                Self::List(items) => {
                    for item in items {
                        out.push(b'\n');
                        out.resize(out.len() + indent, b' ');
                        out.extend_from_slice(b"- ");
                        item.yaml_lines(indent + 2, out);
                        out.truncate(out.trim_ascii_end().len());
                    }
                    out.push(b'\n');
                }
                _ => {
                    out.push(b' ');
                    value.json(out);
                    out.push(b'\n');
                }
            }
        }
    }

    /// Appends CBOR: fields in core deterministic order; strings and keys are byte strings, as
    /// Kubernetes' serializer writes them.
    pub(in crate::wire) fn cbor(&self, out: &mut Vec<u8>) {
        match self {
            Self::Object(fields) | Self::Map(fields) => {
                if matches!(self, Self::Object(_)) {
                    out.extend_from_slice(SELF_DESCRIBED);
                }
                head(5, fields.len(), out);
                let mut sorted: Vec<_> = fields.iter().collect();
                sorted.sort_unstable_by_key(|(name, _)| (name.len(), *name));
                for (name, value) in sorted {
                    Self::Text(name).cbor(out);
                    value.cbor(out);
                }
            }
            Self::List(items) => {
                head(4, items.len(), out);
                for item in items {
                    item.cbor(out);
                }
            }
            Self::Text(value) => {
                head(2, value.len(), out);
                out.extend_from_slice(value.as_bytes());
            }
            Self::Number(value) => head(0, *value as usize, out),
        }
    }
}

/// A JSON string as Go writes it: safe inside HTML.
fn text(value: &str, out: &mut Vec<u8>) {
    // Writing a string into memory cannot fail.
    let quoted = serde_json::to_string(value).unwrap_or_default();
    for character in quoted.chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.extend_from_slice(format!("\\u{:04x}", u32::from(character)).as_bytes());
            }
            other => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
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
