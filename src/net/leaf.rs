//! The certificate that clients see, made in memory and renewed before it expires.

use std::{
    fmt,
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
    ca::{LEAF_LIFETIME, MeshCa},
    tls,
};

/// Age at which a leaf is renewed: two thirds of its life, which leaves 8 hours for trouble with
/// the CA.
const RENEW_AFTER: Duration = Duration::from_secs(16 * 3600);

/// Reasons why no leaf could be made.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LeafError {
    #[error("the mesh CA could not sign a certificate")]
    Sign(#[from] rcgen::Error),
    #[error("the TLS library refuses the new certificate")]
    Key(#[from] rustls::Error),
}

/// The leaf of this process: one key for its whole life, never written anywhere.
pub struct Leaf {
    names: Vec<ServerName<'static>>,
    key: KeyPair,
    current: ArcSwap<Current>,
}

struct Current {
    certified: Arc<CertifiedKey>,
    not_after: SystemTime,
}

impl Leaf {
    /// Makes a key and has `ca` sign the first certificate for `names`.
    pub fn new(
        ca: &MeshCa,
        names: Vec<ServerName<'static>>,
        clock: &Clock,
    ) -> Result<Self, LeafError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let current = sign(ca, &names, &key, clock)?;
        Ok(Self { names, key, current: ArcSwap::from_pointee(current) })
    }

    /// Renews the leaf: has `ca` sign a new certificate for the same key and names; new handshakes
    /// show it. Fails with [`LeafError`]; the old certificate stays.
    pub fn renew(&self, ca: &MeshCa, clock: &Clock) -> Result<(), LeafError> {
        self.current.store(Arc::new(sign(ca, &self.names, &self.key, clock)?));
        Ok(())
    }

    /// Whether the certificate is valid for `host`, the server name (SNI) of a ClientHello.
    pub fn covers(&self, host: &str) -> bool {
        self.names.iter().any(|name| match name {
            ServerName::DnsName(dns) => dns.as_ref().eq_ignore_ascii_case(host),
            _ => false,
        })
    }

    /// The end of the current certificate (`notAfter`).
    pub fn not_after(&self) -> SystemTime {
        self.current.load().not_after
    }

    /// The time at which to replace the current certificate.
    pub fn renew_at(&self) -> SystemTime {
        self.not_after() - LEAF_LIFETIME + RENEW_AFTER
    }
}

impl ResolvesServerCert for Leaf {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().certified))
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf").field("names", &self.names).finish_non_exhaustive()
    }
}

fn sign(
    ca: &MeshCa,
    names: &[ServerName<'static>],
    key: &KeyPair,
    clock: &Clock,
) -> Result<Current, LeafError> {
    let now = clock.now();
    let cert = ca.sign(names, key, now)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let certified = CertifiedKey::from_der(vec![cert.into()], key, &tls::provider())?;
    Ok(Current { certified: Arc::new(certified), not_after: now + LEAF_LIFETIME })
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
        let ca = MeshCa::read(dir.path(), &clock).unwrap();
        let names = ["kubernetes", "127.0.0.1"].map(|n| ServerName::try_from(n).unwrap());
        let leaf = Leaf::new(&ca, names.to_vec(), &clock).unwrap();
        assert!(leaf.covers("Kubernetes") && !leaf.covers("example.com"));
        let first = leaf.not_after();
        let later = Clock::ahead_by(Duration::from_secs(3600));
        leaf.renew(&ca, &later).unwrap();
        assert!(leaf.not_after() > first);
        assert!(leaf.renew_at() < leaf.not_after());
    }
}
