//! The certificate that clients see: made in memory by the mesh CA, or read from a file.
//!
//! [`Leaf::refresh`] replaces it, before a made one expires and whenever the file changes; new
//! handshakes show the new one.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};

use super::{
    Clock,
    ca::{CaError, LEAF_LIFETIME, MeshCa},
    tls,
};

mod certified;
mod file;

pub use self::file::BadLeaf;
use self::{certified::Certified, file::LeafFile};

/// Age at which a leaf is renewed: two thirds of its life, which leaves 8 hours for trouble with
/// the CA.
const RENEW_AFTER: Duration = Duration::from_secs(16 * 3600);

/// The source of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafSource {
    /// A certificate that a mesh CA signs for a key in memory.
    MeshCa {
        /// The directory of the CA.
        dir: PathBuf,
        /// The names that are certified.
        names: Vec<ServerName<'static>>,
    },
    /// A file with key and certificates, which others replace in time.
    File {
        /// The file.
        path: PathBuf,
        /// The name or address by which clients call, if that is known.
        called: Option<ServerName<'static>>,
    },
}

/// Reasons why there is no leaf, or no new one.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LeafError {
    #[error("--mesh-ca-dir")]
    MeshCa(#[from] CaError),
    #[error("--leaf {}", .0.display())]
    File(PathBuf, #[source] BadLeaf),
    #[error("the certificate for clients: the mesh CA could not sign it")]
    Sign(#[from] rcgen::Error),
    #[error("the certificate for clients: the TLS library refuses it")]
    Key(#[from] rustls::Error),
}

/// The leaf of this process.
pub struct Leaf {
    maker: Maker,
    current: ArcSwap<Certified>,
}

enum Maker {
    /// A mesh CA, with one key for the whole life of the process, never written anywhere.
    MeshCa {
        dir: PathBuf,
        names: Vec<ServerName<'static>>,
        key: KeyPair,
    },
    File(LeafFile),
}

impl Leaf {
    /// Makes or reads the first certificate. Fails with [`LeafError`].
    pub fn new(source: LeafSource, clock: &Clock) -> Result<Self, LeafError> {
        let (maker, current) = match source {
            LeafSource::MeshCa { dir, names } => {
                let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
                let current = signed(&MeshCa::read(&dir, clock)?, &names, &key, clock)?;
                (Maker::MeshCa { dir, names, key }, current)
            }
            LeafSource::File { path, called } => {
                let file = LeafFile::new(path, called);
                let current = read(&file, clock)?;
                (Maker::File(file), current)
            }
        };
        Ok(Self { maker, current: ArcSwap::from_pointee(current) })
    }

    /// Replaces the certificate if it is time to, or if its file has changed; returns whether it
    /// did. Fails with [`LeafError`]; the present certificate stays.
    pub fn refresh(&self, clock: &Clock) -> Result<bool, LeafError> {
        let current = match &self.maker {
            Maker::MeshCa { dir, names, key } if clock.now() >= self.renew_at() => {
                signed(&MeshCa::read(dir, clock)?, names, key, clock)?
            }
            Maker::File(file) if file.has_changed() => read(file, clock)?,
            Maker::MeshCa { .. } | Maker::File(_) => return Ok(false),
        };
        self.current.store(Arc::new(current));
        Ok(true)
    }

    /// Whether the certificate is valid for `host`, the server name (SNI) of a ClientHello.
    pub fn covers(&self, host: &str) -> bool {
        ServerName::try_from(host).is_ok_and(|name| self.current.load().is_valid_for(&name))
    }

    /// The end of the current certificate (`notAfter`).
    pub fn not_after(&self) -> SystemTime {
        self.current.load().not_after
    }

    /// The time at which a mesh CA replaces the current certificate.
    fn renew_at(&self) -> SystemTime {
        self.not_after() - LEAF_LIFETIME + RENEW_AFTER
    }
}

impl ResolvesServerCert for Leaf {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().key))
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf").field("not_after", &self.not_after()).finish_non_exhaustive()
    }
}

fn read(file: &LeafFile, clock: &Clock) -> Result<Certified, LeafError> {
    file.read(clock).map_err(|bad| LeafError::File(file.path.clone(), bad))
}

fn signed(
    ca: &MeshCa,
    names: &[ServerName<'static>],
    key: &KeyPair,
    clock: &Clock,
) -> Result<Certified, LeafError> {
    ca.permit(names, clock)?;
    let now = clock.now();
    let cert = ca.sign(names, key, now)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = CertifiedKey::from_der(vec![cert], key, &tls::provider())?;
    Ok(Certified { key: Arc::new(key), not_after: now + LEAF_LIFETIME })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{ClusterDomain, ca::Constraints};

    #[test]
    fn a_leaf_is_renewed_for_the_same_names_and_covers_them_alone() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        let domain = ClusterDomain::default();
        let constraints = Constraints::kubernetes_and(&domain, vec![], vec![]);
        MeshCa::create(dir.path(), &constraints, &clock).unwrap();
        let names = ["kubernetes", "127.0.0.1"].map(|n| ServerName::try_from(n).unwrap()).to_vec();
        let source = LeafSource::MeshCa { dir: dir.path().to_owned(), names };
        let leaf = Leaf::new(source, &clock).unwrap();
        let covers = || {
            assert!(leaf.covers("Kubernetes"));
            for other in ["example.com", "kubernetes.example.com", "", "a b"] {
                assert!(!leaf.covers(other), "{other}");
            }
        };
        covers();
        let first = leaf.not_after();
        assert!(!leaf.refresh(&Clock::ahead_by(RENEW_AFTER - Duration::from_secs(60))).unwrap());
        assert_eq!(leaf.not_after(), first);
        assert!(leaf.refresh(&Clock::ahead_by(RENEW_AFTER)).unwrap());
        assert!(leaf.not_after() >= first + RENEW_AFTER);
        covers();
    }
}
