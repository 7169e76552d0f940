//! A manager that the tests script: it signs with the product's own authorities.

use std::{
    fs, io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use ctrlmesh::{
    manager::trust::{LeafKey, Lifetimes, Purpose, Trust},
    net::{
        Clock, ClusterDomain,
        ca::{LeafSpec, Validity, certificate_pem},
        identity::PodIdentity,
        tls,
    },
    proxy::ManagerFlags,
};
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use super::{
    proxy::{Files, Setup},
    until,
    upstream::Upstream,
};

/// The token of the pod, which must appear nowhere but in requests to the manager.
pub const POD_TOKEN: &str = "pod-token-51c0ffee";

/// A manager on a port of localhost, as its only name. Ends when it is dropped.
pub struct Manager {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    purpose: Purpose,
    trust: Mutex<Trust>,
    clock: Clock,
    reply: Mutex<Reply>,
    asked: Mutex<Vec<Asked>>,
}

/// The answer to every request from now on.
#[derive(Clone, Debug)]
pub enum Reply {
    Sign,
    /// A Status, and the seconds of its `Retry-After`.
    Status(u16, &'static str, Option<u64>),
    /// A body with this code.
    Body(u16, Bytes),
    /// The chain for another key.
    OtherKey,
    /// No answer: the connection is closed.
    Close,
    /// No answer.
    Silence,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Asked {
    pub fn header(&self, name: header::HeaderName) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

fn purpose() -> Purpose {
    Purpose {
        serving: vec!["localhost".try_into().unwrap()],
        domain: ClusterDomain::default(),
        addresses: vec!["10.96.0.1".parse().unwrap()],
        names: vec![],
        lifetimes: Lifetimes::default(),
    }
}

impl Manager {
    pub async fn start() -> Self {
        Self::at(Clock::system()).await
    }

    /// One that makes all its certificates by this clock.
    pub async fn at(clock: Clock) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), clock)
    }

    pub fn on(listener: TcpListener, clock: Clock) -> Self {
        let purpose = purpose();
        let trust = Mutex::new(Trust::make(&purpose, clock.now()).unwrap());
        let (reply, asked) = (Mutex::new(Reply::Sign), Mutex::default());
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { purpose, trust, clock, reply, asked });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, Arc::clone(&shared)));
        Self { addr, shared, _tasks: tasks }
    }

    /// Writes what a pod gets of it: a token, the CAs of its certificate, the bundle.
    pub fn give_to(&self, files: &Files) {
        fs::write(files.manager_token(), format!("{POD_TOKEN}\n")).unwrap();
        let trust = self.shared.trust.lock().unwrap();
        let pem = |rollover: &ctrlmesh::manager::trust::CaRotation| {
            rollover.published().map(certificate_pem).collect::<String>()
        };
        fs::write(files.manager_ca(), pem(trust.serving())).unwrap();
        fs::write(files.bundle(), pem(trust.root())).unwrap();
        // What the tests' clients trust.
        fs::write(files.mesh_ca().join("ca.crt"), pem(trust.root())).unwrap();
    }

    /// The setting of a proxy with these files.
    pub fn setup(&self, upstream: &Upstream, files: &Files) -> Setup {
        let manager = ManagerFlags {
            manager: Some(self.name().parse().unwrap()),
            manager_ca: Some(files.manager_ca()),
            manager_token: Some(files.manager_token()),
            mesh_bundle: Some(files.bundle()),
        };
        let clock = self.shared.clock.clone();
        Setup { leaf: Some(files.leaf()), manager, clock, ..Setup::of(upstream) }
    }

    /// Its `HOST:PORT`.
    pub fn name(&self) -> String {
        format!("localhost:{}", self.addr.port())
    }

    pub fn replies(&self, reply: Reply) {
        *self.shared.reply.lock().unwrap() = reply;
    }

    /// Makes other authorities, as when its Secret was deleted.
    pub fn forgets_its_secret(&self) {
        let fresh = Trust::make(&self.shared.purpose, self.shared.clock.now()).unwrap();
        *self.shared.trust.lock().unwrap() = fresh;
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Waits until it was asked so often.
    pub async fn until_asked(&self, times: usize) -> Asked {
        let asked = until("requests", async || self.asked(), |asked| asked.len() >= times).await;
        asked[times - 1].clone()
    }
}

impl Shared {
    /// TLS with a certificate of the serving CA that is in force.
    fn tls(&self) -> TlsAcceptor {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let names = &[ServerName::try_from("localhost").unwrap()];
        let validity = Validity::starting(self.clock.now(), Duration::from_secs(7 * 24 * 3600));
        let spec = LeafSpec { names, uri: None, validity };
        let cert = self.trust.lock().unwrap().serving().signing().sign(&spec, &key).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_details(tls::provider(), self.clock.provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], key);
        TlsAcceptor::from(Arc::new(config.unwrap()))
    }

    fn signed(&self, der: &[u8]) -> String {
        let pod = PodIdentity::new("ns", "op-0", "u-1").unwrap();
        let key = LeafKey::of_request(der).unwrap();
        let trust = self.trust.lock().unwrap();
        let chain = trust.sign(&self.purpose, &key, &pod, &self.clock).unwrap();
        chain.iter().map(certificate_pem).collect()
    }

    async fn answer(&self, request: Request<Incoming>) -> Option<Response<Full<Bytes>>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        let reply = self.reply.lock().unwrap().clone();
        let asked = Asked {
            method: head.method,
            path: head.uri.path().to_owned(),
            headers: head.headers,
            body: body.clone(),
        };
        self.asked.lock().unwrap().push(asked);
        let with = |code, kind, body: Bytes| {
            Response::builder().status(code).header(header::CONTENT_TYPE, kind).body(body.into())
        };
        let chain = "application/pem-certificate-chain";
        let mut response = match &reply {
            Reply::Sign => with(200, chain, self.signed(&body).into()),
            Reply::Body(code, body) => with(*code, chain, body.clone()),
            Reply::OtherKey => {
                let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
                let other = rcgen::CertificateParams::default().serialize_request(&key).unwrap();
                with(200, chain, self.signed(other.der()).into())
            }
            Reply::Status(code, message, _) => {
                let status = format!(
                    "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\
                     \"reason\":\"Forbidden\",\"message\":\"{message}\",\"code\":{code}}}"
                );
                with(*code, "application/json", status.into())
            }
            Reply::Close => return None,
            Reply::Silence => std::future::pending().await,
        }
        .unwrap();
        if let Reply::Status(_, _, Some(seconds)) = reply {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        Some(response)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        while connections.try_join_next().is_some() {}
        let (acceptor, shared) = (shared.tls(), Arc::clone(&shared));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(tcp).await else { return };
            let service = service_fn(|request| {
                let shared = Arc::clone(&shared);
                async move {
                    let response = shared.answer(request).await;
                    response.ok_or_else(|| io::Error::other("as the test says"))
                }
            });
            let _: Result<(), _> =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
