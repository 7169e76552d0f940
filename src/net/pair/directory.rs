//! The files of a pair, and the fault with them.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::unistd::{getegid, geteuid};
use rustls::{InconsistentKeys, sign::CertifiedKey};
use rustls_pki_types::{PrivateKeyDer, pem, pem::PemObject};
use sha2::{Digest, Sha256};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use crate::{
    ca::{NotNow, Validity},
    leaf, tls,
};

/// The names of the files of certificate and key that operators use.
const USUAL: [(&str, &str); 4] = [
    ("tls.crt", "tls.key"),
    ("cert.pem", "key.pem"),
    ("apiserver.crt", "apiserver.key"),
    ("cert", "key"),
];

/// The names of the files of a pair, in its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairNames {
    /// The certificate's.
    pub cert: Box<str>,
    /// The key's.
    pub key: Box<str>,
}

/// The reason why a directory holds no pair that can be shown. No message holds a part of the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPair {
    #[error("{dir} holds no {names}")]
    None { dir: String, names: String },
    #[error("{there} has no {missing} next to it")]
    Half { there: String, missing: String },
    #[error("{file} cannot be read, {why}{access}")]
    Unreadable { file: String, why: io::ErrorKind, access: String },
    #[error("{file} has {what}")]
    Content { file: String, what: &'static str },
    #[error("{file} has a private key that cannot be used: {why}")]
    Key { file: String, why: String },
    #[error("{file} has a certificate that cannot be used: {why}")]
    Certificate { file: String, why: String },
    #[error("{key} is not the key of {cert}")]
    OtherKey { cert: String, key: String },
    #[error("{cert} {why}")]
    NotNow { cert: String, why: NotNow },
}

/// The bytes of a pair.
pub(super) struct Files {
    cert: (PathBuf, Vec<u8>),
    key: (PathBuf, Vec<u8>),
}

/// A pair that can be shown.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) key: Arc<CertifiedKey>,
    /// The validity. `None` if the certificate does not state it.
    pub(super) validity: Option<Validity>,
    /// The file of the certificate.
    pub(super) file: String,
}

impl Files {
    /// Reads the files of these names, or of the first usual ones that both exist.
    pub(super) fn read(dir: &Path, names: Option<&PairNames>) -> Result<Self, BadPair> {
        let given = names.map(|names| (&*names.cert, &*names.key));
        let candidates = given.as_ref().map_or(&USUAL[..], std::slice::from_ref);
        let mut half = None;
        for (cert, key) in candidates {
            let (cert, key) = (dir.join(cert), dir.join(key));
            let lacks = |there: &Path, missing: &Path| {
                let missing = missing.file_name().unwrap_or_default().display().to_string();
                BadPair::Half { there: shown(there), missing }
            };
            match (existing(&cert)?, existing(&key)?) {
                (Some(a), Some(b)) => return Ok(Self { cert: (cert, a), key: (key, b) }),
                (Some(_), None) => half = half.or_else(|| Some(lacks(&cert, &key))),
                (None, Some(_)) => half = half.or_else(|| Some(lacks(&key, &cert))),
                (None, None) => {}
            }
        }
        let names = candidates.iter().map(|(cert, key)| format!("{cert} and {key}"));
        let names = names.collect::<Vec<_>>().join(", nor ");
        Err(half.unwrap_or_else(|| BadPair::None { dir: shown(dir), names }))
    }

    /// The hash of the bytes and of where they stand.
    pub(super) fn hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for (path, bytes) in [&self.cert, &self.key] {
            for part in [path.as_os_str().as_encoded_bytes(), bytes] {
                hash.update(part.len().to_be_bytes());
                hash.update(part);
            }
        }
        hash.finalize().into()
    }

    /// The pair in the files, expired or not, as the operator would show it.
    pub(super) fn pair(&self) -> Result<Pair, BadPair> {
        let (cert, key) = (shown(&self.cert.0), shown(&self.key.0));
        let broken = |file: &str, what| BadPair::Content { file: file.to_owned(), what };
        let chain = leaf::chain(&self.cert.1).ok_or_else(|| broken(&cert, "PEM that is broken"))?;
        let Some(first) = chain.first() else { return Err(broken(&cert, "no certificate as PEM")) };
        let validity = X509Certificate::from_der(first).ok().map(|(_, first)| Validity::of(&first));
        let private = PrivateKeyDer::from_pem_slice(&self.key.1).map_err(|error| match error {
            pem::Error::NoItemsFound => broken(&key, "no private key as PEM, or an encrypted one"),
            _ => broken(&key, "PEM that is broken"),
        })?;
        let pair = CertifiedKey::from_der(chain, private, &tls::provider());
        match pair {
            Ok(pair) => Ok(Pair { key: Arc::new(pair), validity, file: cert }),
            Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                Err(BadPair::OtherKey { cert, key })
            }
            Err(rustls::Error::InvalidCertificate(why)) => {
                Err(BadPair::Certificate { file: cert, why: why.to_string() })
            }
            Err(why) => Err(BadPair::Key { file: key, why: why.to_string() }),
        }
    }
}

/// The bytes of a file. `None` if there is none.
fn existing(path: &Path) -> Result<Option<Vec<u8>>, BadPair> {
    match leaf::read_file(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let (file, access) = (shown(path), access(path));
            Err(BadPair::Unreadable { file, why: error.kind(), access })
        }
    }
}

/// Who may read a file, or the directory that hides it, and who we are.
fn access(path: &Path) -> String {
    let seen = path.ancestors().find_map(|path| Some((path, fs::metadata(path).ok()?)));
    let Some((seen, metadata)) = seen else { return String::new() };
    let of = if seen == path { String::new() } else { format!("{} has ", seen.display()) };
    let (mode, uid, gid) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
    let (own_uid, own_gid) = (geteuid(), getegid());
    format!(": {of}mode {mode:04o} and owner {uid}:{gid}, and this process is {own_uid}:{own_gid}")
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
