//! The demands of both sides of a connection between peers on each other's leaf.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::{
    CertificateError, ClientConfig, CommonState, DistinguishedName, OtherError, ServerConfig,
    client::{
        Resumption,
        danger::{ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::WebPkiSupportedAlgorithms,
    server::{
        NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::sync::watch;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer};

use super::roots::{BadMeshRoots, MeshRoots, RootsPlace};
use crate::{
    Clock,
    identity::{BadIdentity, PodIdentity},
    leaf::Leaf,
    tls::{H2, provider, verify_signatures},
};

/// The server name (SNI) by which a peer calls. No name of the operator's, and of no certificate.
pub const PEER_NAME: &str = "peer.ctrlmesh";

/// The reason why who is at the other end is not the peer that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAPeer {
    #[error("it has shown no certificate")]
    NoCertificate,
    #[error("its certificate does not parse")]
    NotX509,
    #[error("its certificate has {0} URIs, and a peer's has one")]
    Uris(usize),
    #[error("its certificate is that of no pod")]
    NoPod(#[from] BadIdentity),
    #[error("it is {0}, and no pod of namespace {1}")]
    OtherNamespace(PodIdentity, Box<str>),
    #[error("it is {0}, and not {1}")]
    OtherPod(PodIdentity, PodIdentity),
    #[error("it does not speak HTTP/2")]
    NotHttp2,
}

/// TLS between this pod and its peers.
#[derive(Debug)]
pub struct PeerTls {
    leaf: Arc<Leaf>,
    namespace: Box<str>,
    place: RootsPlace,
    clock: Clock,
    current: ArcSwap<Current>,
    /// Told when there are other roots.
    changed: watch::Sender<()>,
}

/// The certificates by which a peer proved which pod it is.
#[derive(Debug)]
pub struct Proof {
    /// The peer's certificate, and those above it.
    chain: Vec<CertificateDer<'static>>,
    usage: KeyUsage,
}

/// The configurations that follow from the roots.
#[derive(Debug)]
struct Current {
    roots: MeshRoots,
    server: Arc<ServerConfig>,
}

impl PeerTls {
    /// TLS for the pod of this leaf and namespace. Fails with [`BadMeshRoots`].
    pub fn new(
        leaf: Arc<Leaf>,
        namespace: &str,
        place: RootsPlace,
        clock: Clock,
    ) -> Result<Self, BadMeshRoots> {
        let roots = MeshRoots::read(&place)?;
        let server = Arc::new(server(&leaf, namespace, &roots, &clock)?);
        let current = ArcSwap::from_pointee(Current { roots, server });
        let changed = watch::Sender::default();
        Ok(Self { leaf, namespace: namespace.into(), place, clock, current, changed })
    }

    /// Reads the roots again; returns whether they are others. Fails with [`BadMeshRoots`]; the
    /// present ones stay. What was accepted by older ones is to end where [`Self::disowned`] says so.
    pub fn refresh(&self) -> Result<bool, BadMeshRoots> {
        let roots = MeshRoots::read(&self.place)?;
        if roots == self.current.load().roots {
            return Ok(false);
        }
        let server = Arc::new(server(&self.leaf, &self.namespace, &roots, &self.clock)?);
        self.current.store(Arc::new(Current { roots, server }));
        self.changed.send_replace(());
        Ok(true)
    }

    /// Resolves when the roots are others, which do not vouch for a peer.
    pub async fn disowned(&self, proof: Proof) {
        let mut changes = self.changed.subscribe();
        // They may have changed since the proof.
        while self.vouches_for(&proof) && changes.changed().await.is_ok() {}
    }

    fn vouches_for(&self, Proof { chain, usage }: &Proof) -> bool {
        let Some((first, issuers)) = chain.split_first() else { return false };
        let Ok(first) = EndEntityCert::try_from(first) else { return false };
        let (current, now) = (self.current.load(), self.clock.unix());
        let roots = &current.roots.store().roots;
        let algorithms = provider().signature_verification_algorithms.all;
        first.verify_for_usage(algorithms, roots, issuers, now, *usage, None, None).is_ok()
    }

    /// The configuration for a client that calls [`PEER_NAME`]: it must be a peer.
    pub fn accepting(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().server)
    }

    /// The configuration of a connection to one peer, which is called [`PEER_NAME`].
    ///
    /// No session is resumed: the library keeps them by name, which is the same for all peers, and
    /// does not verify the certificate again.
    pub fn dialling(&self, peer: PodIdentity) -> Result<ClientConfig, rustls::Error> {
        let provider = provider();
        let verifier = OnePod {
            roots: self.current.load().roots.clone(),
            algorithms: provider.signature_verification_algorithms,
            peer,
        };
        let mut config = ClientConfig::builder_with_details(provider, self.clock.provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::clone(&self.leaf) as _);
        config.alpn_protocols = vec![H2.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

impl Proof {
    /// The proof of a peer that dialled us, when the handshake is over.
    pub fn of_client(connection: &CommonState) -> Self {
        Self::new(connection, KeyUsage::client_auth())
    }

    /// The proof of a peer that we dialled.
    pub fn of_server(connection: &CommonState) -> Self {
        Self::new(connection, KeyUsage::server_auth())
    }

    fn new(connection: &CommonState, usage: KeyUsage) -> Self {
        let chain = connection.peer_certificates().unwrap_or_default().to_vec();
        Self { chain, usage }
    }
}

/// The identity in a certificate. Fails with [`NotAPeer`]. Says nothing about who signed it.
pub fn identity_of(cert: &CertificateDer<'_>) -> Result<PodIdentity, NotAPeer> {
    let (_, cert) = X509Certificate::from_der(cert).map_err(|_| NotAPeer::NotX509)?;
    let names = cert.subject_alternative_name().map_err(|_| NotAPeer::NotX509)?;
    let names = names.map(|names| &*names.value.general_names).unwrap_or_default();
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    match (uris.next(), uris.count()) {
        (Some(uri), 0) => Ok(uri.parse()?),
        (first, others) => Err(NotAPeer::Uris(usize::from(first.is_some()) + others)),
    }
}

/// The peer at the other end of a connection that [`PeerTls`] configured, when the handshake is over.
/// Fails with [`NotAPeer`].
pub fn peer_of(connection: &CommonState) -> Result<PodIdentity, NotAPeer> {
    let cert = connection.peer_certificates().and_then(<[_]>::first);
    let peer = identity_of(cert.ok_or(NotAPeer::NoCertificate)?)?;
    // A client that offers no protocol is not refused by the library.
    if connection.alpn_protocol() == Some(H2) { Ok(peer) } else { Err(NotAPeer::NotHttp2) }
}

impl NotAPeer {
    /// The reason behind an error of the TLS library, if a handshake failed for one of these.
    pub fn of(error: &rustls::Error) -> Option<&Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
                why.downcast_ref()
            }
            _ => None,
        }
    }
}

impl From<NotAPeer> for rustls::Error {
    fn from(why: NotAPeer) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
    }
}

fn server(
    leaf: &Arc<Leaf>,
    namespace: &str,
    roots: &MeshRoots,
    clock: &Clock,
) -> Result<ServerConfig, rustls::Error> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let chains =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots.store()), provider.clone())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
    let verifier = OfNamespace { chains, algorithms, namespace: namespace.into() };
    let mut config = ServerConfig::builder_with_details(provider, clock.provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::clone(leaf) as _);
    config.alpn_protocols = vec![H2.to_vec()];
    // A resumed session would be that of a certificate which no one verifies again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Verifies that a client is a pod of the own namespace.
#[derive(Debug)]
struct OfNamespace {
    /// Verifies signatures, times, usage and constraints up to a root.
    chains: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
    namespace: Box<str>,
}

impl ClientCertVerifier for OfNamespace {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chains.verify_client_cert(end_entity, intermediates, now)?;
        let peer = identity_of(end_entity)?;
        if peer.namespace() == &*self.namespace {
            return Ok(verified);
        }
        Err(NotAPeer::OtherNamespace(peer, self.namespace.clone()).into())
    }

    verify_signatures!();
}

/// Verifies that a server is one pod.
#[derive(Debug)]
struct OnePod {
    roots: MeshRoots,
    algorithms: WebPkiSupportedAlgorithms,
    peer: PodIdentity,
}

impl ServerCertVerifier for OnePod {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let (roots, algorithms) = (self.roots.store(), self.algorithms.all);
        let cert = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&cert, roots, intermediates, now, algorithms)?;
        let shown = identity_of(end_entity)?;
        if shown == self.peer {
            return Ok(ServerCertVerified::assertion());
        }
        Err(NotAPeer::OtherPod(shown, self.peer.clone()).into())
    }

    verify_signatures!();
}
