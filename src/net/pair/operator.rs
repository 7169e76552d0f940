//! TLS towards the operator, which must show a certificate of its directory.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, OtherError,
    client::danger::{ServerCertVerified, ServerCertVerifier},
    crypto::WebPkiSupportedAlgorithms,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::server::WebhookCert;
use crate::{
    Clock,
    tls::{known_protocols, provider, verify_signatures},
};

/// The reason why a server is not the operator: its directory never held this certificate, as far as
/// is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server shows a certificate that the operator's directory does not hold")]
pub struct ForeignCertificate;

/// TLS towards the operator. Its connections share a store of sessions: one that is resumed is with
/// the server that showed a certificate of the directory, by the secret that it has from then.
#[derive(Clone, Debug)]
pub struct OperatorTls(ClientConfig);

impl OperatorTls {
    /// TLS towards the operator of this pair.
    pub fn new(pair: Arc<WebhookCert>, clock: &Clock) -> Result<Self, rustls::Error> {
        let provider = provider();
        let algorithms = provider.signature_verification_algorithms;
        let verifier = HeldCertificate { pair, algorithms };
        let config = ClientConfig::builder_with_details(provider, clock.provider())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self(config))
    }

    /// The configuration of one connection, for a client that offers these protocols.
    pub fn offering<'p>(&self, protocols: impl Iterator<Item = &'p [u8]>) -> ClientConfig {
        let mut config = self.0.clone();
        config.alpn_protocols = known_protocols(protocols);
        config
    }
}

impl ForeignCertificate {
    /// Whether a handshake failed for this.
    pub fn is_reason_of(error: &rustls::Error) -> bool {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
                why.is::<Self>()
            }
            _ => false,
        }
    }
}

/// Verifies that a server has the key of a certificate that a directory holds or held. Neither name
/// nor time nor issuer matter: the API server judges the very certificate.
#[derive(Debug)]
struct HeldCertificate {
    pair: Arc<WebhookCert>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for HeldCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.pair.recognises(end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        let why = OtherError(Arc::new(ForeignCertificate));
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(why)))
    }

    verify_signatures!();
}
