//! A key with its certificates, what they are valid for, and why others are no leaf.

use std::{io, sync::Arc};

use rustls::{InconsistentKeys, RootCertStore, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use crate::{
    Clock,
    ca::{NotNow, Validity},
    tls,
};

/// The reason why a file or an answer holds no leaf that clients accept. No message holds a part of
/// the key.
#[derive(Debug, thiserror::Error)]
pub enum BadLeaf {
    #[error("cannot be read")]
    Unreadable(#[source] io::Error),
    #[error(
        "has {0}: one private key and its certificate are needed as PEM, behind that the \
         certificates of its issuers"
    )]
    Incomplete(&'static str),
    #[error("has {0}: a certificate is needed as PEM, behind that the certificates of its issuers")]
    NoChain(&'static str),
    #[error("has a private key that cannot be used")]
    Key(#[source] rustls::Error),
    #[error("has a private key that is not that of its first certificate")]
    OtherKey,
    #[error("has a first certificate that {0}")]
    Certificate(&'static str),
    #[error(transparent)]
    NotNow(#[from] NotNow),
    #[error("is not valid for {0}, by which clients call the API server")]
    NotFor(String),
    #[error("is not accepted by the CAs of --mesh-bundle {0}, which clients trust")]
    Distrusted(String, #[source] webpki::Error),
}

/// A certificate that can be shown.
pub(super) struct Certified {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) validity: Validity,
}

impl Certified {
    /// Checks that a server may show the chain, its own certificate first, now and with this key.
    pub(super) fn new(
        key: PrivateKeyDer<'static>,
        chain: Vec<CertificateDer<'static>>,
        clock: &Clock,
    ) -> Result<Self, BadLeaf> {
        let Some(first) = chain.first() else { return Err(BadLeaf::Incomplete("no certificate")) };
        let validity = check(first, clock)?;
        let key =
            CertifiedKey::from_der(chain, key, &tls::provider()).map_err(|error| match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => BadLeaf::OtherKey,
                error => BadLeaf::Key(error),
            })?;
        Ok(Self { key: Arc::new(key), validity })
    }

    /// Whether the first certificate of the chain is valid for a name or address.
    pub(super) fn is_valid_for(&self, name: &ServerName<'_>) -> bool {
        let first = self.first();
        first.is_some_and(|cert| cert.verify_is_valid_for_subject_name(name).is_ok())
    }

    /// Verifies the chain as a client does that trusts these roots.
    pub(super) fn verify(&self, roots: &RootCertStore, clock: &Clock) -> Result<(), webpki::Error> {
        let algorithms = tls::provider().signature_verification_algorithms.all;
        let issuers = self.key.cert.get(1..).unwrap_or_default();
        let (now, usage) = (clock.unix(), KeyUsage::server_auth());
        let first = self.first().ok_or(webpki::Error::BadDer)?;
        first.verify_for_usage(algorithms, &roots.roots, issuers, now, usage, None, None).map(drop)
    }

    fn first(&self) -> Option<EndEntityCert<'_>> {
        self.key.cert.first().and_then(|cert| EndEntityCert::try_from(cert).ok())
    }
}

/// The certificates of a PEM text. `None` if it is broken.
pub(crate) fn chain(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()
}

/// Checks that a server may show the certificate now; returns its validity.
fn check(cert: &CertificateDer<'_>, clock: &Clock) -> Result<Validity, BadLeaf> {
    let (_, cert) = X509Certificate::from_der(cert)
        .map_err(|_| BadLeaf::Certificate("does not parse as X.509"))?;
    let usage = cert.extended_key_usage();
    let usage = usage.map_err(|_| BadLeaf::Certificate("has two extended key usages"))?;
    if usage.is_some_and(|usage| !usage.value.server_auth && !usage.value.any) {
        return Err(BadLeaf::Certificate("is not for servers: serverAuth is no key usage of it"));
    }
    if cert.is_ca() {
        return Err(BadLeaf::Certificate("is that of a CA"));
    }
    let validity = Validity::of(&cert);
    match validity.not_now(clock) {
        Some(why) => Err(why.into()),
        None => Ok(validity),
    }
}
