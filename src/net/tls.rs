//! The TLS of both legs. One crypto provider, named in one place and never by process default.

use std::{io, path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::WebPkiServerVerifier,
    crypto::{CryptoProvider, aws_lc_rs},
    server::ResolvesServerCert,
};
use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::Clock;

/// HTTP/2 in ALPN (RFC 9113 section 3.2).
pub const H2: &[u8] = b"h2";
/// HTTP/1.1 in ALPN (RFC 7301 section 6).
pub const HTTP_11: &[u8] = b"http/1.1";

/// The one provider of this program.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(provider_value())
}

/// The same, not shared yet.
#[must_use]
pub fn provider_value() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// Why a set of trust roots cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadRoots {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The file holds no certificate, or one that does not parse.
    #[error("{path} holds no usable PEM certificate")]
    NoCertificate {
        /// The file.
        path: String,
    },
}

/// Reads every certificate of a PEM file.
///
/// # Errors
/// [`BadRoots`] names the file and the reason.
pub fn read_roots(path: &Path) -> Result<RootCertStore, BadRoots> {
    let pem = std::fs::read(path)
        .map_err(|source| BadRoots::Unreadable { path: path.display().to_string(), source })?;
    roots_from_pem(&pem).ok_or_else(|| BadRoots::NoCertificate { path: path.display().to_string() })
}

/// The trust roots in a PEM text; nothing when there is none or one of them is broken.
#[must_use]
pub fn roots_from_pem(pem: &[u8]) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(pem) {
        roots.add(cert.ok()?).ok()?;
    }
    (!roots.is_empty()).then_some(roots)
}

/// How we speak to the API server: verified against `roots`, no client certificate.
///
/// # Errors
/// When rustls refuses the roots or the provider.
pub fn upstream_config(roots: RootCertStore, clock: &Clock) -> Result<ClientConfig, rustls::Error> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    Ok(ClientConfig::builder_with_details(provider(), clock.provider())
        .with_safe_default_protocol_versions()?
        .with_webpki_verifier(verifier)
        .with_no_client_auth())
}

/// How we answer clients, one configuration for each protocol that the upstream may have chosen.
#[derive(Clone, Debug)]
pub struct ServerConfigs {
    h2: Arc<ServerConfig>,
    http_11: Arc<ServerConfig>,
    no_alpn: Arc<ServerConfig>,
}

impl ServerConfigs {
    /// All of them show the certificate of `leaf` and share one ticket key.
    ///
    /// # Errors
    /// When rustls refuses the provider.
    pub fn new(leaf: Arc<dyn ResolvesServerCert>, clock: &Clock) -> Result<Self, rustls::Error> {
        let mut base = ServerConfig::builder_with_details(provider(), clock.provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(leaf);
        base.ticketer = aws_lc_rs::Ticketer::new()?;
        let with = |alpn: &[&[u8]]| {
            let mut config = base.clone();
            config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
            Arc::new(config)
        };
        Ok(Self { h2: with(&[H2]), http_11: with(&[HTTP_11]), no_alpn: with(&[]) })
    }

    /// The configuration that answers with `alpn`, the protocol of the upstream connection.
    #[must_use]
    pub fn speaking(&self, alpn: Option<&[u8]>) -> Arc<ServerConfig> {
        Arc::clone(match alpn {
            Some(H2) => &self.h2,
            Some(_) => &self.http_11,
            None => &self.no_alpn,
        })
    }
}
