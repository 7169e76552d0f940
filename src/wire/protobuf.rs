//! Numbers in protobuf: seven bits a byte, the lowest first; all bytes but the last have their
//! highest bit set.

/// The number that these bytes are. The walker has checked that they are one.
pub(super) fn number(varint: &[u8]) -> u64 {
    varint.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
}

pub(super) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let low = value.to_le_bytes().first().copied().unwrap_or_default() & 0x7f;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}
