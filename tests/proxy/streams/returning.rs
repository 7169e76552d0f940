//! Watches that come back at positions of other scopes.

use std::fs;

use ctrlmesh::wire::media::Encoding;
use http::{HeaderValue, Method, Response, header};
use hyper::body::Incoming;

use super::{
    changes::{GO_ON, is_list, item, moves, scene_with, sees},
    shared::{CHANGES, event, is_compacted, page, resumes},
};
use crate::support::{
    CONFIGMAPS,
    client::{Client, Http, chunk, request, text, whole},
    events::{list, too_old},
    policies::moved_policy,
    proxy::{Files, Proxy, Setup},
    until,
    upstream::{Stream, Upstream},
};

/// A proxy whose client was listed the blue objects as of 100, before its scope moved on.
async fn scene(http: Http, shards: &[&str]) -> (Upstream, Proxy) {
    let (mut upstream, proxy, mut client) = scene_with(http).await;
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    upstream.call().await.json(200, &list(100));
    assert_eq!(text(pending.await.unwrap()).await.0, 200);
    for shard in shards {
        proxy.change_policy(&moved_policy(shard)).await;
    }
    (upstream, proxy)
}

/// Sends the watch over a connection that has listed nothing.
async fn come_back(
    proxy: &Proxy,
    upstream: &mut Upstream,
    http: Http,
    answer: impl AsyncFnOnce(&mut Upstream) -> Stream,
) -> (Stream, Response<Incoming>, Client) {
    let mut client = Client::new(proxy, http).await;
    let pending = client.send(request(Method::GET, &format!("{CONFIGMAPS}?{GO_ON}")));
    let events = answer(upstream).await;
    (events, pending.await.unwrap(), client)
}

/// Answers the watch under the scope of green.
async fn goes_on(upstream: &mut Upstream, shard: &str) -> Stream {
    let call = upstream.call().await;
    assert_eq!(call.query("labelSelector"), Some(format!("shard={shard}")));
    assert_eq!(call.query("resourceVersion").as_deref(), Some("100"));
    call.watch()
}

#[tokio::test]
async fn a_watch_that_comes_back_is_brought_over() {
    for http in Http::BOTH {
        let (mut upstream, proxy) = scene(http, &["green"]).await;
        let over = async |upstream: &mut Upstream| {
            moves(upstream, 100, &[item("one", 7, 0)], &[item("two", 8, 0)]).await;
            goes_on(upstream, "green").await
        };
        let (events, mut seen, _client) = come_back(&proxy, &mut upstream, http, over).await;
        let told = [("DELETED", "one"), ("ADDED", "two"), ("BOOKMARK", "100")];
        sees(&mut seen, &told).await;
        events.send(event("ADDED", "ns", 130)).await;
        sees(&mut seen, &[("ADDED", "x")]).await;
        proxy.until_metric(CHANGES, &[("how", "returned")], 1.0).await;

        // The next change is one from green.
        proxy.change_policy(&moved_policy("red")).await;
        let call = upstream.call().await;
        is_list(&call, "shard=green,shard!=red", "130");
        call.json(200, &page(130, "", &[item("two", 8, 0)]));
        upstream.call().await.json(200, &page(130, "", &[]));
        let _red = upstream.call().await.watch();
        sees(&mut seen, &[("DELETED", "two"), ("BOOKMARK", "130")]).await;
    }
}

#[tokio::test]
async fn a_watch_that_comes_back_late_is_brought_over_from_each_scope_since() {
    let (mut upstream, proxy) = scene(Http::Two, &["green", "red"]).await;
    let over = async |upstream: &mut Upstream| {
        let call = upstream.call().await;
        is_list(&call, "shard=blue,shard!=red", "100");
        call.json(200, &page(100, "", &[item("one", 7, 0)]));
        let call = upstream.call().await;
        is_list(&call, "shard=red,shard!=blue", "100");
        call.json(200, &page(100, "", &[item("two", 8, 0)]));
        let call = upstream.call().await;
        is_list(&call, "shard=green,shard!=red", "100");
        call.json(200, &page(100, "", &[item("three", 9, 0)]));
        let call = upstream.call().await;
        is_list(&call, "shard=red,shard!=green", "100");
        call.json(200, &page(100, "", &[item("two", 8, 0)]));
        goes_on(upstream, "red").await
    };
    // No one was shown anything by green, but a late answer could have been.
    proxy.until_metric(CHANGES, &[("how", "returned")], 0.0).await;
    let (_events, mut seen, _client) = come_back(&proxy, &mut upstream, Http::Two, over).await;
    let told = [("DELETED", "one"), ("DELETED", "three"), ("ADDED", "two"), ("BOOKMARK", "100")];
    sees(&mut seen, &told).await;
}

#[tokio::test]
async fn who_comes_back_for_no_bookmarks_gets_none() {
    let (mut upstream, proxy) = scene(Http::Two, &["green"]).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let target = format!("{CONFIGMAPS}?watch=1&resourceVersion=100");
    let pending = client.send(request(Method::GET, &target));
    moves(&mut upstream, 100, &[item("one", 7, 0)], &[]).await;
    let events = goes_on(&mut upstream, "green").await;
    let mut seen = pending.await.unwrap();
    events.send(event("ADDED", "ns", 130)).await;
    sees(&mut seen, &[("DELETED", "one")]).await;
    sees(&mut seen, &[("ADDED", "x")]).await;
}

#[tokio::test]
async fn bad_return_that_cannot_be_told_lists_again() {
    for http in Http::BOTH {
        // The position is compacted, no one was shown it, or seventeen scopes are since.
        let (mut upstream, proxy) = scene(http, &["green"]).await;
        let mut client = Client::new(&proxy, http).await;
        assert!(!resumes(&mut client, &mut upstream, CONFIGMAPS, 100).await);
        client.ready().await.unwrap();
        // As a Table: its rows are no events.
        let mut sent = request(Method::GET, &format!("{CONFIGMAPS}?{GO_ON}"));
        let table = HeaderValue::from_static("application/json;as=Table;v=v1;g=meta.k8s.io");
        sent.headers_mut().insert(header::ACCEPT, table);
        let pending = client.send(sent);
        let call = upstream.call().await;
        let rows = page(100, "", &[]).replace("ConfigMapList", "Table");
        call.json(200, &rows);
        let (code, body) = whole(pending.await.unwrap()).await.unwrap();
        assert_eq!((code.as_u16(), body), (200, too_old(Encoding::Json).into()));
        assert!(upstream.is_quiet());
    }
    let shards: Vec<_> = (0..17).map(|at| format!("s{at}")).collect();
    let shards: Vec<_> = shards.iter().map(String::as_str).collect();
    let (mut upstream, proxy) = scene(Http::Two, &shards).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    assert!(!resumes(&mut client, &mut upstream, CONFIGMAPS, 100).await);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn bad_break_while_a_watch_comes_back() {
    for http in Http::BOTH {
        let (mut upstream, proxy) = scene(http, &["green"]).await;
        let mut client = Client::new(&proxy, http).await;
        let pending = client.send(request(Method::GET, &format!("{CONFIGMAPS}?{GO_ON}")));
        is_compacted(upstream.call().await, 100);
        assert_eq!(whole(pending.await.unwrap()).await.unwrap().0, 200);
        drop(client);
        // It is as it was.
        let over = async |upstream: &mut Upstream| {
            moves(upstream, 100, &[item("one", 7, 0)], &[]).await;
            goes_on(upstream, "green").await
        };
        let (events, mut seen, _client) = come_back(&proxy, &mut upstream, http, over).await;
        sees(&mut seen, &[("DELETED", "one"), ("BOOKMARK", "100")]).await;
        events.end();
        assert_eq!(chunk(&mut seen).await.transpose().unwrap(), None);
    }
}

/// Kills the proxy and starts it again with another policy, in the same pod.
async fn restarted(upstream: &Upstream, proxy: Proxy, policy: &str) -> Proxy {
    let files = proxy.kill();
    files.put_policy(policy);
    Setup::of(upstream).start(files).await
}

fn on_disk(proxy: &Proxy) -> String {
    fs::read_to_string(proxy.files.state().join("positions.json")).unwrap_or_default()
}

/// What clients were shown is not above this.
async fn asks_for_the_present(upstream: &mut Upstream, at: u64) {
    let call = upstream.call().await;
    assert_eq!(call.query("limit").as_deref(), Some("1"), "{}", call.target());
    call.json(200, &list(at));
}

#[tokio::test]
async fn a_watch_that_comes_back_to_another_process_is_brought_over() {
    let upstream = Upstream::speaking(Http::Two).await;
    let proxy = Setup::of(&upstream).start(Files::new(&upstream.ca.pem)).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let mut upstream = upstream;
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    upstream.call().await.json(200, &list(100));
    assert_eq!(text(pending.await.unwrap()).await.0, 200);
    proxy.change_policy(&moved_policy("green")).await;
    until(
        "the change on disk",
        || async { on_disk(&proxy) },
        |text| text.contains("\"policy\":\"") && text.contains("\"floor\":100"),
    )
    .await;

    // Under the policy of the process before.
    let proxy = restarted(&upstream, proxy, &moved_policy("green")).await;
    let over = async |upstream: &mut Upstream| {
        asks_for_the_present(upstream, 200).await;
        moves(upstream, 100, &[item("one", 7, 0)], &[item("two", 8, 0)]).await;
        goes_on(upstream, "green").await
    };
    let (_, mut seen, client) = come_back(&proxy, &mut upstream, Http::Two, over).await;
    sees(&mut seen, &[("DELETED", "one"), ("ADDED", "two"), ("BOOKMARK", "100")]).await;
    drop((seen, client));

    // Under another one: it may have anything of both.
    let proxy = restarted(&upstream, proxy, &moved_policy("red")).await;
    let both = async |upstream: &mut Upstream| {
        asks_for_the_present(upstream, 200).await;
        for (shard, leaves) in [("blue", "one"), ("green", "two")] {
            let call = upstream.call().await;
            is_list(&call, &format!("shard={shard},shard!=red"), "100");
            call.json(200, &page(100, "", &[item(leaves, 7, 0)]));
            let call = upstream.call().await;
            is_list(&call, &format!("shard=red,shard!={shard}"), "100");
            call.json(200, &page(100, "", &[]));
        }
        goes_on(upstream, "red").await
    };
    let (_, mut seen, client) = come_back(&proxy, &mut upstream, Http::Two, both).await;
    sees(&mut seen, &[("DELETED", "one"), ("DELETED", "two"), ("BOOKMARK", "100")]).await;
    drop((seen, client));
}

#[tokio::test]
async fn bad_kill_while_a_boundary_moves() {
    let mut upstream = Upstream::speaking(Http::Two).await;
    let proxy = Setup::of(&upstream).start(Files::new(&upstream.ca.pem)).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let pending = client.send(request(Method::GET, &format!("{CONFIGMAPS}?{GO_ON}")));
    let _blue = upstream.call().await.watch();
    let _seen = pending.await.unwrap();
    proxy.change_policy(&moved_policy("green")).await;
    // The lists of the change are not answered before the end.
    let _list = upstream.call().await;
    assert!(on_disk(&proxy).contains("\"policy\":null"), "{}", on_disk(&proxy));
    let proxy = restarted(&upstream, proxy, &moved_policy("green")).await;
    let over = async |upstream: &mut Upstream| {
        asks_for_the_present(upstream, 200).await;
        moves(upstream, 100, &[item("one", 7, 0)], &[]).await;
        goes_on(upstream, "green").await
    };
    let (_, mut seen, _client) = come_back(&proxy, &mut upstream, Http::Two, over).await;
    sees(&mut seen, &[("DELETED", "one"), ("BOOKMARK", "100")]).await;
}
