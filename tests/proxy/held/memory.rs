//! Memory of the real binary.

use std::pin::Pin;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response, header};
use hyper::body::Incoming;
use tokio::task::JoinSet;

use crate::support::{
    CONFIGMAPS,
    client::{self, Client, Http, request, request_with, upload},
    policies::everything_policy,
    process::{Process, flags},
    proxy::{Files, Proxy},
    scrape, soon, until,
    upstream::{Stream, Upstream},
};

pub(super) const MIB: usize = 1 << 20;
pub(super) const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/op";

pub(super) async fn scene(http: Http) -> (Upstream, Process, Files) {
    let upstream = Upstream::speaking(http).await;
    let files = Files::new(&upstream.ca.pem);
    let mut flags = flags(&files, &format!("localhost:{}", upstream.addr.port()));
    flags.push("--threads=2".into());
    let process = Process::start(&flags).await;
    (upstream, process, files)
}

pub(super) async fn metric(process: &Process, name: &str, labels: &[(&str, &str)]) -> f64 {
    scrape::sample(&scrape::page(process.admin, "/metrics").await.1, name, labels)
}

/// Waits until the process has at most this much memory.
async fn until_within(what: &str, process: &Process, bytes: usize) {
    until(what, || async { process.memory("VmRSS") }, |now| *now <= bytes).await;
}

#[tokio::test]
async fn bad_unfinished_bodies_that_may_name_the_lock_share_one_room() {
    const BODIES: u32 = 120;
    let (mut upstream, process, files) = scene(Http::Two).await;
    let trust = files.mesh_ca_pem();
    // The first connection allocates what every process keeps.
    let mut lease = Client::to(process.addr, &trust, Http::Two).await;
    let get = lease.send(request(Method::GET, LEASE));
    upstream.call().await.json(200, "{}");
    get.await.unwrap();
    let idle = process.memory("VmRSS");

    let mut uploads = JoinSet::new();
    let mut clients = Vec::new();
    for n in 0..BODIES {
        if n % 40 == 0 {
            clients.push(Client::to(process.addr, &trust, Http::Two).await);
        }
        let client = clients.last_mut().expect("one was made");
        let (mut sent, body) = upload(Method::POST, CONFIGMAPS);
        sent.headers_mut().remove(header::AUTHORIZATION);
        uploads.spawn(unfinished(client.send(sent), body));
    }
    let mut held = Vec::new();
    while let Some(ended) = soon("an upload", uploads.join_next()).await {
        match ended.unwrap() {
            Ok(unanswered) => held.push(unanswered),
            Err(answer) => {
                assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
                let (code, told) = client::text(answer).await;
                assert!(code == 429 && told.contains("TooManyRequests"), "{code} {told}");
            }
        }
    }
    // Bytes from the clients may still be on their way: four large bodies fit.
    let look = || metric(&process, "ctrlmesh_refusals_total", &[("reason", "no_room")]);
    let refused = BODIES - 4;
    until("refusals", look, |now| *now + 0.5 > f64::from(refused)).await;
    // The room is full, and yet the lock is renewed.
    let put = lease.send(request_with(Method::PUT, LEASE, r#"{"metadata":{"name":"op"}}"#));
    let mut call = upstream.call().await;
    assert_eq!(call.body().await.unwrap(), r#"{"metadata":{"name":"op---blue"}}"#);
    call.json(200, "{}");
    assert_eq!(put.await.unwrap().status(), 200);
    assert!(upstream.is_quiet());

    let peak = process.memory("VmHWM");
    let spread = |bytes: usize| format!("{} MiB over {} MiB", (bytes - idle) / MIB, idle / MIB);
    assert!(peak <= idle + 40 * MIB, "{}, {} held", spread(peak), held.len());
    drop((clients, held));
    until_within("what stays", &process, idle + 20 * MIB).await;

    // There is room again.
    let post = lease.send(request_with(Method::POST, CONFIGMAPS, vec![b' '; 2 << 20]));
    assert_eq!(client::text(post.await.unwrap()).await.0, 400, "it is no JSON");
}

/// A body without an end, and the response that is awaited.
pub(super) type Unanswered = (Stream, Pin<Box<dyn Future<Output = Answer> + Send>>);
pub(super) type Answer = Result<Response<Incoming>, hyper::Error>;

/// Sends 3 MiB less a piece; fails with the response if one comes before.
pub(super) async fn unfinished(
    answer: impl Future<Output = Answer> + Send + 'static,
    body: Stream,
) -> Result<Unanswered, Response<Incoming>> {
    const PIECE: usize = 64 << 10;
    let piece = Bytes::from(vec![b' '; PIECE]);
    let mut answer: Pin<Box<dyn Future<Output = Answer> + Send>> = Box::pin(answer);
    for _ in 1..(3 << 20) / PIECE {
        tokio::select! {
            answer = &mut answer => return Err(answer.unwrap()),
            took = body.offer(piece.clone()) => if !took { return Err(answer.await.unwrap()) },
        }
    }
    Ok((body, answer))
}

#[tokio::test]
async fn watches_keep_no_more_of_their_heads_than_they_need() {
    const WATCHES: usize = 100;
    let (mut upstream, process, files) = scene(Http::Two).await;
    let mut clients = Vec::new();
    let mut watches = Vec::new();
    let mut before = 0;
    for n in 0..WATCHES {
        if n % 50 == 0 {
            clients.push(Client::to(process.addr, &files.mesh_ca_pem(), Http::Two).await);
        }
        let client = clients.last_mut().expect("one was made");
        let mut sent = request(Method::GET, &format!("{CONFIGMAPS}?watch=1"));
        for n in 0..25 {
            let name = HeaderName::try_from(format!("x-{n}")).unwrap();
            let value = HeaderValue::from_str(&"x".repeat(30_000)).unwrap();
            sent.headers_mut().insert(name, value);
        }
        let pending = client.send(sent);
        let events = upstream.call().await.watch();
        watches.push((pending.await.unwrap(), events));
        // Memory that one request takes for a moment is reused by the next.
        if n == 9 {
            before = process.memory("VmRSS");
        }
    }
    let more = process.memory("VmRSS").saturating_sub(before);
    assert!(more < 24 * MIB, "{} MiB over {} MiB", more / MIB, before / MIB);
}

/// Its options are read before anything goes upstream, since its objects are deleted by requests of
/// the proxy's own.
#[tokio::test]
async fn bad_unfinished_bodies_of_judged_deletecollections_share_that_room() {
    const BODIES: usize = 320;
    const PART: usize = 60 << 10;
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let half =
        "hash: {of: uid, ranges: [{from: \"0x0000000000000000\", to: \"0x8000000000000000\"}]}";
    proxy.change_policy(&everything_policy(half)).await;
    let (mut clients, mut requests, mut bodies) = (Vec::new(), JoinSet::new(), Vec::new());
    for n in 0..BODIES {
        if n % 160 == 0 {
            clients.push(Client::new(&proxy, Http::Two).await);
        }
        let client = clients.last_mut().expect("one was made");
        let (sent, body) = upload(Method::DELETE, "/api/v1/namespaces/ns/configmaps");
        requests.spawn(client.send(sent));
        // A refused body is not read.
        body.offer(" ".repeat(PART)).await;
        bodies.push(body);
    }
    let look = || proxy.metric("ctrlmesh_refusals_total", &[("reason", "no_room")]);
    until("refusals", look, |now| *now >= (BODIES - 16 * MIB / PART) as f64).await;
}
