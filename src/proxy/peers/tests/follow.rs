//! The watch, against an API server of the test's own.

use std::{collections::VecDeque, convert::Infallible, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::service_fn;

use super::{identity, pod, siblings};
use crate::peers::{Peers, follow};
use ctrlmesh_base::cluster::OwnAccess;
use ctrlmesh_policy::ControllerShards;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// An API server with these pods. The test itself sends the events of a watch.
struct ApiServer {
    access: OwnAccess,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct State {
    /// The pods of the next lists; the last stays.
    lists: Mutex<VecDeque<Result<Vec<Value>, u16>>>,
    asked: Mutex<Vec<String>>,
    watch: Mutex<Option<mpsc::Sender<Value>>>,
}

impl ApiServer {
    async fn start(lists: impl IntoIterator<Item = Result<Vec<Value>, u16>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        state.lists.lock().extend(lists);
        let mut tasks = JoinSet::new();
        let serving = Arc::clone(&state);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let state = Arc::clone(&serving);
                let service = service::service_fn(move |request| {
                    let reply = answer(&state, &request);
                    async move { Ok::<_, Infallible>(reply) }
                });
                let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move {
                    let _ = served.await;
                });
            }
        });
        let mut config = kube::Config::new(url.parse().unwrap());
        config.default_retry = false;
        let access = OwnAccess::Client(kube::Client::try_from(config).unwrap());
        Self { access, state, _tasks: tasks }
    }

    /// Sends an event to the watch, which may not have begun yet.
    async fn send(&self, kind: &str, pod: &Value) {
        let event = json!({"type": kind, "object": pod});
        let sender = loop {
            let sender = self.state.watch.lock().clone();
            match sender {
                Some(sender) => break sender,
                None => tokio::task::yield_now().await,
            }
        };
        sender.send(event).await.unwrap();
    }

    /// Ends the watch.
    fn cut(&self) {
        *self.state.watch.lock() = None;
    }
}

fn answer(state: &State, request: &Request<Incoming>) -> Response<Body> {
    state.asked.lock().push(request.uri().to_string());
    if request.uri().query().unwrap_or_default().contains("watch=true") {
        let (tx, rx) = mpsc::channel(8);
        *state.watch.lock() = Some(tx);
        let lines = futures_util::stream::unfold(rx, |mut rx| async move {
            let event: Value = rx.recv().await?;
            Some((Ok(Frame::data(Bytes::from(format!("{event}\n")))), rx))
        });
        return Response::new(StreamBody::new(lines).boxed_unsync());
    }
    let mut lists = state.lists.lock();
    let list = if lists.len() > 1 { lists.pop_front() } else { lists.front().cloned() };
    let (code, body) = match list.unwrap() {
        Ok(items) => {
            let metadata = json!({"resourceVersion": "7"});
            let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items});
            (StatusCode::OK, list)
        }
        Err(code) => {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "pods is forbidden", "reason": "Forbidden", "code": code,
            });
            (StatusCode::from_u16(code).unwrap(), status)
        }
    };
    let mut reply = Response::new(Full::from(body.to_string()).boxed_unsync());
    *reply.status_mut() = code;
    reply
}

/// What follows the pods of an API server.
struct Following {
    peers: Arc<Peers>,
    siblings: watch::Sender<Option<Arc<ControllerShards>>>,
    _task: JoinSet<()>,
}

impl Following {
    fn start(server: &ApiServer, shards: Option<Arc<ControllerShards>>) -> Self {
        Self::of(server.access.clone(), shards)
    }

    fn of(access: OwnAccess, shards: Option<Arc<ControllerShards>>) -> Self {
        let (peers, (siblings, receiver)) = (Arc::new(Peers::default()), watch::channel(shards));
        let mut task = JoinSet::new();
        let own = identity("own");
        task.spawn(follow(Arc::clone(&peers), access, own, receiver));
        Self { peers, siblings, _task: task }
    }

    /// Waits until the table has these pods, by shard and name.
    async fn has(&self, pods: &[&str]) {
        let mut changes = self.peers.changes();
        let mut seen = Vec::new();
        let has = async {
            loop {
                changes.mark_unchanged();
                let table = self.peers.table();
                seen = table
                    .peers()
                    .map(|peer| format!("{}/{}", peer.shard, peer.identity.name()))
                    .collect();
                drop(table);
                if seen == pods {
                    return;
                }
                changes.changed().await.unwrap();
            }
        };
        let in_time = timeout(Duration::from_secs(20), has).await;
        in_time.unwrap_or_else(|_| panic!("{pods:?} did not come"));
    }

    async fn problem(&self, is_it: impl Fn(Option<&str>) -> bool) {
        let mut problems = self.peers.problems();
        let look = problems.wait_for(|problem| is_it(problem.as_deref()));
        let is_in_time = timeout(Duration::from_secs(20), look).await.is_ok();
        assert!(is_in_time, "{:?}", self.peers.problem());
    }
}

#[tokio::test]
async fn i13_the_table_follows_the_pods_of_the_namespace() {
    let mut other = pod("z", "blue");
    other["spec"]["initContainers"] = json!([]);
    let all = vec![pod("a", "blue"), pod("b", "green"), pod("own", "blue"), other];
    let server = ApiServer::start([Ok(all)]).await;
    let following = Following::start(&server, Some(siblings(&["blue", "green"])));
    following.has(&["blue/a", "green/b"]).await;
    following.problem(|problem| problem.is_none()).await;
    let asked = server.state.asked.lock()[0].clone();
    assert!(asked.starts_with("/api/v1/namespaces/ops/pods?"), "{asked}");
    server.send("ADDED", &pod("c", "blue")).await;
    following.has(&["blue/a", "blue/c", "green/b"]).await;
    let mut unready = pod("a", "blue");
    unready["status"]["conditions"][1]["status"] = json!("False");
    server.send("MODIFIED", &unready).await;
    following.has(&["blue/c", "green/b"]).await;
    server.send("DELETED", &pod("b", "green")).await;
    following.has(&["blue/c"]).await;
    following.siblings.send_replace(Some(siblings(&["blue", "red"])));
    server.send("ADDED", &pod("d", "red")).await;
    following.has(&["blue/c", "red/d"]).await;
    following.siblings.send_replace(None);
    following.has(&[]).await;
    following.problem(|problem| problem.is_none()).await;
}

/// Nothing of it waits for anything outside of the runtime, whose clock goes on when all is idle: in an
/// hour of that clock everything is asked that ever is.
#[tokio::test(start_paused = true)]
async fn i13_no_pod_is_watched_without_siblings() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asking = Arc::clone(&asked);
    let service = service_fn(move |request: Request<kube::client::Body>| {
        asking.lock().push(request.uri().path().to_owned());
        pending::<Result<Response<Body>, Infallible>>()
    });
    let access = OwnAccess::Client(kube::Client::new(service, "ops"));
    let following = Following::of(access, None);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(*asked.lock(), [""; 0]);
    following.siblings.send_replace(Some(siblings(&["blue"])));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(*asked.lock(), ["/api/v1/namespaces/ops/pods"]);
}

#[tokio::test]
async fn i13_a_watch_of_pods_that_fails_keeps_the_last_table() {
    let lists = [Err(403), Ok(vec![pod("a", "blue")]), Err(403), Ok(vec![pod("b", "blue")])];
    let server = ApiServer::start(lists).await;
    let following = Following::start(&server, Some(siblings(&["blue"])));
    let role = "may not list and watch pods (Role ctrlmesh-proxy, which `ctrlmesh inject` prints): \
                pods is forbidden";
    following.problem(|problem| problem.is_some_and(|problem| problem.ends_with(role))).await;
    following.has(&["blue/a"]).await;
    following.problem(|problem| problem.is_none()).await;
    server
        .send(
            "ERROR",
            &json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "too old", "reason": "Expired", "code": 410,
            }),
        )
        .await;
    server.cut();
    let last = "; the pods that were known last count";
    following.problem(|problem| problem.is_some_and(|problem| problem.ends_with(last))).await;
    following.has(&["blue/a"]).await;
    following.has(&["blue/b"]).await;
    following.problem(|problem| problem.is_none()).await;
}
