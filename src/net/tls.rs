//! TLS to clients and to the upstream. One crypto provider, named in one place, never the process
//! default.

use std::{io, net::IpAddr, path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, RootCertStore, ServerConfig,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs},
    server::ResolvesServerCert,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};

use super::Clock;

/// HTTP/2 in ALPN (RFC 9113 section 3.2).
pub const H2: &[u8] = b"h2";
/// HTTP/1.1 in ALPN (RFC 7301 section 6).
pub const HTTP_11: &[u8] = b"http/1.1";

/// The one provider of this program.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(provider_value())
}

/// The provider, not shared yet.
pub fn provider_value() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// The methods by which a verifier of certificates verifies the signatures of handshakes: all in the
/// same way, by its field `algorithms`.
macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &rustls_pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            rustls::crypto::verify_tls12_signature(message, cert, signed, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &rustls_pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            rustls::crypto::verify_tls13_signature(message, cert, signed, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}
pub(crate) use verify_signatures;

/// Reasons why a set of trust roots cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadRoots {
    #[error("cannot read {path}")]
    Unreadable {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("{0} holds no usable PEM certificate")]
    NoCertificate(String),
}

/// Reads every certificate of a PEM file.
pub fn read_roots(path: &Path) -> Result<RootCertStore, BadRoots> {
    let pem = std::fs::read(path)
        .map_err(|source| BadRoots::Unreadable { path: path.display().to_string(), source })?;
    roots_from_pem(&pem).ok_or_else(|| BadRoots::NoCertificate(path.display().to_string()))
}

/// The trust roots in a PEM text; `None` if there are none or one of them is broken.
pub fn roots_from_pem(pem: &[u8]) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(pem) {
        roots.add(cert.ok()?).ok()?;
    }
    (!roots.is_empty()).then_some(roots)
}

/// The offered protocols that we can carry, the best first.
pub(super) fn known_protocols<'p>(offered: impl Iterator<Item = &'p [u8]>) -> Vec<Vec<u8>> {
    let offered: Vec<_> = offered.collect();
    let known = [H2, HTTP_11].into_iter().filter(|known| offered.contains(known));
    known.map(<[u8]>::to_vec).collect()
}

/// The TLS library's reason for a failed handshake. `None` if the connection itself failed.
pub fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// TLS towards an API server or the manager, which is always verified. Its connections share a store
/// of sessions.
#[derive(Debug)]
pub struct UpstreamTls {
    verifier: Arc<WebPkiServerVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
    config: ClientConfig,
}

impl UpstreamTls {
    /// TLS towards a server that has a certificate of these roots.
    pub fn new(roots: RootCertStore, clock: &Clock) -> Result<Self, rustls::Error> {
        let provider = provider();
        let algorithms = provider.signature_verification_algorithms;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
        let config = ClientConfig::builder_with_details(provider, clock.provider())
            .with_safe_default_protocol_versions()?
            .with_webpki_verifier(Arc::clone(&verifier))
            .with_no_client_auth();
        Ok(Self { verifier, algorithms, config })
    }

    /// The configuration of one connection, for a client that offers these protocols.
    pub fn offering<'p>(&self, protocols: impl Iterator<Item = &'p [u8]>) -> ClientConfig {
        let mut config = self.config.clone();
        config.alpn_protocols = known_protocols(protocols);
        config
    }

    /// The configuration of a connection to `dialled` by a client that sent a server name (SNI): the
    /// certificate may be for the name or for the address.
    pub fn by_name_or_address(&self, mut config: ClientConfig, dialled: IpAddr) -> ClientConfig {
        // A resumed session does not record the address for which it was verified. The library binds
        // a session to its verifier, too, which is this connection's alone.
        config.resumption = Resumption::disabled();
        let (webpki, algorithms) = (Arc::clone(&self.verifier), self.algorithms);
        let verifier = NameOrAddress { webpki, algorithms, dialled: dialled.into() };
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        config
    }
}

/// Verifies a certificate by the server's name and, if it is not valid for that, by the dialled
/// address. All other checks apply to both.
#[derive(Debug)]
struct NameOrAddress {
    webpki: Arc<WebPkiServerVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
    dialled: ServerName<'static>,
}

impl ServerCertVerifier for NameOrAddress {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify =
            |name| self.webpki.verify_server_cert(end_entity, intermediates, name, ocsp, now);
        match verify(name) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => verify(&self.dialled),
            verdict => verdict,
        }
    }

    verify_signatures!();
}

/// TLS towards clients. Its connections share a key of tickets.
#[derive(Clone, Debug)]
pub struct ClientTls(ServerConfig);

impl ClientTls {
    /// TLS with the certificate of `leaf`.
    pub fn new(leaf: Arc<dyn ResolvesServerCert>, clock: &Clock) -> Result<Self, rustls::Error> {
        let mut config = ServerConfig::builder_with_details(provider(), clock.provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(leaf);
        config.ticketer = aws_lc_rs::Ticketer::new()?;
        Ok(Self(config))
    }

    /// The configuration that selects `alpn`, the protocol of the upstream connection.
    pub fn speaking(&self, alpn: Option<&[u8]>) -> ServerConfig {
        let mut config = self.0.clone();
        let known = alpn.map(|alpn| if alpn == H2 { H2 } else { HTTP_11 });
        config.alpn_protocols = known.map(<[u8]>::to_vec).into_iter().collect();
        config
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
    use rustls::{Error::InvalidCertificate, HandshakeKind, ServerConfig};
    use rustls_pki_types::PrivateKeyDer;

    use super::*;
    use crate::tests::meet;

    const HOUR: Duration = Duration::from_secs(3600);
    const DIALLED: &str = "10.96.0.1";

    fn ca() -> (Issuer<'static, KeyPair>, RootCertStore) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        (Issuer::new(params, key), roots_from_pem(pem.as_bytes()).unwrap())
    }

    fn cert(
        ca: &Issuer<'static, KeyPair>,
        names: &[&str],
        end: SystemTime,
    ) -> CertificateDer<'static> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = (SystemTime::now() - 2 * HOUR).into();
        params.not_after = end.into();
        params.signed_by(&KeyPair::generate().unwrap(), ca).unwrap().into()
    }

    #[test]
    fn a_certificate_is_for_the_name_or_for_the_address_and_else_for_nobody() {
        let ((issuer, roots), (other, _)) = (ca(), ca());
        let UpstreamTls { verifier: webpki, algorithms, .. } =
            UpstreamTls::new(roots, &Clock::system()).unwrap();
        let dialled = ServerName::try_from(DIALLED).unwrap();
        let either = NameOrAddress { webpki, algorithms, dialled };
        let asked = ServerName::try_from("kubernetes.default.svc").unwrap();
        let verify = |cert: &CertificateDer<'_>| {
            either.verify_server_cert(cert, &[], &asked, &[], UnixTime::now())
        };
        let later = SystemTime::now() + HOUR;
        for names in [&["kubernetes.default.svc"][..], &[DIALLED], &["x.example", DIALLED]] {
            verify(&cert(&issuer, names, later)).unwrap();
            let foreign = verify(&cert(&other, names, later)).unwrap_err();
            assert!(!is_of_name(&foreign), "{names:?}: {foreign}");
            let ended = verify(&cert(&issuer, names, SystemTime::now() - HOUR)).unwrap_err();
            assert!(!is_of_name(&ended), "{names:?}: {ended}");
        }
        for names in [&["kubernetes.default"][..], &["10.96.0.2"], &["localhost", "127.0.0.1"]] {
            let refused = verify(&cert(&issuer, names, later)).unwrap_err();
            assert!(is_of_name(&refused), "{names:?}: {refused}");
        }
    }

    #[test]
    fn a_session_is_resumed_by_name_and_never_over_addresses() {
        let (issuer, roots) = ca();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![DIALLED.to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::DnsName("named.example".try_into().unwrap()));
        let leaf = params.signed_by(&key, &issuer).unwrap();
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![leaf.into()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        server.ticketer = aws_lc_rs::Ticketer::new().unwrap();
        let tls = UpstreamTls::new(roots, &Clock::system()).unwrap();
        let meets = |config: ClientConfig, name: &'static str| {
            meet(config, server.clone(), name).client.map(|client| client.handshake_kind())
        };
        let by_name = || meets(tls.offering([].into_iter()), "named.example");
        assert_eq!(by_name().unwrap(), Some(HandshakeKind::Full));
        assert_eq!(by_name().unwrap(), Some(HandshakeKind::Resumed), "the judge is real");
        let over = |dialled: &str| {
            let config = tls.offering([].into_iter());
            let dialled = dialled.parse().unwrap();
            meets(tls.by_name_or_address(config, dialled), "kubernetes.default.svc")
        };
        assert_eq!(over(DIALLED).unwrap(), Some(HandshakeKind::Full));
        assert!(is_of_name(&over("10.96.0.2").unwrap_err()), "verified again");
        assert_eq!(over(DIALLED).unwrap(), Some(HandshakeKind::Full));
    }

    fn is_of_name(error: &rustls::Error) -> bool {
        matches!(error, InvalidCertificate(CertificateError::NotValidForNameContext { .. }))
    }
}
