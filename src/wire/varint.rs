//! Protobuf varints.

/// Appends seven bits a byte, the lowest first; all bytes but the last have their highest bit set.
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
