//! Clients that never end what they say, and never read what they asked for, all at once: memory stays
//! within the container's, and the API server gets its reviews.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Manager, until};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::manager::figures::usage;
use crate::manager::scene::{OPERATORS, bundle, cluster, config, create, manager, pod};

/// Half of the memory that the chart gives the manager, in MiB.
const MOST: f64 = 128.0;
/// The time that the API server waits for a review.
const ANSWER: Duration = Duration::from_secs(5);
/// Longer than anything here may hold its place.
const SCENE: Duration = Duration::from_secs(25);

/// The manager's port, as a client that trusts its CA.
#[derive(Clone)]
struct Port {
    address: SocketAddr,
    connector: TlsConnector,
}

impl Port {
    fn of(manager: &Manager, cas: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(cas.as_bytes()) {
            roots.add(ca?)?;
        }
        let config = ClientConfig::builder_with_provider(ctrlmesh::net::tls::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address: manager.address(), connector: TlsConnector::from(Arc::new(config)) })
    }

    async fn connect(&self) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        Ok(self.connector.connect(ServerName::try_from("localhost")?, stream).await?)
    }

    /// Sends a review, whole or without its last byte. Reads nothing.
    async fn send(&self, body: &[u8], is_whole: bool) -> Result<TlsStream<TcpStream>> {
        let mut stream = self.connect().await?;
        let head = format!(
            "POST /inject HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        let end = body.len() - usize::from(!is_whole);
        stream.write_all(&body[..end]).await?;
        stream.flush().await?;
        Ok(stream)
    }

    /// Whether a review is answered well, and how long that took.
    async fn ask(&self, body: &[u8]) -> Result<Duration> {
        let began = Instant::now();
        let mut stream = self.send(body, true).await?;
        let mut answer = vec![0; 64];
        let read = stream.read(&mut answer).await?;
        ensure!(answer[..read].starts_with(b"HTTP/1.1 200"), "{:?}", &answer[..read]);
        Ok(began.elapsed())
    }
}

/// What a client does that means no good. It holds what it has for as long as it is polled.
async fn misbehave(port: Port, at: usize, small: Arc<Vec<u8>>, large: Arc<Vec<u8>>) {
    let hold = async |held: Result<TlsStream<TcpStream>>| {
        if let Ok(_stream) = held {
            sleep(SCENE).await;
        }
    };
    match at % 6 {
        0 => {
            if let Ok(mut stream) = TcpStream::connect(port.address).await {
                // Half of a ClientHello.
                let _ = stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc").await;
                sleep(SCENE).await;
            }
        }
        1 => hold(port.connect().await).await,
        2 => hold(port.send(&small, false).await).await,
        3 => hold(port.send(&large, false).await).await,
        4 => hold(port.send(&small, true).await).await,
        _ => hold(port.send(&large, true).await).await,
    }
}

#[test]
fn bad_i12_clients_that_never_end_and_never_read_fill_no_memory_and_no_place() -> Result<()> {
    let api = cluster()?;
    let manager = manager(&api, &[])?;
    create(&api, &config(OPERATORS), &[])?;
    let cas = bundle(&api, OPERATORS)?["manager.crt"].as_str().context("CAs")?.to_owned();
    let port = Port::of(&manager, &cas)?;
    let review = |padding: usize| {
        let mut pod = pod(OPERATORS, "one");
        pod["metadata"]["annotations"] = serde_json::json!({ "padding": "<".repeat(padding) });
        let volume = serde_json::json!({ "name": "kube-api-access-x2v4n", "projected": {} });
        pod["spec"]["volumes"] = serde_json::json!([volume]);
        let review = serde_json::json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u",
                "kind": { "group": "", "version": "v1", "kind": "Pod" },
                "namespace": OPERATORS,
                "operation": "CREATE",
                "object": pod,
            },
        });
        Arc::new(review.to_string().into_bytes())
    };
    let [good, small, large] = [0, 200 << 10, 3 << 20].map(review);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (slowest, answered) = runtime.block_on(async {
        let mut strangers = JoinSet::new();
        for at in 0..600 {
            strangers.spawn(misbehave(port.clone(), at, Arc::clone(&small), Arc::clone(&large)));
        }
        let (began, mut slowest, mut answered) = (Instant::now(), Duration::ZERO, 0);
        while began.elapsed() < SCENE {
            if let Ok(Ok(took)) = timeout(ANSWER, port.ask(&good)).await {
                slowest = slowest.max(took);
                answered += 1;
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok::<_, anyhow::Error>((slowest, answered))
    })?;
    let (_, [_, peak]) = usage(&manager)?;
    println!("{answered} reviews, the slowest in {slowest:?}; at most {peak:.0} MiB");
    ensure!(answered > 20, "{answered} reviews were answered");
    ensure!(peak < MOST, "{peak} MiB");
    until("all connections are gone", SCENE, || {
        Ok((manager.metric("ctrlmesh_manager_connections")? <= 4.0).then_some(()))
    })
}
