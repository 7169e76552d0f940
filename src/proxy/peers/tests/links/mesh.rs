//! A mesh of the test's own: its CA, and pods that answer.

use std::{
    convert::Infallible,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

use super::super::{identity, siblings, usable};
use crate::peers::{PeerPicker, Peers, facts::PodFacts, table::Chosen};
use ctrlmesh_net::{
    Clock,
    identity::PodIdentity,
    leaf::{Leaf, LeafSource},
    peer::{PeerTls, RootsPlace, peer_of},
};

/// The CA, and the pods' leaves.
pub(super) struct Mesh {
    dir: TempDir,
    /// The certificate of the CA.
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Mesh {
    pub(super) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let mesh = Self { dir, pem, issuer: Issuer::new(params, key) };
        mesh.trust(&[&mesh]);
        mesh
    }

    /// Has those who read its CA find those of these meshes.
    pub(super) fn trust(&self, meshes: &[&Self]) {
        let all: String = meshes.iter().map(|mesh| &*mesh.pem).collect();
        fs::write(self.dir.path().join("ca.crt"), all).unwrap();
    }

    /// The TLS of a pod.
    pub(super) fn tls(&self, pod: &PodIdentity) -> Arc<PeerTls> {
        self.tls_trusting(pod, self.dir.path())
    }

    /// The TLS of a pod that trusts the CA in this directory.
    pub(super) fn tls_trusting(&self, pod: &PodIdentity, ca: &Path) -> Arc<PeerTls> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.not_after = (SystemTime::now() + Duration::from_secs(3600)).into();
        params.subject_alt_names = vec![SanType::URI(pod.to_string().try_into().unwrap())];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let path = self.dir.path().join(pod.uid());
        fs::write(&path, format!("{}{}", key.serialize_pem(), cert.pem())).unwrap();
        let leaf = Leaf::new(LeafSource::File { path, called: None }, &Clock::system()).unwrap();
        let place = RootsPlace::MeshCa(ca.to_owned());
        Arc::new(PeerTls::new(Arc::new(leaf), pod.namespace(), place, Clock::system()).unwrap())
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

type Reply = Result<Response<Full<Bytes>>, &'static str>;
type Service = Rc<dyn Fn(Request<Incoming>) -> LocalBoxFuture<'static, Reply>>;

/// A pod that answers, and counts the connections to it.
pub(super) struct Pod {
    pub(super) addr: SocketAddr,
    pub(super) connections: Arc<AtomicUsize>,
    finish: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    #[expect(clippy::disallowed_methods, reason = "the tasks end with the test's runtime")]
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

impl Pod {
    /// A pod that takes `limit` requests at once on each connection.
    pub(super) async fn start(
        tls: Arc<PeerTls>,
        limit: u32,
        service: impl Fn(Request<Incoming>) -> LocalBoxFuture<'static, Reply> + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Arc::<AtomicUsize>::default();
        let (finish, finishing) = watch::channel(false);
        let (service, count): (Service, _) = (Rc::new(service), Arc::clone(&connections));
        let mut tasks = JoinSet::new();
        tasks.spawn_local(async move {
            let mut all = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Relaxed);
                let (tls, service) = (Arc::clone(&tls), Rc::clone(&service));
                all.spawn_local(serve(stream, tls, limit, service, finishing.clone()));
            }
        });
        Self { addr, connections, finish, tasks }
    }

    /// Lets the requests under way end, and takes no other on these connections.
    pub(super) fn finish(&self) {
        self.finish.send_replace(true);
        self.finish.send_replace(false);
    }

    /// Cuts all connections.
    pub(super) async fn cut(&mut self) {
        self.tasks.shutdown().await;
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }
}

async fn serve(
    stream: TcpStream,
    tls: Arc<PeerTls>,
    limit: u32,
    service: Service,
    mut finishing: watch::Receiver<bool>,
) {
    let Ok(stream) = TlsAcceptor::from(tls.accepting()).accept(stream).await else { return };
    assert_eq!(peer_of(stream.get_ref().1).unwrap(), identity("own"));
    finishing.mark_unchanged();
    let serving = http2::Builder::new(Local)
        .max_concurrent_streams(limit)
        .serve_connection(TokioIo::new(stream), service_fn(move |request| service(request)));
    let mut serving = std::pin::pin!(serving);
    loop {
        tokio::select! {
            _ = &mut serving => return,
            changed = finishing.changed() => match changed {
                Ok(()) => serving.as_mut().graceful_shutdown(),
                Err(_) => return,
            },
        }
    }
}

/// The facts of a pod at this address.
pub(super) fn at(name: &str, addr: SocketAddr) -> PodFacts {
    PodFacts { addrs: vec![addr], ..usable(name, "blue") }
}

/// Puts a table of these pods in force.
pub(super) fn put(peers: &Peers, pods: &[PodFacts]) {
    let shards = siblings(&["blue"]);
    let table = peers.table().next(&shards, pods, &identity("own"), Instant::now());
    peers.put(table);
}

pub(super) async fn chosen(peers: &Peers) -> Chosen {
    PeerPicker::new(peers, "blue", None, Duration::MAX).next().await.unwrap()
}

/// An address at which no one listens.
pub(super) async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).await.unwrap();
    listener.local_addr().unwrap()
}

pub(super) fn text(text: &'static str) -> LocalBoxFuture<'static, Reply> {
    Box::pin(async move { Ok(Response::new(Full::from(text))) })
}

/// For [`Infallible`] bodies of requests.
pub(super) type Never = Infallible;
