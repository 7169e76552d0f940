//! Reads in small portions, so that the buffers of an HTTP/1.1 connection stay small.
//!
//! hyper doubles its read buffer whenever a read fills it, up to the size of the largest head, and
//! keeps it as long as the connection lives.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes of one read: a TLS record.
const MOST: usize = 16 << 10;

/// A stream of which no read takes more than `MOST` bytes.
#[derive(Debug)]
pub struct CappedReads<T>(pub T);

impl<T: AsyncRead + Unpin> AsyncRead for CappedReads<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut part = ReadBuf::new(into.initialize_unfilled_to(into.remaining().min(MOST)));
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut part))?;
        let length = part.filled().len();
        into.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CappedReads<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn no_read_takes_more_than_a_record() {
        let (near, mut far) = duplex(64 << 10);
        far.write_all(&[b'x'; 40_000]).await.unwrap();
        drop(far);
        let mut near = CappedReads(near);
        let mut lengths = Vec::new();
        let mut into = vec![0; 64 << 10];
        loop {
            match near.read(&mut into).await.unwrap() {
                0 => break,
                length => lengths.push(length),
            }
        }
        assert_eq!(lengths, [MOST, MOST, 40_000 - 2 * MOST]);
    }
}
