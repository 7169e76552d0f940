//! A key with its certificates, and what they are valid for.

use std::{sync::Arc, time::SystemTime};

use rustls::sign::CertifiedKey;
use rustls_pki_types::ServerName;
use webpki::EndEntityCert;

/// A certificate that can be shown.
pub(super) struct Certified {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) not_after: SystemTime,
}

impl Certified {
    /// Whether the first certificate of the chain is valid for a name or address.
    pub(super) fn is_valid_for(&self, name: &ServerName<'_>) -> bool {
        let first = self.key.cert.first().and_then(|cert| EndEntityCert::try_from(cert).ok());
        first.is_some_and(|cert| cert.verify_is_valid_for_subject_name(name).is_ok())
    }
}
