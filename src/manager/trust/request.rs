//! The request of a proxy: a certificate for its key (PKCS#10, RFC 2986).

use rcgen::{
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PublicKeyData,
    SubjectPublicKeyInfo,
};
use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer};

/// The public key of a request whose sender has the private one.
///
/// Names, usages and extensions of the request are not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafKey(SubjectPublicKeyInfo);

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("the body is no certificate request (PKCS#10, DER)")]
    NotPkcs10,
    #[error("the certificate request is not signed by its own key")]
    NoProof,
    #[error("the key of the certificate request is not of P-256, P-384 or Ed25519")]
    Key,
}

impl LeafKey {
    /// Reads a request.
    pub fn of_request(der: &[u8]) -> Result<Self, BadRequest> {
        let (rest, request) =
            X509CertificationRequest::from_der(der).map_err(|_| BadRequest::NotPkcs10)?;
        if !rest.is_empty() {
            return Err(BadRequest::NotPkcs10);
        }
        // First the kind: to verify a signature of a large RSA key takes long.
        let info = request.certification_request_info.subject_pki.raw;
        let key = SubjectPublicKeyInfo::from_der(info).map_err(|_| BadRequest::Key)?;
        let kinds = [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519];
        if !kinds.iter().any(|kind| key.algorithm() == *kind) {
            return Err(BadRequest::Key);
        }
        request.verify_signature().map_err(|_| BadRequest::NoProof)?;
        Ok(Self(key))
    }

    pub(super) fn info(&self) -> &SubjectPublicKeyInfo {
        &self.0
    }
}
