//! Certificates of the upstream.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ctrlmesh::net::tls;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::{
    ServerConfig,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// The names in the upstream's certificates.
const NAMES: &[&str] = &["localhost", "127.0.0.1", "::1", "10.96.0.1", "fd00:96::1"];
const HOUR: Duration = Duration::from_secs(3600);

/// A CA of the test's own.
pub struct Ca {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The certificate that the upstream presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cert {
    Good,
    WrongName,
    Expired,
    NotYetValid,
    OtherCa,
    LongLived,
    NamesOnly,
    Localhost,
}

/// A certificate and its key.
pub struct Signed {
    cert: rcgen::Certificate,
    key: KeyPair,
}

impl Ca {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A key and a certificate for the API server's names, as PEM.
    pub fn leaf(&self) -> String {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let names = ["kubernetes", "127.0.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = (SystemTime::now() + HOUR).into();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        format!("{}{}", key.serialize_pem(), cert.pem())
    }

    /// The TLS configuration of a server with such a certificate.
    pub fn server(&self, cert: Cert, alpn: &[&[u8]]) -> ServerConfig {
        self.signed(cert).server(alpn)
    }

    /// Such a certificate, with its key.
    pub fn signed(&self, cert: Cert) -> Signed {
        let now = SystemTime::now();
        let (names, from, to): (&[&str], _, _) = match cert {
            Cert::WrongName => (&["elsewhere.example"], now - HOUR, now + 24 * HOUR),
            Cert::Expired => (NAMES, now - 48 * HOUR, now - HOUR),
            Cert::NamesOnly => (&["kubernetes.default.svc"], now - HOUR, now + 24 * HOUR),
            Cert::Localhost => (&["localhost"], now - HOUR, now + 24 * HOUR),
            Cert::LongLived => (NAMES, now - HOUR, now + 20 * 365 * 24 * HOUR),
            Cert::NotYetValid => (NAMES, now + HOUR, now + 24 * HOUR),
            _ => (NAMES, now - HOUR, now + 24 * HOUR),
        };
        let other;
        let issuer = match cert {
            Cert::OtherCa => {
                other = Self::new("another CA");
                &other.issuer
            }
            _ => &self.issuer,
        };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = from.into();
        params.not_after = to.into();
        let cert = params.signed_by(&key, issuer).unwrap();
        Signed { cert, key }
    }
}

impl Signed {
    /// The certificate and its key, as PEM.
    pub fn pem(&self) -> (String, String) {
        (self.cert.pem(), self.key.serialize_pem())
    }

    /// The TLS configuration of a server that shows it.
    pub fn server(&self, alpn: &[&[u8]]) -> ServerConfig {
        self.showing(WebPkiClientVerifier::no_client_auth(), alpn)
    }

    /// The same for a server that demands a certificate of this CA.
    pub fn server_for_clients_of(&self, ca: &Ca, alpn: &[&[u8]]) -> ServerConfig {
        let roots = Arc::new(tls::roots_from_pem(ca.pem.as_bytes()).unwrap());
        let demands = WebPkiClientVerifier::builder_with_provider(roots, tls::provider());
        self.showing(demands.build().unwrap(), alpn)
    }

    fn showing(&self, clients: Arc<dyn ClientCertVerifier>, alpn: &[&[u8]]) -> ServerConfig {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![self.cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        config
    }
}
