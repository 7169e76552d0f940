//! Bodies from one description, in the binary encodings.

use serde_json::Value;

/// Encodes by the bits of `style`: strings as text or bytes, lengths indefinite or not, tags in
/// front or not.
pub(super) fn cbor(value: &Value, style: u8, out: &mut Vec<u8>) {
    if style & 4 != 0 {
        out.extend_from_slice(&[0xd9, 0xd9, 0xf7]);
    }
    let indefinite = style & 1 != 0;
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(truth) => out.push(0xf4 + u8::from(*truth)),
        Value::Number(number) => match number.as_u64() {
            Some(number) => head(0, number, out),
            None => {
                out.push(0xfb);
                out.extend_from_slice(&number.as_f64().expect("a number").to_be_bytes());
            }
        },
        Value::String(text) => {
            let major = if style & 2 != 0 { 3 } else { 2 };
            if indefinite {
                out.push(major << 5 | 31);
                for piece in text.as_bytes().chunks(3) {
                    head(major, piece.len() as u64, out);
                    out.extend_from_slice(piece);
                }
                out.push(0xff);
            } else {
                head(major, text.len() as u64, out);
                out.extend_from_slice(text.as_bytes());
            }
        }
        Value::Array(items) => {
            open(4, items.len(), indefinite, out);
            items.iter().for_each(|item| cbor(item, style, out));
            out.extend(indefinite.then_some(0xff));
        }
        Value::Object(fields) => {
            open(5, fields.len(), indefinite, out);
            for (name, value) in fields {
                cbor(&Value::from(name.as_str()), style, out);
                cbor(value, style, out);
            }
            out.extend(indefinite.then_some(0xff));
        }
    }
}

fn open(major: u8, items: usize, indefinite: bool, out: &mut Vec<u8>) {
    if indefinite { out.push(major << 5 | 31) } else { head(major, items as u64, out) }
}

pub(super) fn head(major: u8, argument: u64, out: &mut Vec<u8>) {
    match argument {
        0..24 => out.push(major << 5 | u8::try_from(argument).expect("small")),
        24..0x1_0000 => {
            out.push(major << 5 | 25);
            out.extend_from_slice(&u16::try_from(argument).expect("short").to_be_bytes());
        }
        _ => {
            out.push(major << 5 | 27);
            out.extend_from_slice(&argument.to_be_bytes());
        }
    }
}

pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).expect("seven bits"));
}

/// A field of bytes.
pub(super) fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(number << 3 | 2, &mut out);
    varint(bytes.len() as u64, &mut out);
    out.extend_from_slice(bytes);
    out
}

/// Unknown fields of every wire type.
pub(super) fn noise() -> Vec<u8> {
    let mut out = vec![0x78, 0xff, 0xff, 0x03];
    out.extend_from_slice(&[0x71, 1, 2, 3, 4, 5, 6, 7, 8]);
    out.extend_from_slice(&[0x6d, 1, 2, 3, 4]);
    out.extend_from_slice(&field(1000, b"\x0a\x03abc"));
    out
}

/// Magic and `runtime.Unknown`.
pub(super) fn envelope(raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, b"v1"), field(2, b"Pod")].concat();
    [b"k8s\0".to_vec(), field(1, &meta), field(2, raw), field(3, b""), field(4, b"")].concat()
}

pub(super) fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    [length.as_slice(), message].concat()
}

/// An event about an object with these metadata fields.
pub(super) fn proto_event(kind: &str, metadata: &[u8]) -> Vec<u8> {
    let object = [field(1, metadata), noise()].concat();
    let extension = field(1, &envelope(&object));
    frame(&[field(1, kind.as_bytes()), field(2, &extension)].concat())
}

pub(super) fn annotation(name: &str, value: &str) -> Vec<u8> {
    field(12, &[field(1, name.as_bytes()), field(2, value.as_bytes())].concat())
}

/// The value in protobuf: the fields that the scanner reads, and noise.
pub(super) fn proto(event: &Value) -> Vec<u8> {
    let metadata = &event["object"]["metadata"];
    let mut fields = [field(1, b"name"), noise()].concat();
    if let Some(version) = metadata["resourceVersion"].as_str() {
        fields.extend(field(6, version.as_bytes()));
    }
    for (name, value) in metadata["annotations"].as_object().into_iter().flatten() {
        fields.extend(annotation(name, value.as_str().unwrap_or("other")));
    }
    fields.extend(field(17, b"\x0a\x03abc"));
    proto_event(event["type"].as_str().unwrap_or(""), &fields)
}
