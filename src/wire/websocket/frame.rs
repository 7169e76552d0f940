//! The frames of a server (RFC 6455 section 5).

/// Bytes of payload at most in a frame that is not data (RFC 6455 section 5.5).
pub(super) const MAX_CONTROL: usize = 125;

/// The kinds of frame that a server sends (RFC 6455 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Text = 0x1,
    Binary = 0x2,
    Close = 0x8,
    Pong = 0xA,
}

/// The reason of a close, as the API server gives it (RFC 6455 section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The watch is over, whatever ended it.
    Normal = 1000,
    /// The client broke the protocol.
    Protocol = 1002,
}

/// Appends a whole frame of a server, which is not masked.
pub(super) fn put_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[&[u8]]) {
    const FINAL: u8 = 0x80;
    let length = payload.iter().map(|part| part.len()).sum::<usize>();
    out.push(FINAL | opcode as u8);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ 0..=125), _) => out.push(short),
        (_, Ok(middle)) => {
            out.push(126);
            out.extend(middle.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend(payload.iter().copied().flatten());
}

/// Appends the last frame of a connection.
pub fn put_close(out: &mut Vec<u8>, why: Close) {
    put_frame(out, Opcode::Close, &[&(why as u16).to_be_bytes()]);
}

/// Appends the answer to a ping.
pub fn put_pong(out: &mut Vec<u8>, payload: &[u8]) {
    put_frame(out, Opcode::Pong, &[payload]);
}
