//! The frames of a client, which is only to listen.

use super::frame::MAX_CONTROL;

/// Bytes of a data frame at most, of `golang.org/x/net/websocket`.
const MAX_DATA: u64 = 32 << 20;
/// Bytes of the longest head: two, a length of eight, a mask of four.
const MAX_HEAD: usize = 14;

/// Reads the frames of a client, cut anywhere. Data is skipped, not kept.
#[derive(Debug, Default)]
pub struct ClientFrames {
    head: [u8; MAX_HEAD],
    has: usize,
    /// Bytes of the present frame's payload that are still to come.
    left: u64,
    /// The payload of a ping so far, without its mask.
    ping: Option<Vec<u8>>,
}

/// A frame of the client's that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A ping with this payload, of which the answer has the first 125 bytes.
    Ping(Vec<u8>),
    /// The client ends the connection, or announces more than any frame may have.
    Close,
    /// A frame without a mask, which ends the connection (RFC 6455 section 5.1).
    Unmasked,
}

impl ClientFrames {
    /// Takes bytes from the front of `input` until a frame matters; `None` when all are taken. After
    /// an end, nothing more is to be read.
    pub fn next(&mut self, input: &mut &[u8]) -> Option<Heard> {
        loop {
            if self.has < self.head_length() {
                let (byte, rest) = input.split_first()?;
                *input = rest;
                *self.head.get_mut(self.has)? = *byte;
                self.has += 1;
                if self.has < self.head_length() {
                    continue;
                }
                if let Some(end) = self.begin() {
                    return Some(end);
                }
            }
            self.take_payload(input);
            if self.left > 0 {
                return None;
            }
            self.has = 0;
            if let Some(payload) = self.ping.take() {
                return Some(Heard::Ping(payload));
            }
        }
    }

    /// Bytes of the present head, as far as it says already.
    fn head_length(&self) -> usize {
        match (self.has, self.head[1] & 0x7F) {
            (0 | 1, _) => 2,
            // A frame without a mask ends here.
            _ if self.head[1] & 0x80 == 0 => 2,
            (_, 127) => MAX_HEAD,
            (_, 126) => 8,
            _ => 6,
        }
    }

    /// Begins the payload of a frame whose head is whole.
    fn begin(&mut self) -> Option<Heard> {
        const PING: u8 = 0x9;
        const CLOSE: u8 = 0x8;
        let [first, second, a, b, c, d, e, f, g, h, ..] = self.head;
        if second & 0x80 == 0 {
            return Some(Heard::Unmasked);
        }
        self.left = match second & 0x7F {
            127 => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            126 => u16::from_be_bytes([a, b]).into(),
            short => short.into(),
        };
        match first & 0x0F {
            CLOSE => return Some(Heard::Close),
            _ if self.left > MAX_DATA => return Some(Heard::Close),
            PING => self.ping = Some(Vec::new()),
            _ => {}
        }
        None
    }

    /// Takes what there is of the payload.
    fn take_payload(&mut self, input: &mut &[u8]) {
        let there = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len());
        let (payload, rest) = input.split_at_checked(there).unwrap_or((input, &[]));
        *input = rest;
        self.left -= payload.len() as u64;
        let [.., a, b, c, d] = self.head_so_far() else { return };
        let mask = [*a, *b, *c, *d];
        if let Some(ping) = &mut self.ping {
            let room = MAX_CONTROL - ping.len();
            let masks = mask.into_iter().cycle().skip(ping.len() % mask.len());
            ping.extend(payload.iter().zip(masks).take(room).map(|(byte, mask)| byte ^ mask));
        }
    }

    fn head_so_far(&self) -> &[u8] {
        self.head.get(..self.has).unwrap_or_default()
    }
}
