//! Fields of protobuf, as the generated code of `apimachinery` writes them, and the envelopes of
//! objects and events.

use crate::{frames::MAGIC, protobuf::put_varint};

/// The magic and `runtime.Unknown{typeMeta=1, raw=2, contentEncoding=3, contentType=4}`.
pub(crate) fn enveloped(
    api_version: &str,
    kind: &str,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>),
) {
    out.extend_from_slice(MAGIC);
    message(1, out, |meta| {
        text(1, api_version, meta);
        text(2, kind, meta);
    });
    message(2, out, write);
    text(3, "", out);
    text(4, "", out);
}

/// A length of 4 bytes and `WatchEvent{type=1, object=2}` with `RawExtension{raw=1}`; the magic
/// stands inside.
pub(crate) fn framed(kind: &str, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut event = Vec::with_capacity(512);
    text(1, kind, &mut event);
    message(2, &mut event, |extension| message(1, extension, write));
    // An event of 4 GiB does not exist: its message would have to be that long.
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&event);
}

pub(crate) fn message(field: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    bytes(field, &inner, out);
}

pub(crate) fn text(field: u8, value: &str, out: &mut Vec<u8>) {
    bytes(field, value.as_bytes(), out);
}

fn bytes(field: u8, value: &[u8], out: &mut Vec<u8>) {
    out.push(field << 3 | 2);
    put_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

pub(crate) fn number(field: u8, value: u32, out: &mut Vec<u8>) {
    out.push(field << 3);
    put_varint(value.into(), out);
}
