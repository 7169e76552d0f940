//! The certificates that the directory holds or held, by their hashes, and the file that keeps them:
//! the operator may show a former one for as long as it runs, which is longer than this process.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::leaf;

/// Number of certificates that are known to be the operator's, the shown one among them.
const HELD: usize = 16;
/// The name of the file.
const FILE: &str = "certificates.json";

type Hash = [u8; 32];

/// The certificates, the latest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held(Vec<Hash>);

/// The file of them.
#[derive(Debug)]
pub(super) struct HeldFile {
    path: PathBuf,
    /// The directory of the certificates. Those of another are strangers.
    of: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Content {
    directory: String,
    /// Hashes (SHA-256), in hexadecimal.
    held: Vec<String>,
}

/// The reason why a certificate that the directory held may be taken for a stranger's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    #[error("certificates that were shown before the proxy's start are not known: {file} {why}")]
    Unreadable { file: String, why: String },
    #[error("certificates that were shown will not be known to the next proxy: {file}: {why}")]
    Unwritable { file: String, why: io::ErrorKind },
}

impl Held {
    /// Whether a certificate is one of them.
    pub(super) fn has(&self, cert: &CertificateDer<'_>) -> bool {
        self.0.contains(&hash(cert))
    }

    /// The held certificates, and one that is the latest.
    pub(super) fn and(&self, cert: &CertificateDer<'_>) -> Self {
        let latest = hash(cert);
        let others = self.0.iter().filter(|held| **held != latest);
        Self([latest].iter().chain(others).take(HELD).copied().collect())
    }
}

fn hash(cert: &CertificateDer<'_>) -> Hash {
    Sha256::digest(cert).into()
}

impl HeldFile {
    /// The file in a directory that outlives this process, for the certificates of `of`.
    pub(super) fn new(state_dir: &Path, of: &Path) -> Self {
        Self { path: state_dir.join(FILE), of: of.display().to_string() }
    }

    /// The certificates in it. None if it is of another directory, or is not there.
    pub(super) fn read(&self) -> Result<Held, NotKept> {
        let bad = |why: String| NotKept::Unreadable { file: self.name(), why };
        let bytes = match leaf::read_file(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Held::default()),
            Err(error) => return Err(bad(format!("cannot be read, {}", error.kind()))),
        };
        let content: Option<Content> = serde_json::from_slice(&bytes).ok();
        let content = content.filter(|content| content.held.len() <= HELD);
        let content = content.ok_or_else(|| bad("is none of ours".to_owned()))?;
        if content.directory != self.of {
            return Ok(Held::default());
        }
        let held = content.held.iter().map(|text| parse(text)).collect::<Option<_>>();
        held.map(Held).ok_or_else(|| bad("is none of ours".to_owned()))
    }

    /// Replaces its content in one step.
    pub(super) fn write(&self, held: &Held) -> Result<(), NotKept> {
        let hex = |hash: &Hash| hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let held = held.0.iter().map(hex).collect();
        let content = Content { directory: self.of.clone(), held };
        let bytes = serde_json::to_vec(&content).map_err(io::Error::from);
        let written = bytes.and_then(|bytes| leaf::replace_file(&self.path, &bytes));
        written.map_err(|error| NotKept::Unwritable { file: self.name(), why: error.kind() })
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

fn parse(hex: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    let digits = hex.as_bytes();
    if digits.len() != 2 * hash.len() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(hash)
}
