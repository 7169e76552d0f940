//! The certificate that clients see: made in memory by the mesh CA, read from a file, or signed by
//! someone else for a key of ours ([`enrolment`]).
//!
//! [`Leaf::refresh`] replaces it, before a made one expires and whenever the file changes; new
//! handshakes show the new one. Until an enrolment has succeeded there is none.

use std::{fmt, path::PathBuf, sync::Arc, time::SystemTime};

use arc_swap::ArcSwapOption;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    SignatureScheme,
    client::ResolvesClientCert,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};

use super::{
    Clock,
    ca::{CaError, LEAF_LIFETIME, MeshCa, Validity},
    identity::PodIdentity,
    tls,
};

mod certified;
pub mod enrolment;
mod file;

pub use self::certified::BadLeaf;
use self::{certified::Certified, file::LeafFile};
pub(super) use self::{
    certified::chain,
    file::{read as read_file, replace as replace_file},
};

/// The source of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafSource {
    /// A certificate that a mesh CA signs for a key in memory.
    MeshCa {
        /// The directory of the CA.
        dir: PathBuf,
        /// The names that are certified.
        names: Vec<ServerName<'static>>,
        /// The pod that is certified besides: its peers demand that. `None` outside of a pod.
        identity: Option<PodIdentity>,
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
    /// `None` before the first.
    current: ArcSwapOption<Certified>,
    problem: ArcSwapOption<String>,
}

enum Maker {
    /// A mesh CA, with one key for the whole life of the process, never written anywhere.
    MeshCa {
        dir: PathBuf,
        names: Vec<ServerName<'static>>,
        identity: Option<PodIdentity>,
        key: KeyPair,
    },
    File(LeafFile),
    /// An [`enrolment`], which replaces the leaf by itself.
    Others,
}

impl Leaf {
    /// Makes or reads the first certificate. Fails with [`LeafError`].
    pub fn new(source: LeafSource, clock: &Clock) -> Result<Self, LeafError> {
        let (maker, current) = match source {
            LeafSource::MeshCa { dir, names, identity } => {
                let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
                let ca = MeshCa::read(&dir, clock)?;
                let current = signed(&ca, &names, identity.as_ref(), &key, clock)?;
                (Maker::MeshCa { dir, names, identity, key }, current)
            }
            LeafSource::File { path, called } => {
                let file = LeafFile::new(path, called);
                let current = read(&file, clock)?;
                (Maker::File(file), current)
            }
        };
        Ok(Self::of(maker, Some(current)))
    }

    fn of(maker: Maker, current: Option<Certified>) -> Self {
        let current = ArcSwapOption::from_pointee(current);
        Self { maker, current, problem: ArcSwapOption::empty() }
    }

    /// Replaces the certificate if it is time to, or if its file has changed; returns whether it
    /// did. Fails with [`LeafError`]; the present certificate stays.
    pub fn refresh(&self, clock: &Clock) -> Result<bool, LeafError> {
        let current = match &self.maker {
            Maker::MeshCa { dir, names, identity, key } if self.is_renewed(clock) => {
                signed(&MeshCa::read(dir, clock)?, names, identity.as_ref(), key, clock)?
            }
            Maker::File(file) if file.has_changed() => read(file, clock)?,
            Maker::MeshCa { .. } | Maker::File(_) | Maker::Others => return Ok(false),
        };
        self.show(current);
        Ok(true)
    }

    /// Shows a certificate from now on.
    fn show(&self, current: Certified) {
        self.current.store(Some(Arc::new(current)));
    }

    /// Whether there is a certificate, expired or not. Once there is one, there always is.
    pub fn is_present(&self) -> bool {
        self.current.load().is_some()
    }

    /// Whether the certificate is valid for `host`, the server name (SNI) of a ClientHello.
    pub fn covers(&self, host: &str) -> bool {
        let current = self.current.load();
        ServerName::try_from(host)
            .is_ok_and(|name| current.as_ref().is_some_and(|it| it.is_valid_for(&name)))
    }

    /// The validity of the current certificate.
    pub fn validity(&self) -> Option<Validity> {
        self.current.load().as_ref().map(|current| current.validity)
    }

    /// The end of the current certificate (`notAfter`).
    pub fn not_after(&self) -> Option<SystemTime> {
        self.validity().map(|validity| validity.to)
    }

    /// The reason why there is no certificate, or why the present one was not renewed.
    pub fn problem(&self) -> Option<String> {
        self.problem.load().as_ref().map(|problem| String::clone(problem))
    }

    /// Sets what [`Self::problem`] returns.
    pub fn report(&self, problem: Option<String>) {
        self.problem.store(problem.map(Arc::new));
    }

    /// Whether it is time for a mesh CA to replace the current certificate.
    fn is_renewed(&self, clock: &Clock) -> bool {
        self.validity().is_none_or(|validity| clock.now() >= validity.two_thirds())
    }
}

impl ResolvesServerCert for Leaf {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load().as_ref().map(|current| Arc::clone(&current.key))
    }
}

/// Leaves are certificates of clients too, towards peers.
impl ResolvesClientCert for Leaf {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current.load().as_ref().map(|current| Arc::clone(&current.key))
    }

    fn has_certs(&self) -> bool {
        self.is_present()
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
    identity: Option<&PodIdentity>,
    key: &KeyPair,
    clock: &Clock,
) -> Result<Certified, LeafError> {
    ca.permit(names, clock)?;
    let now = clock.now();
    let uri = identity.map(PodIdentity::to_string);
    let cert = ca.sign(names, uri.as_deref(), key, now)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = CertifiedKey::from_der(vec![cert], key, &tls::provider())?;
    Ok(Certified { key: Arc::new(key), validity: Validity::starting(now, LEAF_LIFETIME) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ClusterDomain, ca::Constraints};

    /// Two thirds of the life of a leaf, which leave 8 hours for trouble with the CA.
    const RENEW_AFTER: Duration = Duration::from_secs(16 * 3600);

    #[test]
    fn a_leaf_is_renewed_for_the_same_names_and_covers_them_alone() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        let domain = ClusterDomain::default();
        let constraints = Constraints::kubernetes_and(&domain, vec![], vec![]);
        MeshCa::create(dir.path(), &constraints, &clock).unwrap();
        let names = ["kubernetes", "127.0.0.1"].map(|n| ServerName::try_from(n).unwrap()).to_vec();
        let source = LeafSource::MeshCa { dir: dir.path().to_owned(), names, identity: None };
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
        assert!(leaf.not_after() >= first.map(|first| first + RENEW_AFTER));
        covers();
    }
}
