//! The certificate of the manager's own ports: signed by the serving CA for a key in memory.

use std::{
    slice,
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::trust::Trusted;
use ctrlmesh_net::{
    Clock,
    ca::{LeafSpec, Validity},
    tls,
};

/// The longest life, in which the serving CA stays published after it was replaced.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The certificate of our own ports. Cheap to clone.
#[derive(Clone)]
pub(super) struct Serving {
    key: Arc<KeyPair>,
    current: Arc<ArcSwapOption<Shown>>,
}

struct Shown {
    key: Arc<CertifiedKey>,
    cert: CertificateDer<'static>,
    validity: Validity,
    /// The CA that signed it.
    signer: CertificateDer<'static>,
}

/// The reason why there is no certificate, or no new one.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotServing {
    #[error("there is no certificate yet: no replica that leads has made the authorities")]
    NotYet,
    #[error("the serving CA could not sign")]
    Sign(#[from] rcgen::Error),
    #[error("the TLS library refuses the certificate")]
    Tls(#[from] rustls::Error),
    #[error("the certificate has ended")]
    Ended,
    #[error(
        "webhook {hook} has a caBundle by which the API server does not trust this replica: {why}"
    )]
    NotTrusted { hook: String, why: String },
    #[error("there is no MutatingWebhookConfiguration {0}: install the chart, or create it")]
    NoHooks(String),
}

impl Serving {
    /// Makes the key.
    pub(super) fn new() -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Ok(Self { key: Arc::new(key), current: Arc::default() })
    }

    /// Has the certificate signed again, if that is due or if another CA signs now; returns whether
    /// it is another.
    pub(super) fn refresh(&self, trusted: &Trusted, clock: &Clock) -> Result<bool, NotServing> {
        let signer = trusted.trust.serving().signing();
        let is_good = self.current.load().as_ref().is_some_and(|shown| {
            shown.signer == *signer.cert() && clock.now() < shown.validity.two_thirds()
        });
        if is_good {
            return Ok(false);
        }
        let life = LIFETIME.min(trusted.purpose.lifetimes.leaf);
        let validity = Validity::starting(clock.now(), life).within(signer.validity());
        let names = &trusted.purpose.serving;
        let cert = signer.sign(&LeafSpec { names, uri: None, validity }, &*self.key)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let key = CertifiedKey::from_der(vec![cert.clone()], key, &tls::provider())?;
        let signer = signer.cert().clone();
        let shown = Shown { key: Arc::new(key), cert, validity, signer };
        self.current.store(Some(Arc::new(shown)));
        Ok(true)
    }

    /// The end of the certificate.
    pub(super) fn not_after(&self) -> Option<SystemTime> {
        Some(self.current.load().as_ref()?.validity.to)
    }

    /// Checks that a client that trusts these PEM certificates accepts ours.
    pub(super) fn verify(&self, hook: &str, ca: &[u8], clock: &Clock) -> Result<(), NotServing> {
        let current = self.current.load();
        let shown = current.as_ref().ok_or(NotServing::NotYet)?;
        if clock.now() > shown.validity.to {
            return Err(NotServing::Ended);
        }
        let refused = |why: &str| NotServing::NotTrusted { hook: hook.to_owned(), why: why.into() };
        let mut last = refused("it has no certificate");
        for ca in CertificateDer::pem_slice_iter(ca) {
            let ca = ca.map_err(|_| refused("it has a broken certificate"))?;
            match is_signed_by(&shown.cert, &ca, clock) {
                Ok(()) => return Ok(()),
                Err(error) => last = refused(&error.to_string()),
            }
        }
        Err(last)
    }
}

fn is_signed_by(
    cert: &CertificateDer<'_>,
    ca: &CertificateDer<'_>,
    clock: &Clock,
) -> Result<(), webpki::Error> {
    let anchor = anchor_from_trusted_cert(ca)?;
    let algorithms = tls::provider().signature_verification_algorithms.all;
    let (anchors, usage) = (slice::from_ref(&anchor), KeyUsage::server_auth());
    let cert = EndEntityCert::try_from(cert)?;
    cert.verify_for_usage(algorithms, anchors, &[], clock.unix(), usage, None, None).map(drop)
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().as_ref()?.key))
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("not_after", &self.not_after()).finish_non_exhaustive()
    }
}
