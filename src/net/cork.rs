//! Collects the bytes that a connection writes during one poll, and sends them together.
//!
//! HTTP/2 flushes after every DATA frame. Below TLS each flush costs a system call, a segment and a
//! wake-up of the client, where one would do. So the task that polls the connection sends the bytes
//! when the poll is over: see [`Corked::poll_uncork`].
//!
//! Hides the held bytes, which are bounded. Does not interpret them.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes that are held: four TLS records.
const MOST: usize = 64 << 10;

/// Holds written bytes until it is uncorked or holds `MOST` bytes. Clones share one stream.
#[derive(Debug)]
pub struct Corked<T>(Rc<RefCell<Buffered<T>>>);

#[derive(Debug)]
struct Buffered<T> {
    inner: T,
    bytes: Vec<u8>,
    /// Number of `bytes` written to `inner`.
    written: usize,
    must_flush: bool,
}

impl<T> Clone for Corked<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Corked<T> {
    /// Wraps `inner`. Nothing is held yet.
    pub fn new(inner: T) -> Self {
        let held = Buffered { inner, bytes: Vec::new(), written: 0, must_flush: false };
        Self(Rc::new(RefCell::new(held)))
    }
}

impl<T: AsyncWrite + Unpin> Corked<T> {
    /// Sends and flushes all held bytes. Call it after every poll of the connection, even if that
    /// wrote nothing: the socket may have been full at the last call. Fails with the errors of the
    /// stream, which its next write or flush returns too.
    pub fn poll_uncork(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_send(cx)
    }
}

impl<T: AsyncWrite + Unpin> Buffered<T> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
            self.must_flush = true;
        }
        self.bytes.clear();
        self.written = 0;
        if self.must_flush {
            ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
            self.must_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_hold(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.bytes.len() >= MOST {
            ready!(self.poll_send(cx))?;
        }
        let mut taken = 0;
        for piece in pieces {
            let room = MOST.saturating_sub(self.bytes.len());
            let part = piece.get(..room).unwrap_or(piece);
            self.bytes.extend_from_slice(part);
            taken += part.len();
        }
        Poll::Ready(Ok(taken))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Corked<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().inner).poll_read(cx, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Corked<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_hold(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_hold(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Flushes nothing: [`Corked::poll_uncork`] does.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut held = self.0.borrow_mut();
        ready!(held.poll_send(cx))?;
        Pin::new(&mut held.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::timeout,
    };

    use super::*;

    async fn is_quiet(far: &mut (impl AsyncRead + Unpin)) -> bool {
        timeout(Duration::ZERO, far.read_u8()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_leaves_before_it_is_uncorked() {
        let (near, mut far) = duplex(1 << 20);
        let mut near = Corked::new(near);
        let cork = near.clone();
        near.write_all(b"one").await.unwrap();
        near.flush().await.unwrap();
        near.write_all(b"two").await.unwrap();
        assert!(is_quiet(&mut far).await);
        poll_fn(|cx| cork.poll_uncork(cx)).await.unwrap();
        let mut read = [0; 6];
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"onetwo");
        assert!(is_quiet(&mut far).await);
    }

    #[tokio::test]
    async fn what_is_held_is_bounded_and_in_order() {
        let (near, mut far) = duplex(1000);
        let mut near = Corked::new(near);
        let sent: Vec<u8> = (0..300_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let expected = sent.clone();
        let write = async move {
            for piece in sent.chunks(777) {
                near.write_all(piece).await.unwrap();
                assert!(near.0.borrow().bytes.len() <= MOST);
            }
            near.shutdown().await.unwrap();
        };
        let mut read = Vec::new();
        let (_, end) = tokio::join!(write, far.read_to_end(&mut read));
        end.unwrap();
        assert!(read == expected, "all of it, up to the end");
    }

    #[tokio::test]
    async fn a_stream_that_is_gone_is_an_error() {
        let (near, far) = duplex(10);
        let mut near = Corked::new(near);
        drop(far);
        near.write_all(b"lost").await.unwrap();
        poll_fn(|cx| near.poll_uncork(cx)).await.unwrap_err();
    }
}
