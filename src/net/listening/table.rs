//! The lines of `/proc/net/tcp` and `/proc/net/tcp6` (Documentation/networking/proc_net_tcp.rst).

use std::{
    io::{self, BufRead},
    net::{IpAddr, SocketAddr},
};

/// The state of a socket that listens (`TCP_LISTEN`).
const LISTEN: &str = "0A";

/// Bytes of a line to its state at most: two addresses of IPv6 and numbers.
const MAX_TO_STATE: usize = 256;

/// The addresses of the sockets in a table that listen. Of a line no more is read than tells: what
/// follows is read when the next one is wanted.
pub(super) struct Sockets<R> {
    table: R,
    /// The line that was read last, or its beginning.
    line: Vec<u8>,
    /// Whether it goes on.
    is_within: bool,
}

impl<R: BufRead> Sockets<R> {
    pub(super) fn of(table: R) -> Self {
        Self { table, line: Vec::new(), is_within: false }
    }

    /// Reads a line up to and with its state, or to its end. Returns whether there is one.
    fn read_line(&mut self) -> io::Result<bool> {
        if self.is_within {
            self.table.skip_until(b'\n')?;
        }
        self.line.clear();
        loop {
            let bytes = self.table.fill_buf()?;
            if bytes.is_empty() {
                return Ok(!self.line.is_empty());
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(bytes.len(), |end| end + 1);
            self.line.extend_from_slice(bytes.get(..taken).unwrap_or_default());
            self.table.consume(taken);
            self.is_within = end.is_none();
            if !self.is_within || has_state(&self.line) || self.line.len() > MAX_TO_STATE {
                return Ok(true);
            }
        }
    }
}

/// Whether the state, the fourth word of a line, is there and ended.
fn has_state(line: &[u8]) -> bool {
    let ends = line.windows(2).filter(|pair| {
        let [before, after] = [0, 1].map(|at| pair.get(at).is_some_and(u8::is_ascii_whitespace));
        !before && after
    });
    ends.count() >= 4
}

impl<R: BufRead> Iterator for Sockets<R> {
    type Item = io::Result<SocketAddr>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.read_line() {
                Ok(false) => return None,
                Ok(true) => {}
                Err(error) => return Some(Err(error)),
            }
            // A line that is cut off at the end has no state; the heading is not the line of a socket.
            let found = str::from_utf8(&self.line).ok().and_then(listening);
            if let Some(bound) = found {
                return Some(Ok(bound));
            }
        }
    }
}

/// The address of the socket of a line: its number, its address, its peer's, its state and more.
fn listening(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (bound, _peer, state) = (words.next()?, words.next()?, words.next()?);
    if state != LISTEN {
        return None;
    }
    let (ip, port) = bound.split_once(':')?;
    Some(SocketAddr::new(address(ip)?, number(port, 4).and_then(|port| port.try_into().ok())?))
}

/// An address: words of 32 bits in the machine's byte order, one or four.
fn address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = text.get(at * 8..at * 8 + 8)?;
        Some(number(word, 8)?.to_ne_bytes())
    };
    match text.len() {
        8 => Some(word(0)?.into()),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?);
            }
            Some(bytes.into())
        }
        _ => None,
    }
}

/// A number of so many hexadecimal digits.
fn number(text: &str, digits: usize) -> Option<u32> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}
