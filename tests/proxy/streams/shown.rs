//! Objects that all shards are shown, no matter which shard owns them.

use ctrlmesh::wire::media::Encoding;
use http::Method;
use serde_json::Value;

use super::{
    changes::{GO_ON, sees},
    shared::{ALL, event, object, page, watch},
};
use crate::support::{
    client::{self, Client, Http, request},
    policies::shown_policy,
    proxy::{Files, Proxy, Setup},
    soon,
    upstream::{Call, Stream, Upstream},
};

/// A new pod of a shard with the ConfigMaps of `a`, which is shown those of `keys`.
async fn scene(http: Http) -> (Upstream, Proxy, Client) {
    let upstream = Upstream::speaking(http).await;
    let files = Files::new(&upstream.ca.pem);
    files.put_policy(&shown_policy("[a]", "[keys]"));
    let state_dir = Some(files.path().to_owned());
    let proxy = Setup { state_dir, ..Setup::of(&upstream) }.start(files).await;
    let client = Client::new(&proxy, http).await;
    (upstream, proxy, client)
}

/// The names of a list's items.
async fn listed(client: &mut Client, upstream: &mut Upstream, items: &[Value]) -> Vec<String> {
    let pending = client.send(request(Method::GET, ALL));
    let call = upstream.call().await;
    assert_eq!(call.target(), ALL);
    call.json(200, &page(100, "", items));
    let (code, body) = client::text(pending.await.unwrap()).await;
    assert_eq!(code, 200, "{body}");
    let list: Value = serde_json::from_str(&body).unwrap();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    list["items"].as_array().unwrap().iter().map(name).collect()
}

/// Answers the list of one namespace that changes hands.
fn moves(call: Call, namespace: &str, name: &str) {
    assert!(
        call.target().starts_with(&format!("/api/v1/namespaces/{namespace}/configmaps?")),
        "{}",
        call.target()
    );
    assert_eq!(call.query("resourceVersionMatch").as_deref(), Some("Exact"));
    call.json(200, &page(106, "", &[object(namespace, name, 50)]));
}

/// Takes the watch that goes on.
async fn goes_on(upstream: &mut Upstream) -> Stream {
    let call = soon("the next watch", upstream.call()).await;
    assert_eq!(call.query("resourceVersion").as_deref(), Some("106"), "{}", call.target());
    call.watch()
}

#[tokio::test]
async fn what_is_shared_is_listed_and_watched_and_its_change_is_told() {
    for http in [Http::One, Http::Two] {
        let (mut upstream, proxy, mut client) = scene(http).await;
        let items = [object("a", "x", 1), object("b", "y", 2), object("keys", "z", 3)];
        assert_eq!(listed(&mut client, &mut upstream, &items).await, ["x", "z"]);
        let (events, mut seen) =
            watch(&mut client, &mut upstream, ALL, GO_ON, Encoding::Json).await;
        events.send(event("ADDED", "b", 105)).await;
        events.send(event("ADDED", "keys", 106)).await;
        sees(&mut seen, &[("ADDED", "x")]).await;

        // The proxy lists the newly shared objects alone.
        proxy.change_policy(&shown_policy("[a]", "[keys, more]")).await;
        events.given_up().await;
        moves(soon("the list", upstream.call()).await, "more", "m");
        let events = goes_on(&mut upstream).await;
        sees(&mut seen, &[("ADDED", "m"), ("BOOKMARK", "106")]).await;

        // To come to own what was shown, or to lose it, moves nothing.
        for namespaces in ["[a, keys]", "[a]"] {
            proxy.change_policy(&shown_policy(namespaces, "[keys, more]")).await;
        }
        proxy.change_policy(&shown_policy("[a]", "[keys]")).await;
        let mut events = events;
        loop {
            events.given_up().await;
            let call = soon("the next call", upstream.call()).await;
            if call.query("watch").is_none() {
                moves(call, "more", "m");
                break;
            }
            assert_eq!(call.query("resourceVersion").as_deref(), Some("106"));
            events = call.watch();
        }
        let events = goes_on(&mut upstream).await;
        sees(&mut seen, &[("DELETED", "m"), ("BOOKMARK", "106")]).await;
        events.send(event("ADDED", "more", 107)).await;
        events.send(event("MODIFIED", "keys", 108)).await;
        sees(&mut seen, &[("MODIFIED", "x")]).await;
    }
}

#[tokio::test]
async fn bad_restart_with_something_else_shared_keeps_no_object_that_is_not_shown() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let items = [object("a", "x", 1), object("keys", "z", 3)];
    assert_eq!(listed(&mut client, &mut upstream, &items).await, ["x", "z"]);
    let (events, mut seen) = watch(&mut client, &mut upstream, ALL, GO_ON, Encoding::Json).await;
    events.send(event("ADDED", "keys", 106)).await;
    sees(&mut seen, &[("ADDED", "x")]).await;
    let files = proxy.kill();
    files.put_policy(&shown_policy("[a]", "[more]"));
    let state_dir = Some(files.path().to_owned());
    let proxy = Setup { state_dir, ..Setup::of(&upstream) }.start(files).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    // The client resumes from what it was shown by the process before.
    let target = format!("{ALL}?watch=1&resourceVersion=106&allowWatchBookmarks=true");
    let pending = client.send(request(Method::GET, &target));
    let mut told = Vec::new();
    let _events = loop {
        let call = soon("a call", upstream.call()).await;
        if call.query("watch").is_some() {
            break call.watch();
        }
        if call.query("limit").as_deref() == Some("1") {
            // The proxy's own question for the present position.
            call.json(200, &page(106, "", &[]));
            continue;
        }
        let namespace = call.target().split('/').nth(4).unwrap().to_owned();
        let name = if namespace == "keys" { "z" } else { "m" };
        told.push(namespace.clone());
        moves(call, &namespace, name);
    };
    told.sort();
    assert_eq!(told, ["keys", "more"]);
    let mut seen = pending.await.unwrap();
    sees(&mut seen, &[("DELETED", "z"), ("ADDED", "m"), ("BOOKMARK", "106")]).await;
}
