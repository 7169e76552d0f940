//! A gate between replicas and the API server. It lets a given number of writes pass, or answers in
//! the API server's place. It terminates TLS, and speaks HTTP/1.1 alone.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::ApiServer;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy, split},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, server::TlsStream};

/// The longest head of a request.
const HEAD: usize = 64 << 10;

/// The fate of the requests that come.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// All pass.
    Open,
    /// So many writes pass, others are cut off. Those of the Lease count for nothing.
    Writes(usize),
    /// So many requests have this status for an answer, others pass.
    Answer(u16, usize),
}

#[derive(Debug)]
struct State {
    rule: Rule,
    /// Requests that did not pass.
    stopped: usize,
}

/// The gate. Its drop closes it.
pub(crate) struct Gate {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// Its drop ends the thread.
    _close: oneshot::Sender<()>,
}

impl Gate {
    /// A gate that is open.
    pub(crate) fn start(api: &ApiServer) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let identity = api.authority().server("gate", &["127.0.0.1".to_owned()])?;
        let chain = vec![CertificateDer::from_pem_slice(identity.cert_pem.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes())?;
        let provider = ctrlmesh::net::tls::provider();
        let tls = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let mut tls = tls.with_no_client_auth().with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(api.ca_pem().as_bytes())?)?;
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(tls));
        let state = Arc::new(Mutex::new(State { rule: Rule::Open, stopped: 0 }));
        let (server, at_gate) = (api.address(), Arc::clone(&state));
        let (close, closed) = oneshot::channel::<()>();
        let accepts = async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, connector) = (acceptor.clone(), connector.clone());
                let state = Arc::clone(&at_gate);
                connections.spawn(async move {
                    let client = acceptor.accept(client).await?;
                    carry(client, &connector, server, &state).await
                });
                while connections.try_join_next().is_some() {}
            }
        };
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accepts => {}
                    _ = closed => {}
                }
            });
        });
        Ok(Self { address, state, _close: close })
    }

    /// `https://HOST:PORT`.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Lets all pass.
    pub(crate) fn open(&self) {
        self.set(Rule::Open);
    }

    /// Lets so many writes pass.
    pub(crate) fn allow(&self, writes: usize) {
        self.set(Rule::Writes(writes));
    }

    /// Answers so many requests with this status.
    pub(crate) fn answer(&self, status: u16, requests: usize) {
        self.set(Rule::Answer(status, requests));
    }

    /// Requests that did not pass since the last change.
    pub(crate) fn stopped(&self) -> usize {
        lock(&self.state).stopped
    }

    fn set(&self, rule: Rule) {
        *lock(&self.state) = State { rule, stopped: 0 };
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fate of one request.
enum Verdict {
    Pass,
    Cut,
    Answer(u16),
}

impl State {
    fn judge(&mut self, head: &str) -> Verdict {
        let is_write = !head.starts_with("GET ")
            && ["/leases", "/tokenreviews"].iter().all(|part| !head.contains(part));
        let verdict = match &mut self.rule {
            Rule::Writes(0) if is_write => Verdict::Cut,
            Rule::Writes(left) if is_write => {
                *left -= 1;
                Verdict::Pass
            }
            Rule::Answer(status, left @ 1..) => {
                *left -= 1;
                Verdict::Answer(*status)
            }
            Rule::Open | Rule::Writes(_) | Rule::Answer(..) => Verdict::Pass,
        };
        self.stopped += usize::from(!matches!(verdict, Verdict::Pass));
        verdict
    }
}

/// Carries the requests of one connection, one after the other, and the bytes of their answers.
async fn carry(
    client: TlsStream<TcpStream>,
    connector: &TlsConnector,
    server: SocketAddr,
    state: &Mutex<State>,
) -> Result<()> {
    let tcp = TcpStream::connect(server).await?;
    let server = connector.connect(ServerName::from(server.ip()), tcp).await?;
    let (mut asked, mut told) = split(client);
    let (mut answers, mut asks) = split(server);
    let requests = async {
        loop {
            let request = read_request(&mut asked).await?;
            let end = request.iter().position(|byte| *byte == b'\r').context("a line")?;
            let verdict = lock(state).judge(&String::from_utf8_lossy(&request[..end]));
            match verdict {
                Verdict::Pass => {
                    asks.write_all(&request).await?;
                    asks.flush().await?;
                }
                Verdict::Cut => return Ok(None),
                Verdict::Answer(status) => return Ok(Some(status)),
            }
        }
    };
    let status: Result<Option<u16>> = tokio::select! {
        status = requests => status,
        ended = copy(&mut answers, &mut told) => ended.map(|_| None).map_err(Into::into),
    };
    if let Some(status) = status? {
        let body = serde_json::json!({
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": "the gate answers",
            "code": status,
        })
        .to_string();
        let head = format!(
            "HTTP/1.1 {status} No\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        told.write_all(head.as_bytes()).await?;
        told.write_all(body.as_bytes()).await?;
        told.shutdown().await?;
    }
    Ok(())
}

/// Reads a request with its body.
async fn read_request(from: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        ensure!(request.len() < HEAD, "a head without an end");
        request.push(from.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&request).to_ascii_lowercase();
    ensure!(!head.contains("transfer-encoding:"), "a body of unknown length");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.map_or(Ok(0), |text| text.trim().parse())?;
    let at = request.len();
    request.resize(at + length, 0);
    from.read_exact(&mut request[at..]).await?;
    Ok(request)
}
