use std::{collections::BTreeSet, convert::Infallible, num::NonZeroU16, sync::Arc};

use bytes::Bytes;
use http::{Method, Request as HttpRequest, Response, StatusCode};
use http_body_util::BodyExt;
use kube::{client::Body, discovery::ApiResource};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;

/// An API server with one kind, as far as a test scripts it.
#[derive(Default)]
struct Server {
    objects: Vec<Value>,
    /// The answers to patches of an object by its name, before it is written.
    patches: BTreeMap<String, Vec<(u16, &'static str)>>,
    /// The answer to each page but the first, before the pages are answered.
    pages: Vec<(u16, Value)>,
    /// The lines of each watch. One without lines is 410.
    watches: Vec<Vec<Value>>,
    /// The requests, each with its time.
    asked: Vec<(Instant, String)>,
}

/// The line of a watch that is never answered.
const NEVER: &str = "NEVER";

type Shares = Arc<Mutex<Server>>;

fn object(namespace: &str, name: &str, labels: Value) -> Value {
    json!({ "metadata": {
        "name": name, "namespace": namespace, "uid": format!("uid-{name}"), "resourceVersion": "7",
        "labels": labels, "annotations": { "of": "no interest" },
    } })
}

fn stamped_labels() -> Value {
    // The sum of a, n, t modulo 32.
    let bucket = (97 + 110 + 116) % 32;
    json!({
        "ctrlmesh.kusionstack.io/namespace": "ant",
        "ctrlmesh.kusionstack.io/shard-hash": bucket.to_string(),
        "ctrlmesh.kusionstack.io/control": "true",
    })
}

fn status(code: u16, message: &str) -> Value {
    let reason = match code {
        403 => "Forbidden",
        410 => "Expired",
        _ => "Other",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": message, "metadata": {},
    })
}

impl Server {
    fn with(objects: Vec<Value>) -> Self {
        Self { objects, ..Self::default() }
    }

    fn answer(&mut self, method: &Method, at: &str, body: &Value) -> (u16, Vec<Value>) {
        let (path, query) = at.split_once('?').unwrap();
        if method == Method::PATCH {
            let (path, name) = path.rsplit_once('/').unwrap();
            assert_eq!(path, "/api/v1/namespaces/ant/configmaps");
            assert!(
                query.contains("fieldManager=ctrlmesh-stamps") && !query.contains("force=true")
            );
            let meta = &body["metadata"];
            assert_eq!((&body["kind"], &meta["name"]), (&json!("ConfigMap"), &json!(name)));
            assert_eq!(meta["uid"], format!("uid-{name}"), "it would be created");
            if let Some((code, message)) = self.patches.get_mut(name).and_then(Vec::pop) {
                return (code, vec![status(code, message)]);
            }
            let mut all = self.objects.iter_mut();
            let object = all.find(|one| one["metadata"]["name"] == name).unwrap();
            for (key, value) in meta["labels"].as_object().unwrap() {
                object["metadata"]["labels"][key] = value.clone();
            }
            return (200, vec![object.clone()]);
        }
        assert_eq!(path, "/api/v1/configmaps");
        if query.contains("watch=true") {
            let lines = self.watches.pop().unwrap_or_default();
            return match lines.is_empty() {
                true => (410, vec![status(410, "too old")]),
                false => (200, lines),
            };
        }
        let from = query.split_once("continue=").map(|(_, from)| from.parse::<usize>().unwrap());
        if from.is_some()
            && let Some((code, said)) = self.pages.pop()
        {
            return (code, vec![said]);
        }
        let from = from.unwrap_or_default();
        let page: Vec<_> = self.objects.iter().skip(from).take(100).cloned().collect();
        let next =
            if from + 100 < self.objects.len() { (from + 100).to_string() } else { String::new() };
        // Each page has a version of its own, as after a list that has expired.
        let lists = self.asked.iter().filter(|(_, at)| !at.contains("watch=true")).count();
        let meta = json!({ "resourceVersion": (40 + lists).to_string(), "continue": next });
        (200, vec![json!({ "metadata": meta, "items": page })])
    }
}

fn client(server: &Shares) -> Client {
    let server = Arc::clone(server);
    let service = service_fn(move |request: HttpRequest<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let at = parts.uri.to_string();
            let (code, said) = {
                let mut server = server.lock();
                server.asked.push((Instant::now(), format!("{} {at}", parts.method)));
                server.answer(&parts.method, &at, &body)
            };
            if said.first().is_some_and(|line| line["type"] == NEVER) {
                std::future::pending::<()>().await;
            }
            let lines: Vec<_> = said.iter().map(|line| format!("{line}\n")).collect();
            let mut response = Response::new(Body::from(Bytes::from(lines.concat())));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    Client::new(service, "ops")
}

/// Keeps the objects of the server stamped for so many seconds. Returns the results that were counted:
/// ok, failed, foreign.
async fn keep(server: Server, seconds: u64) -> (Server, [u64; 3]) {
    let server = Arc::new(Mutex::new(server));
    let shared = Shared::for_tests();
    let pace = Pace::new(NonZeroU16::new(20).unwrap());
    let resource = ApiResource {
        group: String::new(),
        version: "v1".into(),
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        plural: "configmaps".into(),
    };
    let kind = Stamped { resource, are_namespaces: false };
    let stamper = Stamper::new(&client(&server), &shared, &pace, kind);
    assert!(timeout(Duration::from_secs(seconds), stamper.keep()).await.is_err());
    let counted = ["ok", "failed", "foreign"]
        .map(|result| shared.metrics.stamps.get_or_create(&[("result", result)]).get());
    drop(stamper);
    let server = std::mem::take(&mut *server.lock());
    (server, counted)
}

impl Server {
    /// The times of the requests that begin so.
    fn times(&self, of: &str) -> Vec<Instant> {
        self.asked.iter().filter(|(_, at)| at.starts_with(of)).map(|(time, _)| *time).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn i15_objects_are_stamped_page_by_page_and_no_faster_than_told() {
    let mut server =
        Server::with((0..330).map(|at| object("ant", &format!("map-{at}"), json!({}))).collect());
    server.objects[7]["metadata"]["labels"] = stamped_labels();
    server.objects[8]["metadata"]["labels"]["ctrlmesh.kusionstack.io/namespace"] = json!("bee");
    server.objects[9]["metadata"]["deletionTimestamp"] = json!("2026-11-27T08:00:00Z");
    server.objects[10]["metadata"]["labels"] = json!({ "app": "web" });
    // The list expires while objects are written: it goes on, and the watch begins where it began.
    let mut expired = status(410, "the provided continue parameter is too old");
    expired["metadata"]["continue"] = json!("200");
    server.pages = vec![(410, expired)];
    let whole = json!({ "type": "BOOKMARK", "object": {
        "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "resourceVersion": "50" },
    } });
    server.watches = vec![vec![whole]];
    let (server, counted) = keep(server, 20).await;
    // The page that expired was not read. The second pass sees it, for the watch said 410.
    assert_eq!(counted[0], 327, "{counted:?}");
    let patches = server.times("PATCH");
    assert_eq!(patches.len(), 327, "each once");
    for (at, object) in server.objects.iter().enumerate() {
        let labels = &object["metadata"]["labels"];
        match at {
            8 => assert_eq!(labels, &json!({ "ctrlmesh.kusionstack.io/namespace": "bee" })),
            9 => assert_eq!(labels, &json!({})),
            10 => {
                let mut wanted = stamped_labels();
                wanted["app"] = json!("web");
                assert_eq!(labels, &wanted);
            }
            _ => assert_eq!(labels, &stamped_labels(), "{at}"),
        }
    }
    let all = server.times("");
    for window in all.windows(21) {
        assert!(window[20] - window[0] >= Duration::from_secs(1), "more than 20 in a second");
    }
    let watches: Vec<_> =
        server.asked.iter().filter(|(_, at)| at.contains("watch=true")).map(|(_, at)| at).collect();
    assert!(watches[0].contains("resourceVersion=41"), "{watches:?}");
    let lists = server.asked.iter().filter(|(_, at)| at.contains("limit=100"));
    let lists: Vec<_> =
        lists.map(|(_, at)| at.split_once("continue=").map_or("", |(_, at)| at)).collect();
    assert_eq!(lists[..4], ["", "100", "200", "300"], "it begins again");
    assert!(watches[1].contains("resourceVersion=50"), "{watches:?}");
    assert!(counted[2] >= 1, "what is someone else's is counted");
}

#[tokio::test(start_paused = true)]
async fn i15_objects_that_come_or_lose_their_labels_are_stamped() {
    let mut server =
        Server::with(vec![object("ant", "old", stamped_labels()), object("ant", "new", json!({}))]);
    let lost = object("ant", "old", json!({}));
    let event = |kind: &str, object: &Value| json!({ "type": kind, "object": object });
    let mut gone = object("ant", "gone", json!({}));
    gone["metadata"]["resourceVersion"] = json!("9");
    let new = server.objects.pop().unwrap();
    server.watches =
        vec![vec![event("ADDED", &new), event("MODIFIED", &lost), event("DELETED", &gone)]];
    server.objects[0]["metadata"]["labels"] = stamped_labels();
    server.objects.push(new);
    // The list has both stamped: only the events say otherwise.
    server.objects[1]["metadata"]["labels"] = stamped_labels();
    let (server, counted) = keep(server, 3).await;
    let patched: BTreeSet<_> = server
        .asked
        .iter()
        .filter(|(_, at)| at.starts_with("PATCH"))
        .map(|(_, at)| at.as_str())
        .collect();
    let patched: Vec<_> = patched.iter().map(|at| at.split(['?', '/']).nth(6).unwrap()).collect();
    assert_eq!(patched, ["new", "old"]);
    assert_eq!(counted[0], 2);
}

#[tokio::test(start_paused = true)]
async fn bad_i15_objects_that_cannot_be_stamped_hold_up_no_others() {
    let names = ["busy", "denied", "gone", "taken", "fine"];
    let objects = names.iter().map(|name| object("ant", name, json!({})));
    let mut server = Server::with(objects.collect());
    let denied = "admission webhook \"x\" denied the request";
    let bookmark = |version: u32| {
        json!({ "type": "BOOKMARK", "object": {
        "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "resourceVersion": version.to_string() },
    } })
    };
    server.patches = BTreeMap::from([
        ("busy".to_owned(), vec![(500, "no"), (429, "later"), (503, "no")]),
        ("denied".to_owned(), vec![(403, denied)]),
        ("gone".to_owned(), vec![(409, "uid mismatch"), (404, "no such object")]),
        ("taken".to_owned(), vec![(409, "conflict with \"kubectl\"")]),
    ]);
    server.watches = vec![vec![bookmark(9)]; 20_000];
    let (server, counted) = keep(server, 550).await;
    let of =
        |name: &str| server.times(&format!("PATCH /api/v1/namespaces/ant/configmaps/{name}")).len();
    assert_eq!(["busy", "denied", "gone", "taken", "fine"].map(of), [4, 1, 1, 1, 1]);
    assert_eq!(counted, [2, 1, 0]);
    let busy = server.times("PATCH /api/v1/namespaces/ant/configmaps/busy");
    assert!(busy[3] - busy[0] > Duration::from_secs(2), "it pauses between attempts");
}

#[tokio::test(start_paused = true)]
async fn bad_i15_an_object_that_was_refused_is_tried_again_after_ten_minutes() {
    let mut server = Server::with(vec![object("ant", "denied", json!({}))]);
    server.patches =
        BTreeMap::from([("denied".to_owned(), vec![(422, "admission webhook \"x\" denied it")])]);
    let none = json!({ "type": "BOOKMARK", "object": {
        "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "resourceVersion": "9" },
    } });
    server.watches = vec![vec![none]; 20_000];
    let (server, counted) = keep(server, 605).await;
    assert_eq!(counted, [1, 1, 0]);
    let patches = server.times("PATCH");
    assert!(patches[1] - patches[0] >= Duration::from_secs(600));
}

#[tokio::test(start_paused = true)]
async fn bad_i15_without_the_right_the_kind_rests_and_is_tried_again() {
    const LIST: &str = "configmaps is forbidden: User \"x\" cannot list resource \"configmaps\"";
    const PATCH: &str =
        "configmaps \"a\" is forbidden: User \"x\" cannot patch resource \"configmaps\"";
    let mut server =
        Server::with((0..100).map(|at| object("ant", &format!("map-{at}"), json!({}))).collect());
    let never = vec![(403, PATCH); 100];
    server.patches = server
        .objects
        .iter()
        .map(|one| (one["metadata"]["name"].as_str().unwrap().to_owned(), never.clone()))
        .collect();
    let (server, counted) = keep(server, 300).await;
    assert_eq!(server.times("PATCH").len(), 5, "one a minute");
    assert_eq!(counted, [0, 5, 0]);

    let mut server =
        Server::with((0..200).map(|at| object("ant", &format!("map-{at}"), json!({}))).collect());
    server.pages = vec![(403, status(403, LIST)); 100];
    let (server, _) = keep(server, 300).await;
    assert!(server.times("GET").len() <= 10, "{}", server.times("GET").len());
}

#[tokio::test(start_paused = true)]
async fn bad_i15_a_watch_that_is_never_answered_is_begun_anew() {
    let mut server = Server::with(Vec::new());
    server.watches = vec![vec![json!({ "type": NEVER })]; 3];
    let (server, _) = keep(server, 60).await;
    let watches = server.asked.iter().filter(|(_, at)| at.contains("watch=true"));
    let watches: Vec<_> = watches.map(|(time, _)| *time).collect();
    assert!(watches.len() > 3, "{watches:?}");
    let waited = watches[1] - watches[0];
    assert!(waited >= ANSWER && waited < ANSWER + Duration::from_secs(2), "{waited:?}");
}
