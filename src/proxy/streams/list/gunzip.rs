//! Decompression of a list that the API server compressed.

use std::{io::Write, mem};

use flate2::write::MultiGzDecoder;

use crate::proxy::streams::error::BodyError;

/// A decompressor of gzip, which holds no bytes that could be given out.
pub(super) struct Gunzip(Box<MultiGzDecoder<Vec<u8>>>);

impl Default for Gunzip {
    fn default() -> Self {
        Self(Box::new(MultiGzDecoder::new(Vec::new())))
    }
}

impl Gunzip {
    /// The plain bytes that this chunk adds.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Result<Vec<u8>, BodyError> {
        let written = self.0.write_all(chunk).and_then(|()| self.0.flush());
        written.map_err(|_| BodyError::Compression)?;
        Ok(mem::take(self.0.get_mut()))
    }

    /// The plain bytes of the end. Fails when the end is missing.
    pub(super) fn finish(self) -> Result<Vec<u8>, BodyError> {
        self.0.finish().map_err(|_| BodyError::Compression)
    }
}
