//! Uploads that the API server does not take.

use std::{
    pin::pin,
    sync::{Arc, atomic::AtomicUsize},
};

use bytes::Bytes;
use http::{Method, Response, header};
use hyper::body::Incoming;
use tokio::task::JoinSet;

use super::memory::{MIB, scene};
use crate::support::{
    client::{self, Client, Http, request, request_with, upload},
    scene_speaking, soon, stand_still,
    upstream::Call,
};

pub(super) const PODS: &str = "/api/v1/namespaces/ns/pods";
const TAKEN: &str = "ctrlmesh_upload_memory_bytes";
const REFUSED: usize = 10;
/// The long uploads over HTTP/1.1 that may wait.
const WAITING_H1: usize = 56;

/// Posts on a body until it is answered.
pub(super) fn endless(
    client: &mut Client,
    taken: &Arc<AtomicUsize>,
) -> impl Future<Output = Response<Incoming>> + Send + use<> {
    let (sent, body) = upload(Method::POST, PODS);
    let answer = client.send(sent);
    let flood = body.flood(Bytes::from_static(&[b' '; 16 << 10]), Arc::clone(taken));
    async move {
        let mut answer = pin!(answer);
        tokio::select! {
            answer = &mut answer => return answer.unwrap(),
            () = flood => {}
        }
        answer.await.unwrap()
    }
}

#[tokio::test]
async fn bad_uploads_that_the_api_server_does_not_take_share_one_room() {
    // The most that wait, of those that may be long, and the part of one.
    for (http, most, part) in [(Http::One, WAITING_H1, 512 << 10), (Http::Two, 358, 80 << 10)] {
        let (mut upstream, proxy, mut small) = scene_speaking(http).await;
        let (mut uploads, mut calls) = (JoinSet::<Response<Incoming>>::new(), Vec::<Call>::new());
        let (mut clients, taken) = (Vec::new(), Arc::<AtomicUsize>::default());
        for n in 0..most {
            if http == Http::One || n % 150 == 149 {
                clients.push(Client::new(&proxy, http).await);
            }
            uploads.spawn(endless(clients.last_mut().unwrap_or(&mut small), &taken));
            calls.push(upstream.call().await);
        }
        stand_still(&taken).await;
        proxy.until_metric(TAKEN, &[], (most * part) as f64).await;
        for _ in 0..REFUSED {
            let mut client = Client::new(&proxy, http).await;
            let answer = soon("a refusal", endless(&mut client, &taken)).await;
            assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
            let (code, told) = client::text(answer).await;
            assert!(code == 429 && told.contains("TooManyRequests"), "{code} {told}");
        }
        assert!(upstream.is_quiet(), "nothing of them was sent");

        // There is room for small ones, and they wait for none of the others.
        let post = small.send(request_with(Method::POST, PODS, vec![b' '; 4 << 10]));
        let mut call = upstream.call().await;
        assert_eq!(soon("a body", call.body()).await.unwrap().len(), 4 << 10);
        call.json(201, "{}");
        assert_eq!(post.await.unwrap().status(), 201);

        // Their clients go on sending meanwhile.
        for call in calls {
            let _rest = call.json_early(409, "{}");
            let answer = soon("an answer", uploads.join_next()).await.unwrap();
            assert_eq!(client::text(answer.unwrap()).await.0, 409);
        }
        proxy.until_metric(TAKEN, &[], 0.0).await;
    }
}

/// hyper's own buffers would take 95 MiB.
#[tokio::test]
async fn uploads_over_http1_are_held_in_small_buffers() {
    const UPLOADS: usize = 100;
    let (mut upstream, process, files) = scene(Http::One).await;
    let trust = files.mesh_ca_pem();
    let mut client = Client::to(process.addr, &trust, Http::One).await;
    let get = client.send(request(Method::GET, "/version"));
    upstream.call().await.json(200, "{}");
    get.await.unwrap();
    let idle = process.memory("VmRSS");
    let (mut clients, mut calls) = (vec![client], Vec::new());
    let (mut uploads, taken) = (JoinSet::new(), Arc::<AtomicUsize>::default());
    for n in 0..UPLOADS {
        let mut client = Client::to(process.addr, &trust, Http::One).await;
        uploads.spawn(endless(&mut client, &taken));
        clients.push(client);
        if n < WAITING_H1 {
            calls.push(upstream.call().await);
        } else {
            let answer = soon("a refusal", uploads.join_next()).await.unwrap();
            assert_eq!(client::text(answer.unwrap()).await.0, 429);
        }
    }
    stand_still(&taken).await;
    let more = process.memory("VmHWM").saturating_sub(idle);
    assert!(more < 48 * MIB, "{} MiB over {} MiB", more / MIB, idle / MIB);
    drop((calls, clients));
}
