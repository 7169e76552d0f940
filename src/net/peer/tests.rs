use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType, date_time_ymd,
};
use rustls::{
    CertificateError, ClientConfig, Error, HandshakeKind, ServerConfig,
    client::Resumption,
    crypto::aws_lc_rs::Ticketer,
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tempfile::TempDir;

use super::*;
use crate::{
    Clock, ClusterDomain,
    ca::{Authority, CaSpec, Constraints, LeafSpec, MeshCa, Validity, certificate_pem},
    identity::{BadIdentity, PodIdentity},
    leaf::{Leaf, LeafSource},
    tests::{Met, meet},
    tls::{ClientTls, H2, HTTP_11, provider},
};

const HOUR: Duration = Duration::from_secs(3600);
/// A name and an address that the mesh's CAs may sign for.
const NAMES: [&str; 2] = ["kubernetes.default.svc", "10.96.0.1"];

fn pod(namespace: &str, name: &str, uid: &str) -> PodIdentity {
    PodIdentity::new(namespace, name, uid).unwrap()
}

fn op(number: u8) -> PodIdentity {
    pod("ns", &format!("op-{number}"), &format!("u-{number}"))
}

fn constraints() -> Constraints {
    let vip = "10.96.0.1".parse().unwrap();
    Constraints::kubernetes_and(&ClusterDomain::default(), vec![], vec![vip])
}

fn root(name: &str) -> Authority {
    let validity = Validity::starting(Clock::system().now(), 1000 * HOUR);
    let constraints = &constraints();
    Authority::root(&CaSpec { name, constraints, below: 1, validity }).unwrap()
}

fn pem(certs: &[&CertificateDer<'_>]) -> String {
    certs.iter().map(|cert| certificate_pem(cert)).collect()
}

/// The CAs of a cluster and of its mesh, whose names are constrained critically, and their files.
struct Mesh {
    dir: TempDir,
    cluster: Authority,
    root: Authority,
    issuer: Authority,
}

impl Mesh {
    fn new() -> Self {
        let (cluster, root) = (root("kubernetes"), root("ctrlmesh root"));
        let constraints = &constraints();
        let spec =
            CaSpec { name: "ctrlmesh issuer", constraints, below: 0, validity: root.validity() };
        let issuer = root.issue(&spec).unwrap();
        let mesh = Self { dir: tempfile::tempdir().unwrap(), cluster, root, issuer };
        mesh.put("cluster.crt", &[mesh.cluster.cert()]);
        mesh.put("bundle.crt", &[mesh.cluster.cert(), mesh.root.cert()]);
        mesh
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn put(&self, file: &str, certs: &[&CertificateDer<'_>]) {
        fs::write(self.path(file), pem(certs)).unwrap();
    }

    fn place(&self) -> RootsPlace {
        RootsPlace::Bundle {
            bundle: self.path("bundle.crt"),
            upstream_ca: self.path("cluster.crt"),
        }
    }

    /// The TLS of a pod with a leaf of the issuer's.
    fn pod(&self, identity: &PodIdentity) -> PeerTls {
        let names = &NAMES.map(|name| ServerName::try_from(name).unwrap());
        let validity = Validity::starting(Clock::system().now(), HOUR);
        let uri = identity.to_string();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let leaf = self.issuer.sign(&LeafSpec { names, uri: Some(&uri), validity }, &key).unwrap();
        let text = key.serialize_pem() + &pem(&[&leaf, self.issuer.cert()]);
        let path = self.path(&format!("{}.pem", identity.name()));
        fs::write(&path, text).unwrap();
        let leaf = Leaf::new(LeafSource::File { path, called: None }, &Clock::system()).unwrap();
        let namespace = identity.namespace();
        PeerTls::new(Arc::new(leaf), namespace, self.place(), Clock::system()).unwrap()
    }
}

/// A leaf that no CA of ours would sign, below one of them.
fn odd(ca: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Arc<SingleCertAndKey> {
    let issuer = KeyPair::from_pem(&ca.key_pem()).unwrap();
    let issuer = Issuer::from_ca_cert_der(ca.cert(), issuer).unwrap();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::new(NAMES.map(str::to_owned)).unwrap();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names.push(uri(&op(1).to_string()));
    change(&mut params);
    let cert = params.signed_by(&key, &issuer).unwrap().into();
    shown(vec![cert, ca.cert().clone()], &key)
}

/// A key that is shown with whatever certificates.
fn shown(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> Arc<SingleCertAndKey> {
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let key = provider().key_provider.load_private_key(key).unwrap();
    Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key)))
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn accepting(tls: &PeerTls) -> ServerConfig {
    ServerConfig::clone(&tls.accepting())
}

fn call(from: &PeerTls, to: &PeerTls, wanted: &PodIdentity) -> Met {
    meet(from.dialling(wanted.clone()).unwrap(), accepting(to), PEER_NAME)
}

#[test]
fn pods_of_a_namespace_meet_and_know_each_other() {
    let mesh = Mesh::new();
    let (one, two) = (mesh.pod(&op(1)), mesh.pod(&op(2)));
    let (client, server) = call(&one, &two, &op(2)).unwrap();
    assert_eq!((peer_of(&client), peer_of(&server)), (Ok(op(2)), Ok(op(1))));
    assert_eq!(server.server_name(), Some(PEER_NAME));
    assert_eq!(client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    // A pod may be another shard's of the same name tomorrow.
    for other in [pod("ns", "op-2", "u-3"), op(1), pod("other", "op-2", "u-2")] {
        let refused = call(&one, &two, &other).client.unwrap_err();
        assert_eq!(NotAPeer::of(&refused), Some(&NotAPeer::OtherPod(op(2), other)));
    }
    let stranger = pod("other", "op-1", "u-1");
    let refused = call(&mesh.pod(&stranger), &two, &op(2)).server.unwrap_err();
    assert_eq!(NotAPeer::of(&refused), Some(&NotAPeer::OtherNamespace(stranger, "ns".into())));
    assert!(NotAPeer::of(&Error::DecryptError).is_none());
}

#[test]
fn pods_that_sign_for_themselves_meet_too() {
    let dir = tempfile::tempdir().unwrap();
    MeshCa::create(dir.path(), &constraints(), &Clock::system()).unwrap();
    let names = NAMES.map(|name| ServerName::try_from(name).unwrap()).to_vec();
    // A leaf that is renewed later is not valid yet today.
    let later = Clock::ahead_by(17 * HOUR);
    let pod = |identity: Option<PodIdentity>| {
        let (dir, names) = (dir.path().to_owned(), names.clone());
        let source = LeafSource::MeshCa { dir: dir.clone(), names, identity };
        let leaf = Arc::new(Leaf::new(source, &Clock::system()).unwrap());
        let tls = PeerTls::new(Arc::clone(&leaf), "ns", RootsPlace::MeshCa(dir), later.clone());
        (leaf, tls.unwrap())
    };
    let ((leaf, one), (_, two), (_, nobody)) = (pod(Some(op(1))), pod(Some(op(2))), pod(None));
    for renewed in [true, false] {
        let (client, server) = call(&one, &two, &op(2)).unwrap();
        assert_eq!((peer_of(&client), peer_of(&server)), (Ok(op(2)), Ok(op(1))));
        assert_eq!(leaf.refresh(&later).unwrap(), renewed);
    }
    assert!(leaf.covers("kubernetes.default.svc") && leaf.covers("10.96.0.1"));
    assert!(call(&nobody, &two, &op(2)).server.is_err());
    let refused = call(&one, &nobody, &op(2)).client.unwrap_err();
    assert_eq!(NotAPeer::of(&refused), Some(&NotAPeer::Uris(0)));
}

/// The view that one end has of a leaf.
enum Said {
    Peer(fn(&NotAPeer) -> bool),
    Tls(fn(&CertificateError) -> bool),
}

impl Said {
    fn is(&self, error: &Error) -> bool {
        match (self, NotAPeer::of(error), error) {
            (Self::Peer(is), Some(why), _) => is(why),
            (Self::Tls(is), None, Error::InvalidCertificate(why)) => is(why),
            _ => false,
        }
    }
}

/// A leaf, in words too, and the text of it.
type Stranger = (&'static str, Arc<SingleCertAndKey>, Said);

/// Leaves that both sides refuse.
fn strangers(mesh: &Mesh) -> impl Iterator<Item = Stranger> {
    of_no_pod(mesh).into_iter().chain(of_no_mesh(mesh))
}

/// Leaves of the mesh that name no pod.
fn of_no_pod(mesh: &Mesh) -> Vec<Stranger> {
    let with = |change: fn(&mut CertificateParams)| odd(&mesh.issuer, change);
    vec![
        (
            "no URI",
            with(|it| drop(it.subject_alt_names.pop())),
            Said::Peer(|why| *why == NotAPeer::Uris(0)),
        ),
        (
            "two URIs",
            with(|it| it.subject_alt_names.push(uri("spiffe://ctrlmesh/ns/ns/pod/op-2/u-2"))),
            Said::Peer(|why| *why == NotAPeer::Uris(2)),
        ),
        (
            "the URI twice",
            with(|it| it.subject_alt_names.push(uri(&op(1).to_string()))),
            Said::Peer(|why| *why == NotAPeer::Uris(2)),
        ),
        (
            "the URI of another trust domain",
            with(|it| {
                it.subject_alt_names.pop();
                it.subject_alt_names.push(uri("spiffe://cluster.local/ns/ns/pod/op-1/u-1"));
            }),
            Said::Peer(|why| matches!(why, NotAPeer::NoPod(BadIdentity::Uri(_)))),
        ),
        (
            "a pod's URI with more",
            with(|it| {
                it.subject_alt_names.pop();
                it.subject_alt_names.push(uri(&format!("{}?x", op(1))));
            }),
            Said::Peer(|why| matches!(why, NotAPeer::NoPod(BadIdentity::Uid(_)))),
        ),
    ]
}

/// Leaves with a pod's URI that the mesh's CAs do not stand for.
fn of_no_mesh(mesh: &Mesh) -> Vec<Stranger> {
    let with = |change: fn(&mut CertificateParams)| odd(&mesh.issuer, change);
    let self_signed = root("ctrlmesh root");
    let thief = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let stolen = odd(&mesh.issuer, |_| {});
    let stolen = rustls::client::ResolvesClientCert::resolve(&*stolen, &[], &[]).unwrap();
    vec![
        (
            "a name outside of the constraints",
            with(|it| {
                it.subject_alt_names.push(SanType::DnsName("evil.example".try_into().unwrap()))
            }),
            Said::Tls(|why| matches!(why, CertificateError::Other(_))),
        ),
        (
            "an end that is over",
            with(|it| it.not_after = date_time_ymd(2020, 1, 1)),
            Said::Tls(|why| matches!(why, CertificateError::ExpiredContext { .. })),
        ),
        (
            "the cluster's CA behind it",
            odd(&mesh.cluster, |_| {}),
            Said::Tls(|why| *why == CertificateError::UnknownIssuer),
        ),
        (
            "a root of the same name behind it",
            odd(&self_signed, |_| {}),
            Said::Tls(|why| {
                matches!(why, CertificateError::BadSignature | CertificateError::UnknownIssuer)
            }),
        ),
        (
            "a key of its own",
            shown(stolen.cert.clone(), &thief),
            Said::Tls(|why| *why == CertificateError::BadSignature),
        ),
    ]
}

#[test]
fn who_accepts_refuses_strangers() {
    let mesh = Mesh::new();
    let (one, two) = (mesh.pod(&op(1)), mesh.pod(&op(2)));
    let as_client = |leaf: Arc<SingleCertAndKey>| {
        let mut config = one.dialling(op(2)).unwrap();
        config.client_auth_cert_resolver = leaf;
        meet(config, accepting(&two), PEER_NAME)
    };
    as_client(odd(&mesh.issuer, |_| {})).unwrap();
    let only_server = odd(&mesh.issuer, |it| drop(it.extended_key_usages.pop()));
    let of_purpose = Said::Tls(|why| matches!(why, CertificateError::InvalidPurposeContext { .. }));
    for (what, leaf, said) in strangers(&mesh).chain([("no clientAuth", only_server, of_purpose)]) {
        let refused = as_client(leaf).server.unwrap_err();
        assert!(said.is(&refused), "{what}: {refused:?}");
    }
    let roots = Arc::clone(MeshRoots::read(&mesh.place()).unwrap().store());
    let anybody = |versions| {
        ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(Arc::clone(&roots))
    };
    let anonymous = anybody(rustls::ALL_VERSIONS).with_no_client_auth();
    let refused = meet(anonymous, accepting(&two), NAMES[0]).server.unwrap_err();
    assert!(matches!(refused, Error::NoCertificatesPresented), "{refused:?}");
    let old =
        anybody(&[&rustls::version::TLS12]).with_client_cert_resolver(odd(&mesh.issuer, |_| {}));
    let refused = meet(old, accepting(&two), NAMES[0]).server.unwrap_err();
    assert!(matches!(refused, Error::PeerIncompatible(_)), "{refused:?}");
}

#[test]
fn who_dials_refuses_strangers() {
    let mesh = Mesh::new();
    let (one, two) = (mesh.pod(&op(1)), mesh.pod(&op(2)));
    let as_server = |leaf: Arc<SingleCertAndKey>| {
        let mut config = accepting(&one);
        config.cert_resolver = leaf;
        meet(two.dialling(op(1)).unwrap(), config, PEER_NAME)
    };
    as_server(odd(&mesh.issuer, |_| {})).unwrap();
    let only_client = odd(&mesh.issuer, |it| drop(it.extended_key_usages.remove(0)));
    let of_purpose = Said::Tls(|why| matches!(why, CertificateError::InvalidPurposeContext { .. }));
    for (what, leaf, said) in strangers(&mesh).chain([("no serverAuth", only_client, of_purpose)]) {
        let refused = as_server(leaf).client.unwrap_err();
        assert!(said.is(&refused), "{what}: {refused:?}");
    }
    // An API server behind the pod's former address, in the mesh's own name.
    let front = ClientTls::new(
        odd(&mesh.issuer, |it| {
            it.subject_alt_names.pop();
        }),
        &Clock::system(),
    );
    let met = meet(two.dialling(op(1)).unwrap(), front.unwrap().speaking(Some(H2)), PEER_NAME);
    assert_eq!(NotAPeer::of(&met.client.unwrap_err()), Some(&NotAPeer::Uris(0)));
}

#[test]
fn peers_speak_http2() {
    let mesh = Mesh::new();
    let (one, two) = (mesh.pod(&op(1)), mesh.pod(&op(2)));
    for (offered, wanted) in [(vec![HTTP_11.to_vec()], None), (vec![], Some(NotAPeer::NotHttp2))] {
        let mut config = one.dialling(op(2)).unwrap();
        config.alpn_protocols = offered;
        match (meet(config, accepting(&two), PEER_NAME).server, wanted) {
            (Err(Error::NoApplicationProtocol), None) => {}
            (Ok(server), Some(wanted)) => assert_eq!(peer_of(&server), Err(wanted)),
            (met, _) => panic!("{met:?}"),
        }
    }
}

#[test]
fn no_session_is_resumed() {
    let mesh = Mesh::new();
    let (one, two) = (mesh.pod(&op(1)), mesh.pod(&op(2)));
    let resumes = |client: &ClientConfig, server: &ServerConfig| {
        let again = || meet(client.clone(), server.clone(), PEER_NAME).unwrap().0;
        let (first, second) = (again(), again());
        assert_eq!(first.handshake_kind(), Some(HandshakeKind::Full));
        (first.tls13_tickets_received(), second.handshake_kind() == Some(HandshakeKind::Resumed))
    };
    let (client, server) = (one.dialling(op(2)).unwrap(), accepting(&two));
    assert_eq!(resumes(&client, &server), (0, false));
    let mut willing_server = server.clone();
    willing_server.ticketer = Ticketer::new().unwrap();
    willing_server.send_tls13_tickets = 2;
    assert!(!resumes(&client, &willing_server).1, "the client does not");
    let mut willing_client = client;
    willing_client.resumption = Resumption::in_memory_sessions(8);
    assert!(!resumes(&willing_client, &server).1, "the server does not");
    assert_eq!(resumes(&willing_client, &willing_server), (2, true), "the judge is real");
}

#[test]
fn roots_are_the_meshs_alone_and_read_again() {
    let mesh = Mesh::new();
    let roots = || MeshRoots::read(&mesh.place());
    let only = roots().unwrap();
    assert_eq!(only.store().len(), 1);
    assert_eq!(only.store().roots[0], webpki::anchor_from_trusted_cert(mesh.root.cert()).unwrap());

    // The cluster's CA was renewed: with the same key, or with another.
    let renewed = root("kubernetes");
    mesh.put("bundle.crt", &[mesh.cluster.cert(), renewed.cert(), mesh.root.cert()]);
    assert_eq!(roots().unwrap(), only);
    let other_name = {
        let key = KeyPair::from_pem(&mesh.cluster.key_pem()).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.self_signed(&key).unwrap().into()
    };
    mesh.put("bundle.crt", &[&other_name, mesh.root.cert()]);
    assert_eq!(roots().unwrap(), only);

    mesh.put("bundle.crt", &[mesh.cluster.cert(), renewed.cert()]);
    let said = roots().unwrap_err().to_string();
    assert!(said.contains("bundle.crt holds none but those of --upstream-ca"), "{said}");
    for file in ["bundle.crt", "cluster.crt"] {
        fs::write(mesh.path(file), "").unwrap();
        assert!(matches!(roots().unwrap_err(), BadMeshRoots::Unusable(_)), "{file}");
    }
}

#[test]
fn roots_that_were_replaced_decide_from_then_on() {
    let (mesh, other) = (Mesh::new(), Mesh::new());
    let (one, two, foreign) = (mesh.pod(&op(1)), mesh.pod(&op(2)), other.pod(&op(1)));
    other.put("bundle.crt", &[other.cluster.cert(), other.root.cert(), mesh.root.cert()]);
    assert!(foreign.refresh().unwrap());
    assert!(!two.refresh().unwrap());
    let refused = call(&foreign, &two, &op(2)).server.unwrap_err();
    // Both roots have the same name.
    assert_eq!(refused, Error::InvalidCertificate(CertificateError::BadSignature));
    mesh.put("bundle.crt", &[mesh.cluster.cert(), mesh.root.cert(), other.root.cert()]);
    assert!(two.refresh().unwrap() && !two.refresh().unwrap());
    call(&one, &two, &op(2)).unwrap();
    assert!(call(&foreign, &two, &op(2)).server.is_ok());
    mesh.put("bundle.crt", &[other.root.cert()]);
    fs::remove_file(mesh.path("cluster.crt")).unwrap();
    assert!(two.refresh().is_err());
    call(&one, &two, &op(2)).unwrap();
    mesh.put("cluster.crt", &[mesh.cluster.cert()]);
    assert!(two.refresh().unwrap());
    assert!(call(&one, &two, &op(2)).server.is_err());
    assert!(
        two.dialling(op(1))
            .is_ok_and(|config| { meet(config, accepting(&one), PEER_NAME).client.is_err() })
    );
}
