//! The part of a boundary that is pushed to the API server, once it has proved that it understands.

use http::{HeaderValue, Method, header};
use serde_json::{Value, json};

use super::shared::ALL;
use crate::support::{
    TOKEN,
    client::{self, Client, Http, request},
    policies::configmaps_policy,
    proxy::{Files, Proxy, Setup},
    upstream::{Call, Upstream},
};
use ctrlmesh::proxy::config::Pushdown;

const PUSHDOWN: &str = "ctrlmesh_pushdown_total";
const HALF: &str = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";

fn half_by_uid() -> String {
    configmaps_policy(
        "hash: {of: uid, ranges: [{from: \"0x0000000000000000\", to: \"0x8000000000000000\"}]}",
    )
}

fn one_namespace() -> String {
    configmaps_policy("namespaces: {names: [ours]}, clusterScoped: Exclude")
}

async fn scene(policy: &str) -> (Upstream, Proxy, Client) {
    let upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    files.put_policy(policy);
    let state_dir = Some(files.path().to_owned());
    let setup = Setup { pushdown: Pushdown::Auto, state_dir, ..Setup::of(&upstream) };
    let proxy = setup.start(files).await;
    let client = Client::new(&proxy, Http::Two).await;
    (upstream, proxy, client)
}

#[tokio::test]
async fn with_pushdown_off_the_api_server_is_told_nothing() {
    for policy in [half_by_uid(), one_namespace()] {
        let mut upstream = Upstream::start().await;
        let files = Files::new(&upstream.ca.pem);
        files.put_policy(&policy);
        let setup = Setup { pushdown: Pushdown::Off, ..Setup::of(&upstream) };
        let proxy = setup.start(files).await;
        let mut client = Client::new(&proxy, Http::Two).await;
        for query in ["?limit=500", ""] {
            let pending = client.send(request(Method::GET, &format!("{ALL}{query}")));
            // The first request is the client's own, unchanged: no probe goes before it.
            let call = upstream.call().await;
            assert_eq!(call.target(), format!("{ALL}{query}"));
            call.json(200, &list(&["1"]));
            assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
        }
        assert_eq!(proxy.metric(PUSHDOWN, &[("how", "none")]).await, 2.0);
        assert_eq!(proxy.metric(PUSHDOWN, &[]).await, 2.0);
    }
}

/// FNV-1a of "abc" is in the upper half.
fn list(uids: &[&str]) -> String {
    let item = |uid: &&str| json!({"metadata": {"name": uid, "namespace": "ours", "uid": uid}});
    let items: Vec<_> = uids.iter().map(item).collect();
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items})
        .to_string()
}

fn echo(selector: &str) -> String {
    json!({"metadata": {"resourceVersion": "5", "shardInfo": {"selector": selector}}, "items": []})
        .to_string()
}

async fn lists(
    client: &mut Client,
    upstream: &mut Upstream,
    query: &str,
) -> (Option<String>, Value) {
    let pending = client.send(request(Method::GET, &format!("{ALL}{query}")));
    let call = upstream.call().await;
    let pushed = call.query("shardSelector");
    call.json(200, &list(&["abc", "1"]));
    let (code, body) = client::text(pending.await.unwrap()).await;
    assert_eq!(code, 200, "{body}");
    (pushed, serde_json::from_str(&body).unwrap())
}

/// Sends a list, whose probe gets this answer.
async fn probed(
    client: &mut Client,
    upstream: &mut Upstream,
    answer: impl FnOnce(Call),
) -> (Option<String>, Option<String>) {
    let pending = client.send(request(Method::GET, &format!("{ALL}?limit=500")));
    let probe = upstream.call().await;
    assert_eq!(probe.query("limit").as_deref(), Some("1"));
    assert_eq!(probe.header("accept").as_deref(), Some("application/json"));
    assert_eq!(probe.header("authorization"), Some(format!("Bearer {TOKEN}")));
    answer(probe);
    let call = upstream.call().await;
    assert_eq!(call.query("limit").as_deref(), Some("500"));
    let pushed = (call.query("shardSelector"), call.query("fieldSelector"));
    call.json(200, &list(&[]));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    pushed
}

#[tokio::test]
async fn t48_a_range_is_pushed_down_once_a_list_has_echoed_it() {
    let (mut upstream, proxy, mut client) = scene(&half_by_uid()).await;
    let answer = |probe: Call| {
        assert_eq!(probe.query("shardSelector").as_deref(), Some(HALF));
        // The API server prints the selector again.
        probe.json(200, &echo(&HALF.replace(", ", ",")));
    };
    let (pushed, _) = probed(&mut client, &mut upstream, answer).await;
    assert_eq!(pushed.as_deref(), Some(HALF));
    // The proof holds for every page and every watch; and each object is judged all the same.
    let (pushed, body) = lists(&mut client, &mut upstream, "?limit=500&continue=token").await;
    assert_eq!(pushed.as_deref(), Some(HALF));
    let names: Vec<_> =
        body["items"].as_array().unwrap().iter().map(|i| &i["metadata"]["uid"]).collect();
    assert!(!names.contains(&&json!("abc")), "{names:?}");
    let pending = client.send(request(Method::GET, &format!("{ALL}?watch=1")));
    let call = upstream.call().await;
    assert_eq!(call.query("shardSelector").as_deref(), Some(HALF));
    call.watch().end();
    pending.await.unwrap();
    assert_eq!(proxy.metric(PUSHDOWN, &[("how", "hash")]).await, 3.0);
}

#[tokio::test]
async fn t48_without_the_very_echo_nothing_is_pushed_down() {
    let other = HALF.replace("0x8", "0x9");
    let answers: [(u16, String); 5] = [
        (200, echo(&other)),
        (200, echo(&HALF.replace("uid", "namespace"))),
        // Without an echo, and with an object that is in no such range.
        (200, list(&["abc"])),
        (400, "{}".to_owned()),
        (200, "no JSON".to_owned()),
    ];
    for (code, body) in answers {
        let (mut upstream, proxy, mut client) = scene(&half_by_uid()).await;
        let (pushed, _) = probed(&mut client, &mut upstream, |probe| probe.json(code, &body)).await;
        assert_eq!(pushed, None, "{body}");
        let (pushed, _) = lists(&mut client, &mut upstream, "").await;
        assert_eq!(pushed, None, "it is not asked again on this connection");
        assert_eq!(proxy.metric(PUSHDOWN, &[("how", "none")]).await, 2.0);
    }
}

#[tokio::test]
async fn what_fails_for_once_is_asked_again() {
    for policy in [half_by_uid(), one_namespace()] {
        for code in [403, 404, 429, 503] {
            let (mut upstream, _proxy, mut client) = scene(&policy).await;
            let busy = |probe: Call| probe.json(code, "{}");
            assert_eq!(probed(&mut client, &mut upstream, busy).await, (None, None), "{code}");
            let well = |probe: Call| probe.json(200, &echo(HALF));
            let (hashes, namespace) = probed(&mut client, &mut upstream, well).await;
            assert!(hashes.is_some() || namespace.is_some(), "{code}");
        }
    }
}

/// An error that is longer than any list of one object proves nothing.
#[tokio::test]
async fn what_fails_at_length_is_asked_again() {
    let (mut upstream, _proxy, mut client) = scene(&half_by_uid()).await;
    let busy = |probe: Call| probe.json(503, &"x".repeat(5 << 20));
    assert_eq!(probed(&mut client, &mut upstream, busy).await, (None, None));
    probed(&mut client, &mut upstream, |probe| probe.json(200, &echo(HALF))).await;
}

#[tokio::test]
async fn what_takes_long_is_given_up_and_asked_again() {
    let (mut upstream, _proxy, mut client) = scene(&half_by_uid()).await;
    let pending = client.send(request(Method::GET, &format!("{ALL}?limit=500")));
    let mut probe = upstream.call().await;
    assert_eq!(probe.query("limit").as_deref(), Some("1"));
    probe.given_up().await;
    let call = upstream.call().await;
    assert_eq!((call.query("limit"), call.query("shardSelector")), (Some("500".into()), None));
    call.json(200, &list(&[]));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    probed(&mut client, &mut upstream, |probe| probe.json(200, &echo(HALF))).await;
}

/// A list at the path of a watch would be a second watch.
#[tokio::test]
async fn a_watch_by_its_path_is_probed_by_the_collections_own() {
    for (path, own) in [
        ("/api/v1/watch/configmaps", ALL),
        ("/api/v1/watch/namespaces/ours/configmaps", "/api/v1/namespaces/ours/configmaps"),
    ] {
        let (mut upstream, _proxy, mut client) = scene(&half_by_uid()).await;
        // The API server answers it with 405, so it needs no probe.
        let pending = client.send(request(Method::POST, path));
        let call = upstream.call().await;
        assert_eq!((call.head.parts.method.as_str(), call.path()), ("POST", path));
        call.json(405, "{}");
        assert_eq!(client::text(pending.await.unwrap()).await.0, 405);
        let pending = client.send(request(Method::GET, &format!("{path}?timeoutSeconds=1")));
        let probe = upstream.call().await;
        assert_eq!((probe.path(), probe.query("limit").as_deref()), (own, Some("1")));
        probe.json(200, &echo(HALF));
        let call = upstream.call().await;
        assert_eq!((call.path(), call.query("shardSelector").as_deref()), (path, Some(HALF)));
        call.watch().end();
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
}

#[tokio::test]
async fn t63_a_proof_is_asked_for_with_the_requests_own_token() {
    let (mut upstream, _proxy, mut client) = scene(&half_by_uid()).await;
    let lists = |token: &'static str| {
        let mut sent = request(Method::GET, ALL);
        sent.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_static(token));
        sent
    };
    let mut pending = vec![client.send(lists("Bearer one"))];
    let first = upstream.call().await;
    pending.push(client.send(lists("Bearer two")));
    let second = upstream.call().await;
    for (probe, token) in [(first, "Bearer one"), (second, "Bearer two")] {
        assert_eq!(probe.query("limit").as_deref(), Some("1"));
        assert_eq!(probe.header("authorization").as_deref(), Some(token));
        probe.json(503, "{}");
        let call = upstream.call().await;
        assert_eq!(call.header("authorization").as_deref(), Some(token));
        call.json(200, &list(&[]));
    }
    for pending in pending {
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
}

#[tokio::test]
async fn for_what_is_refused_nothing_is_asked() {
    let mut upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    files.put_policy(&half_by_uid());
    // Without a state directory nothing is known of earlier positions.
    let setup = Setup { pushdown: Pushdown::Auto, forgets: true, ..Setup::of(&upstream) };
    let proxy = setup.start(files).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let expired = format!("{ALL}?limit=500&continue=eyJydiI6OX0");
    for (target, expected) in [(format!("{ALL}?labelSelector=a%20in%20("), 400), (expired, 410)] {
        let (code, body) = client::text(client.get(&target).await).await;
        assert_eq!(code, expected, "{target}: {body}");
    }
    assert!(upstream.is_quiet());
}

/// A server without an echo, as for custom resources. It has one object, and applies hashes or not.
#[tokio::test]
async fn t48_without_an_echo_an_object_is_the_proof() {
    // Whether its own hash lists it, and all others do; whether that proves it, and for good.
    for (by_own, by_others, is_proof, is_final) in
        [(true, false, true, true), (true, true, false, true), (false, false, false, false)]
    {
        let (mut upstream, _proxy, mut client) = scene(&half_by_uid()).await;
        let pending = client.send(request(Method::GET, &format!("{ALL}?limit=500")));
        upstream.call().await.json(200, &list(&[]));
        let any = upstream.call().await;
        assert_eq!(any.target(), format!("{ALL}?limit=1"));
        any.json(200, &list(&["abc"]));
        let hash = "shardRange(object.metadata.uid, '0xe71fa2190541574b', '0xe71fa2190541574c')";
        for (is_own, is_listed) in [(true, by_own), (false, by_others)] {
            let call = upstream.call().await;
            let field = call.query("fieldSelector");
            assert_eq!(field.as_deref(), Some("metadata.name=abc,metadata.namespace=ours"));
            let selector = call.query("shardSelector").unwrap();
            assert_eq!(selector == hash, is_own, "{selector}");
            assert_eq!(selector.contains(" || "), !is_own, "{selector}");
            call.json(200, &if is_listed { list(&["abc"]) } else { list(&[]) });
        }
        let call = upstream.call().await;
        assert_eq!(call.query("shardSelector").is_some(), is_proof);
        call.json(200, &list(&[]));
        pending.await.unwrap();

        let pending = client.send(request(Method::GET, &format!("{ALL}?limit=7")));
        let call = upstream.call().await;
        let is_asked_again = call.query("limit").as_deref() == Some("1");
        assert_eq!(is_asked_again, !is_final);
        drop((call, pending));
    }
}

#[tokio::test]
async fn t46_a_clients_own_ranges_stay_alone() {
    let (mut upstream, _proxy, mut client) = scene(&half_by_uid()).await;
    let (pushed, _) = lists(&mut client, &mut upstream, "?shardSelector=its%20own").await;
    assert_eq!(pushed.as_deref(), Some("its own"));
}

#[tokio::test]
async fn t47_more_ranges_than_a_request_line_should_have_stay_here() {
    let range =
        |at: u64| format!("{{from: \"{:#018x}\", to: \"{:#018x}\"}}", at << 56, (at << 56) + 1);
    let ranges: Vec<_> = (0..65).map(range).collect();
    let policy = configmaps_policy(&format!("hash: {{of: uid, ranges: [{}]}}", ranges.join(", ")));
    let (mut upstream, proxy, mut client) = scene(&policy).await;
    let (pushed, body) = lists(&mut client, &mut upstream, "").await;
    assert_eq!((pushed, &body["items"]), (None, &json!([])));
    assert_eq!(proxy.metric(PUSHDOWN, &[("how", "none")]).await, 1.0);
}

#[tokio::test]
async fn t50_what_is_sent_in_spite_of_the_ranges_does_not_leak_and_is_counted() {
    let (mut upstream, proxy, mut client) = scene(&half_by_uid()).await;
    probed(&mut client, &mut upstream, |probe| probe.json(200, &echo(HALF))).await;
    let pending = client.send(request(Method::GET, &format!("{ALL}?watch=1")));
    let call = upstream.call().await;
    assert_eq!(call.query("shardSelector").as_deref(), Some(HALF));
    let events = call.stream(200, &[("content-type", "application/json")]);
    let meta = json!({"name": "x", "namespace": "ours", "uid": "abc", "resourceVersion": "7"});
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta});
    events.send(format!("{}\n", json!({"type": "ADDED", "object": object}))).await;
    let filtered = "ctrlmesh_filtered_items_total";
    proxy.until_metric(filtered, &[("kept", "false"), ("resource", "configmaps")], 1.0).await;
    events.end();
    assert_eq!(client::text(pending.await.unwrap()).await, (200, String::new()));
}

#[tokio::test]
async fn one_namespace_is_selected_as_a_field_where_that_is_understood() {
    for (code, expected) in [(200, Some("metadata.namespace=ours".to_owned())), (400, None)] {
        let (mut upstream, proxy, mut client) = scene(&one_namespace()).await;
        let answer = |probe: Call| {
            assert_eq!(probe.query("fieldSelector").as_deref(), Some("metadata.namespace=ours"));
            probe.json(code, &list(&[]));
        };
        let (_, pushed) = probed(&mut client, &mut upstream, answer).await;
        assert_eq!(pushed, expected);
        let pending = client.send(request(Method::GET, &format!("{ALL}?fieldSelector=a%3Db")));
        let call = upstream.call().await;
        let both = if code == 200 { "a=b,metadata.namespace=ours" } else { "a=b" };
        assert_eq!(call.query("fieldSelector").as_deref(), Some(both));
        call.json(200, &list(&[]));
        pending.await.unwrap();
        let how = if code == 200 { "namespace" } else { "none" };
        assert_eq!(proxy.metric(PUSHDOWN, &[("how", how)]).await, 2.0);
    }
}
