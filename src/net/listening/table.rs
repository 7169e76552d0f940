//! The lines of `/proc/net/tcp` and `/proc/net/tcp6` (Documentation/networking/proc_net_tcp.rst).

use std::{
    io::{self, BufRead},
    net::{IpAddr, SocketAddr},
};

/// The state of a socket that listens (`TCP_LISTEN`).
const LISTEN: &str = "0A";

/// The addresses of the sockets in a table that listen.
pub(super) struct Sockets<R> {
    table: R,
    /// The line that was read last.
    line: Vec<u8>,
}

impl<R: BufRead> Sockets<R> {
    pub(super) fn of(table: R) -> Self {
        Self { table, line: Vec::new() }
    }
}

impl<R: BufRead> Iterator for Sockets<R> {
    type Item = io::Result<SocketAddr>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.line.clear();
            match self.table.read_until(b'\n', &mut self.line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
            // What is torn off at the end has no state; the heading is none of a socket.
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
