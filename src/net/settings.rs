//! Reads the upstream's stream limit off the wire.
//!
//! The first frame of an HTTP/2 server is SETTINGS (RFC 9113 section 3.4). The HTTP library obeys
//! the limit in it but does not report its arrival. The client must be offered exactly the
//! upstream's limit, before it opens its first stream.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

const FRAME_HEADER: usize = 9;
const SETTINGS: u8 = 4;
const ENTRY: usize = 6;
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// Most bytes read of the first frame: far above a real one, a handful of entries of 6 bytes.
const MAX_FRAME: usize = 1024;

/// Passes bytes through and reports the stream limit once.
#[derive(Debug)]
pub struct SettingsTap<T> {
    inner: T,
    first: Option<First>,
}

#[derive(Debug)]
struct First {
    bytes: Vec<u8>,
    sender: oneshot::Sender<StreamLimit>,
}

/// `SETTINGS_MAX_CONCURRENT_STREAMS`; `None` if the peer sets no limit.
pub type StreamLimit = Option<u32>;

impl<T> SettingsTap<T> {
    /// Wraps `inner`. The receiver ends without a value if the first frame is not SETTINGS or is
    /// too long.
    pub fn new(inner: T) -> (Self, oneshot::Receiver<StreamLimit>) {
        let (sender, limit_read) = oneshot::channel();
        (Self { inner, first: Some(First { bytes: Vec::new(), sender }) }, limit_read)
    }

    fn read(&mut self, fresh: &[u8]) {
        let Some(mut first) = self.first.take() else { return };
        let room = MAX_FRAME.saturating_sub(first.bytes.len());
        first.bytes.extend(fresh.iter().take(room));
        match parse(&first.bytes) {
            Parsed::Partial if first.bytes.len() < MAX_FRAME => self.first = Some(first),
            Parsed::Settings(limit) => drop(first.sender.send(limit)),
            Parsed::Partial | Parsed::Other => {}
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Partial,
    Settings(StreamLimit),
    Other,
}

fn parse(bytes: &[u8]) -> Parsed {
    let Some((header, rest)) = bytes.split_at_checked(FRAME_HEADER) else {
        return Parsed::Partial;
    };
    let [a, b, c, kind, ..] = *header else { return Parsed::Partial };
    if kind != SETTINGS {
        return Parsed::Other;
    }
    let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
    let Some(payload) = rest.get(..length) else { return Parsed::Partial };
    let mut limit = None;
    for entry in payload.chunks_exact(ENTRY) {
        if let [i, j, v @ ..] = entry
            && u16::from_be_bytes([*i, *j]) == MAX_CONCURRENT_STREAMS
        {
            limit = <[u8; 4]>::try_from(v).ok().map(u32::from_be_bytes);
        }
    }
    Parsed::Settings(limit)
}

impl<T: AsyncRead + Unpin> AsyncRead for SettingsTap<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_none() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let fresh = buf.filled().get(before..).unwrap_or_default();
        self.read(fresh);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for SettingsTap<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
        let length = u8::try_from(entries.len() * ENTRY).unwrap();
        let mut frame = vec![0, 0, length, SETTINGS, 0, 0, 0, 0, 0];
        for (id, value) in entries {
            frame.extend(id.to_be_bytes());
            frame.extend(value.to_be_bytes());
        }
        frame
    }

    #[test]
    fn the_limit_is_read_whole_or_not_at_all() {
        let frame = settings(&[(4, 65535), (MAX_CONCURRENT_STREAMS, 250), (5, 16384)]);
        for cut in 0..frame.len() {
            assert_eq!(parse(&frame[..cut]), Parsed::Partial, "{cut}");
        }
        assert_eq!(parse(&frame), Parsed::Settings(Some(250)));
        assert_eq!(parse(&settings(&[])), Parsed::Settings(None));
        assert_eq!(parse(b"HTTP/1.1 400 Bad Request"), Parsed::Other);
    }

    #[tokio::test]
    async fn bytes_pass_and_the_limit_is_told_once() {
        let (mut far, near) = tokio::io::duplex(8);
        let (mut tap, limit_read) = SettingsTap::new(near);
        let mut frame = settings(&[(MAX_CONCURRENT_STREAMS, 7)]);
        frame.extend(b"more");
        let sent = frame.clone();
        let writing = async move {
            far.write_all(&sent).await.unwrap();
        };
        let mut got = vec![0; frame.len()];
        let (_, read) = tokio::join!(writing, tap.read_exact(&mut got));
        read.unwrap();
        assert_eq!(got, frame);
        assert_eq!(limit_read.await, Ok(Some(7)));
    }
}
