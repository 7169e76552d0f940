//! Decompression of a list that the API server compressed.

use std::{io::Write, mem};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;

use crate::streams::error::BodyError;

/// Bytes that are decompressed at once. They become a mebibyte at most: deflate makes 1,032 bytes of
/// one.
const PIECE: usize = 1 << 10;

/// A decompressor of gzip, which holds no bytes that could be given out.
pub(super) struct Gunzip(Box<MultiGzDecoder<Vec<u8>>>);

impl Default for Gunzip {
    fn default() -> Self {
        Self(Box::new(MultiGzDecoder::new(Vec::new())))
    }
}

impl Gunzip {
    /// Takes a piece off the front of `chunk`; returns the plain bytes that it adds.
    pub(super) fn feed(&mut self, chunk: &mut Bytes) -> Result<Vec<u8>, BodyError> {
        let piece = chunk.split_to(chunk.len().min(PIECE));
        let written = self.0.write_all(&piece).and_then(|()| self.0.flush());
        written.map_err(|_| BodyError::Compression)?;
        Ok(mem::take(self.0.get_mut()))
    }

    /// The plain bytes of the end. Fails when the end is missing.
    pub(super) fn finish(self) -> Result<Vec<u8>, BodyError> {
        self.0.finish().map_err(|_| BodyError::Compression)
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    #[test]
    fn a_chunk_that_grows_a_thousandfold_comes_in_pieces() {
        let plain = vec![b'x'; 64 << 20];
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&plain).unwrap();
        let mut chunk = Bytes::from(encoder.finish().unwrap());
        assert!(chunk.len() < 128 << 10, "one chunk of HTTP/1.1: {}", chunk.len());
        let mut gunzip = Gunzip::default();
        let mut length = 0;
        while !chunk.is_empty() {
            let piece = gunzip.feed(&mut chunk).unwrap();
            assert!(piece.capacity() <= 4 << 20, "{}", piece.capacity());
            length += piece.len();
        }
        assert_eq!(length + gunzip.finish().unwrap().len(), plain.len());
    }
}
