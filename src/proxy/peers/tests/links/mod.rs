//! Connections to pods of a mesh, on loopback.

use std::{cell::RefCell, future::pending, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    future::{LocalBoxFuture, join_all},
    stream,
};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use tokio::{
    net::TcpListener,
    sync::{Notify, oneshot, watch},
    task::LocalSet,
    time::{Instant, timeout},
};

use self::mesh::{Mesh, Never, Pod, at, chosen, nobody, put, text};
use super::identity;
use crate::peers::{Failed, PeerBody, PeerPool, Peers, failed::Reason, link::PooledConnection};
use ctrlmesh_net::peer::PeerTls;

mod mesh;

/// The scene of a test: a mesh, and the connections of this pod.
struct Scene {
    mesh: Mesh,
    peers: Arc<Peers>,
    tls: Arc<PeerTls>,
    links: PeerPool,
}

impl Scene {
    fn new() -> Self {
        let (mesh, peers) = (Mesh::new(), Arc::new(Peers::default()));
        let tls = mesh.tls(&identity("own"));
        let links = PeerPool::new(Arc::clone(&peers), Arc::clone(&tls));
        Self { mesh, peers, tls, links }
    }

    /// A place at a pod of the shard.
    async fn line(&self) -> Result<PooledConnection, Reason> {
        self.links.line(chosen(&self.peers).await, soon()).await
    }

    /// The response of a pod of the shard to a review.
    async fn ask(&self) -> Result<String, Failed> {
        let line = self.line().await.map_err(Failed::Unsent)?;
        Ok(whole(line.send(review()).await?).await)
    }

    /// Number of reviews that count as open.
    fn open(&self) -> usize {
        self.peers.table().peers().map(|peer| peer.open()).sum()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn review() -> Request<Full<Bytes>> {
    Request::post("https://peer.ctrlmesh/validate").body(Full::from("a review")).unwrap()
}

async fn whole(reply: Response<PeerBody>) -> String {
    String::from_utf8(reply.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Runs a test, which hangs if a notice does not come.
async fn local(test: impl Future<Output = ()>) {
    let in_time = timeout(Duration::from_secs(30), test);
    LocalSet::new().run_until(in_time).await.expect("it ends in time");
}

#[tokio::test]
async fn i13_reviews_to_a_peer_share_one_connection() {
    let test = async {
        let scene = Scene::new();
        let answer = |request: Request<Incoming>| -> LocalBoxFuture<'static, _> {
            Box::pin(async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                Ok(Response::new(Full::new(body)))
            })
        };
        let pod = Pod::start(scene.mesh.tls(&identity("a")), 100, answer).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        let all = join_all((0..20).map(|_| scene.ask())).await;
        assert!(all.iter().all(|reply| reply.as_deref() == Ok("a review")), "{all:?}");
        assert_eq!(scene.ask().await.unwrap(), "a review");
        assert_eq!((pod.connections(), scene.links.open(), scene.open()), (1, 1, 0));
    };
    local(test).await;
}

#[tokio::test]
async fn i13_a_review_goes_to_no_stranger_who_got_the_pods_address() {
    let test = async {
        let scene = Scene::new();
        let pod = Pod::start(scene.mesh.tls(&identity("b")), 100, |_| text("read it")).await;
        let other = Mesh::new();
        let stranger = other.tls_trusting(&identity("a"), scene.mesh.path());
        let stranger = Pod::start(stranger, 100, |_| text("read it")).await;
        for addr in [pod.addr, stranger.addr] {
            put(&scene.peers, &[]);
            put(&scene.peers, &[at("a", addr)]);
            assert_eq!(scene.ask().await, Err(Failed::Unsent(Reason::Untrusted)));
            assert!(scene.peers.table().peers().all(|peer| peer.is_avoided(Instant::now())));
        }
        assert_eq!((scene.links.open(), scene.open()), (0, 0));
    };
    local(test).await;
}

#[tokio::test]
async fn i13_a_peer_that_does_not_accept_us_is_not_sent_to() {
    let test = async {
        let scene = Scene::new();
        let other = Mesh::new();
        let tls = scene.mesh.tls_trusting(&identity("a"), other.path());
        let pod = Pod::start(tls, 100, |_| text("read it")).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        // The kernel may have dropped the alert, which says why.
        let failed = scene.ask().await.unwrap_err();
        assert!(matches!(failed, Failed::Unsent(Reason::Untrusted | Reason::Unreachable)));
    };
    local(test).await;
}

#[tokio::test]
async fn i13_a_pod_without_a_listener_or_without_a_word_is_unreachable() {
    let test = async {
        let scene = Scene::new();
        put(&scene.peers, &[at("a", nobody().await)]);
        assert_eq!(scene.ask().await, Err(Failed::Unsent(Reason::Unreachable)));
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        put(&scene.peers, &[at("a", silent.local_addr().unwrap())]);
        let begun = Instant::now();
        let peer = chosen(&scene.peers).await;
        let limit = begun + Duration::from_millis(100);
        assert_eq!(scene.links.line(peer, limit).await.err(), Some(Reason::Timeout));
        assert_eq!(scene.ask().await, Err(Failed::Unsent(Reason::Unreachable)));
        assert_eq!(begun.elapsed().as_secs(), 2, "both wait for one dial");
        assert_eq!(scene.open(), 0);
    };
    local(test).await;
}

#[tokio::test]
async fn i13_the_other_address_is_tried_if_the_first_refuses() {
    let test = async {
        let scene = Scene::new();
        let pod = Pod::start(scene.mesh.tls(&identity("a")), 100, |_| text("here")).await;
        let mut facts = at("a", pod.addr);
        facts.addrs.insert(0, nobody().await);
        put(&scene.peers, &[facts]);
        assert_eq!(scene.ask().await.unwrap(), "here");
    };
    local(test).await;
}

#[tokio::test]
async fn i13_requests_beyond_the_peers_limit_wait_until_their_time_is_over() {
    let test = async {
        let scene = Scene::new();
        let pod = Pod::start(scene.mesh.tls(&identity("a")), 2, |_| text("here")).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        let first = scene.line().await.unwrap();
        let second = scene.line().await.unwrap().send(review()).await.unwrap();
        assert_eq!(scene.open(), 2);
        let peer = chosen(&scene.peers).await;
        let limit = Instant::now() + Duration::from_millis(50);
        assert_eq!(scene.links.line(peer, limit).await.err(), Some(Reason::Timeout));
        assert_eq!(scene.open(), 2);
        let third = async { scene.ask().await.unwrap() };
        let ends = async { drop(second) };
        assert_eq!(tokio::join!(third, ends).0, "here");
        drop(first);
        assert_eq!((pod.connections(), scene.open()), (1, 0));
    };
    local(test).await;
}

#[tokio::test]
async fn i13_a_client_that_leaves_cancels_its_review() {
    let test = async {
        let scene = Scene::new();
        let (began, left) = (Rc::new(Notify::new()), Rc::new(RefCell::new(Vec::new())));
        let (begins, gone) = (Rc::clone(&began), Rc::clone(&left));
        let hangs = move |request: Request<Incoming>| -> LocalBoxFuture<'static, _> {
            let (tell, told) = oneshot::channel::<()>();
            gone.borrow_mut().push(told);
            begins.notify_one();
            Box::pin(async move {
                let _held = (request, tell);
                pending().await
            })
        };
        let pod = Pod::start(scene.mesh.tls(&identity("a")), 100, hangs).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        let line = scene.line().await.unwrap();
        tokio::select! {
            _ = line.send(review()) => unreachable!("it hangs"),
            () = began.notified() => {}
        }
        let told = left.borrow_mut().remove(0);
        told.await.expect_err("the pod's work is dropped");
        assert_eq!((scene.links.open(), scene.open()), (1, 0));
    };
    local(test).await;
}

#[tokio::test]
async fn i13_a_peer_that_ends_its_connection_is_dialled_again() {
    let test = async {
        let scene = Scene::new();
        let pod = Pod::start(scene.mesh.tls(&identity("a")), 100, |_| text("here")).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        let under_way = scene.line().await.unwrap().send(review()).await.unwrap();
        pod.finish();
        scene.links.until_open(0).await;
        assert_eq!(scene.ask().await.unwrap(), "here");
        assert_eq!(whole(under_way).await, "here");
        assert_eq!(pod.connections(), 2);
    };
    local(test).await;
}

#[tokio::test]
async fn i13_a_review_whose_connection_is_cut_may_have_been_processed() {
    let test = async {
        let scene = Scene::new();
        let began = Rc::new(Notify::new());
        let begins = Rc::clone(&began);
        let hangs = move |_| -> LocalBoxFuture<'static, _> {
            begins.notify_one();
            Box::pin(pending())
        };
        let mut pod = Pod::start(scene.mesh.tls(&identity("a")), 100, hangs).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        let cut = async {
            began.notified().await;
            pod.cut().await;
        };
        let (asked, ()) = tokio::join!(scene.ask(), cut);
        assert_eq!(asked, Err(Failed::Lost(Reason::Lost)));
        scene.links.until_open(0).await;
        assert_eq!(scene.ask().await, Err(Failed::Unsent(Reason::Unreachable)));
    };
    local(test).await;
}

#[tokio::test]
async fn i13_a_pod_that_leaves_the_table_finishes_its_reviews() {
    let test = async {
        let scene = Scene::new();
        let pod = Pod::start(scene.mesh.tls(&identity("a")), 100, |_| text("here")).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        let under_way = scene.line().await.unwrap().send(review()).await.unwrap();
        let chosen = chosen(&scene.peers).await;
        put(&scene.peers, &[]);
        scene.links.until_open(0).await;
        assert_eq!(scene.links.line(chosen, soon()).await.err(), Some(Reason::Unreachable));
        assert_eq!(whole(under_way).await, "here");
        assert_eq!(pod.connections(), 1);
    };
    local(test).await;
}

#[tokio::test]
async fn i13_a_peer_for_which_new_roots_do_not_vouch_finishes_its_reviews() {
    let test = async {
        let scene = Scene::new();
        let pod = Pod::start(scene.mesh.tls(&identity("a")), 100, |_| text("here")).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        let under_way = scene.line().await.unwrap().send(review()).await.unwrap();
        let other = Mesh::new();
        scene.mesh.trust(&[&other, &scene.mesh]);
        assert!(scene.tls.refresh().unwrap());
        assert_eq!(scene.ask().await.unwrap(), "here");
        assert_eq!((pod.connections(), scene.links.open()), (1, 1), "the new ones vouch for it");
        scene.mesh.trust(&[&other]);
        assert!(scene.tls.refresh().unwrap());
        scene.links.until_open(0).await;
        assert_eq!(whole(under_way).await, "here");
        assert_eq!(scene.ask().await, Err(Failed::Unsent(Reason::Untrusted)));
    };
    local(test).await;
}

#[tokio::test]
async fn i13_the_connection_that_was_not_used_for_the_longest_time_makes_room() {
    let test = async {
        let scene = Scene::new();
        let (mut pods, mut facts) = (Vec::new(), Vec::new());
        for at_number in 100..166 {
            let name = at_number.to_string();
            let tls = scene.mesh.tls(&identity(&name));
            pods.push(Pod::start(tls, 100, |_| text("here")).await);
            facts.push(at(&name, pods[pods.len() - 1].addr));
        }
        put(&scene.peers, &facts);
        // They take turns.
        for _ in 0..pods.len() {
            assert_eq!(scene.ask().await.unwrap(), "here");
        }
        assert!(pods.iter().all(|pod| pod.connections() == 1));
        scene.links.until_open(64).await;
        // The first two ended.
        for _ in 0..3 {
            assert_eq!(scene.ask().await.unwrap(), "here");
        }
        assert_eq!(pods.iter().map(Pod::connections).sum::<usize>(), 66 + 3, "each makes room");
    };
    local(test).await;
}

#[tokio::test]
async fn i13_connections_end_with_their_thread() {
    let test = async {
        let scene = Scene::new();
        let pod = Pod::start(scene.mesh.tls(&identity("a")), 100, |_| text("here")).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        assert_eq!(scene.ask().await.unwrap(), "here");
        assert_eq!(scene.links.end(), 0, "none panicked");
        scene.links.until_open(0).await;
    };
    local(test).await;
}

#[test]
fn i13_each_reason_has_a_label() {
    let lost = Failed::Lost(Reason::Lost);
    let all = [Reason::Unreachable, Reason::Untrusted, lost.reason(), Reason::Timeout];
    let labels = all.map(Reason::label);
    assert_eq!(labels, ["unreachable", "untrusted", "lost", "timeout"]);
    assert_eq!(Failed::Unsent(Reason::Unreachable).to_string(), "cannot be reached");
}

/// A body in pieces, of which the second comes when it is asked for.
#[tokio::test]
async fn i13_a_body_is_sent_as_it_comes() {
    let test = async {
        let scene = Scene::new();
        let (arrives, mut arrived) = watch::channel(0);
        let reads = move |request: Request<Incoming>| -> LocalBoxFuture<'static, _> {
            let arrives = arrives.clone();
            Box::pin(async move {
                let mut body = request.into_body();
                while let Some(frame) = body.frame().await {
                    let length = frame.unwrap().data_ref().map_or(0, Bytes::len);
                    arrives.send_modify(|arrived| *arrived += length);
                }
                Ok(Response::new(Full::from("read")))
            })
        };
        let pod = Pod::start(scene.mesh.tls(&identity("a")), 100, reads).await;
        put(&scene.peers, &[at("a", pod.addr)]);
        let (more, next) = oneshot::channel::<()>();
        let piece = |of: usize| Ok::<_, Never>(Frame::data(Bytes::from(vec![b'x'; of])));
        let pieces = stream::unfold(Some(next), move |next| async move {
            next?.await.unwrap();
            Some((piece(1_000_000), None))
        });
        let body = stream::StreamExt::chain(stream::iter([piece(3)]), pieces);
        let request = Request::post("https://peer.ctrlmesh/validate");
        let request = request.body(StreamBody::new(Box::pin(body))).unwrap();
        let line = scene.line().await.unwrap();
        let script = async {
            arrived.wait_for(|arrived| *arrived == 3).await.unwrap();
            more.send(()).unwrap();
            arrived.wait_for(|arrived| *arrived == 1_000_003).await.unwrap();
        };
        let (reply, ()) = tokio::join!(line.send(request), script);
        assert_eq!(whole(reply.unwrap()).await, "read");
    };
    local(test).await;
}
