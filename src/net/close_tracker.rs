//! Records the orderly close of a stream by its peer: close_notify or FIN.
//!
//! A peer that has closed takes nothing any more: our own close may meet its reset, which says nothing
//! about how the peer ended.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether the peer of a stream has closed it in order: over TLS, by a close_notify (RFC 8446 section
/// 6.1).
#[derive(Clone, Debug, Default)]
pub struct PeerClosed(Arc<AtomicBool>);

impl PeerClosed {
    /// Whether it has.
    pub fn is_orderly(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// A stream that records whether its peer has closed it in order.
#[derive(Debug)]
pub struct CloseTracker<T> {
    stream: T,
    peer_closed: PeerClosed,
}

impl<T> CloseTracker<T> {
    /// The stream, and the value that remembers.
    pub fn new(stream: T) -> (Self, PeerClosed) {
        let peer_closed = PeerClosed::default();
        (Self { stream, peer_closed: peer_closed.clone() }, peer_closed)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CloseTracker<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (room, before) = (into.remaining(), into.filled().len());
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        if room > 0 && into.filled().len() == before {
            self.peer_closed.0.store(true, Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CloseTracker<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_goodbye_is_the_end_and_nothing_before_it() {
        let (near, mut far) = duplex(64);
        let (mut near, peer_closed) = CloseTracker::new(near);
        far.write_all(b"x").await.unwrap();
        near.read_exact(&mut [0]).await.unwrap();
        assert_eq!(near.read(&mut []).await.unwrap(), 0);
        assert!(!peer_closed.is_orderly(), "there was no room to read into");
        drop(far);
        assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
        assert!(peer_closed.is_orderly());
        near.write_all(b"y").await.unwrap_err();
    }
}
