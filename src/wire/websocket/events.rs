//! One event of a watch in one frame.

use serde::de::IgnoredAny;

use super::frame::{Opcode, put_frame};
use crate::media::Encoding;

/// Puts the events of a watch's body, cut anywhere, into frames: JSON as text, with the newline that
/// ends it; protobuf as binary, without the length in front of it.
#[derive(Debug)]
pub struct Events {
    is_text: bool,
    /// The beginning of the next event.
    begun: Vec<u8>,
}

impl Events {
    /// The events of a body in this encoding; `None` if the API server sends none over WebSocket.
    pub const fn new(encoding: Encoding) -> Option<Self> {
        match encoding {
            Encoding::Json => Some(Self { is_text: true, begun: Vec::new() }),
            Encoding::Protobuf => Some(Self { is_text: false, begun: Vec::new() }),
            Encoding::Yaml | Encoding::Cbor => None,
        }
    }

    /// Appends the frames of the events that end in this chunk.
    pub fn feed(&mut self, mut chunk: &[u8], out: &mut Vec<u8>) {
        while let Some(rest) = match self.is_text {
            true => self.line(chunk, out),
            false => self.message(chunk, out),
        } {
            chunk = rest;
        }
    }

    /// Appends the frame of a last event that is whole and has no newline.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        if self.is_text && serde_json::from_slice::<IgnoredAny>(&self.begun).is_ok() {
            self.feed(b"\n", out);
        }
    }

    /// Bytes of the event that is not whole yet.
    pub const fn held(&self) -> usize {
        self.begun.len()
    }

    /// Takes the next line; returns the rest of the chunk, or `None` if the line goes on. A JSON
    /// event has no newline in it, on which line readers rely too.
    fn line<'a>(&mut self, chunk: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
        let Some(end) = memchr::memchr(b'\n', chunk) else {
            self.begun.extend_from_slice(chunk);
            return None;
        };
        let (line, rest) = chunk.split_at_checked(end + 1)?;
        let begun = std::mem::take(&mut self.begun);
        // A newline of its own separates events, and is none.
        if begun.len() + line.len() > 1 {
            put_frame(out, Opcode::Text, &[&begun, line]);
        }
        Some(rest)
    }

    /// Takes the next message with its length; returns the rest of the chunk, or `None` if the
    /// message goes on.
    fn message<'a>(&mut self, chunk: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
        const PREFIX: usize = 4;
        let head = self.begun.iter().chain(chunk).take(PREFIX).copied();
        let mut length = [0; PREFIX];
        let known = length.iter_mut().zip(head).map(|(to, byte)| *to = byte).count();
        let whole = u64::from(u32::from_be_bytes(length)) + PREFIX as u64;
        let lacks = usize::try_from(whole).unwrap_or(usize::MAX).saturating_sub(self.begun.len());
        if known < PREFIX || lacks > chunk.len() {
            self.begun.extend_from_slice(chunk);
            return None;
        }
        let (last, rest) = chunk.split_at_checked(lacks)?;
        let begun = std::mem::take(&mut self.begun);
        let payload = match begun.split_at_checked(PREFIX) {
            Some((_, begun)) => [begun, last],
            None => [&[][..], last.get(PREFIX - begun.len()..)?],
        };
        put_frame(out, Opcode::Binary, &payload);
        Some(rest)
    }
}
