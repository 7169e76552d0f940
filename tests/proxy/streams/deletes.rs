//! A deletecollection by a boundary that no selector expresses: a list, and a DELETE for each
//! object of the shard.

use http::{HeaderValue, Method, header};
use serde_json::{Value, json};

use super::shared::{ALL, object, page, scene_of};
use crate::support::{
    CONFIGMAPS, TOKEN,
    client::{self, Client, Http, request, request_with},
    policies::configmaps_policy,
    proxy::Proxy,
    upstream::{Call, Upstream},
};

/// The shard of half of all uids.
fn half() -> String {
    configmaps_policy(
        "hash: {of: uid, ranges: [{from: \"0x0000000000000000\", to: \"0x8000000000000000\"}]}",
    )
}

/// The shard of the other half.
fn other_half() -> String {
    half().replace("0x8000000000000000", "").replace("0x0000000000000000", "0x8000000000000000")
}

/// A version as an aggregated API server may have it.
const OPAQUE: &str = "bm90IGEgbnVtYmVyLCBhbmQgbG9uZ2VyIHRoYW4gYW55";

/// A uid of the shard, or of the other one.
fn uid(name: &str, is_ours: bool) -> String {
    let hash = |text: &str| {
        let fnv = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, fnv)
    };
    let mut uids = (0..).map(|number| format!("{number}-uid-of-{name}"));
    uids.find(|uid| (hash(uid) >> 63 == 0) == is_ours).unwrap()
}

fn object_in(namespace: &str, name: &str, is_ours: bool, rv: u64) -> Value {
    let mut object = object(namespace, name, rv);
    object["metadata"]["uid"] = uid(name, is_ours).into();
    object
}

fn ours(name: &str, rv: u64) -> Value {
    object_in("ns", name, true, rv)
}

fn others(name: &str, rv: u64) -> Value {
    object_in("ns", name, false, rv)
}

/// The resources that the API server names in discovery.
fn names(is_namespaced: bool, verbs: &[&str]) -> String {
    let resource = |name: &str, namespaced: bool, verbs: &[&str]| {
        json!({"name": name,
        "singularName": "", "namespaced": namespaced, "kind": "X", "verbs": verbs})
    };
    let resources = [
        resource("configmaps", is_namespaced, verbs),
        resource("configmaps/status", true, &["get"]),
        resource("namespaces", false, &["create", "delete"]),
    ];
    json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources}).to_string()
}

/// Answers the discovery of deletecollection: the API server has it.
async fn is_there(upstream: &mut Upstream) {
    let call = upstream.call().await;
    assert_eq!((call.head.parts.method.as_str(), call.target()), ("GET", "/api/v1"));
    assert_eq!(call.header("authorization"), Some(format!("Bearer {TOKEN}")));
    call.json(200, &names(true, &["delete", "deletecollection"]));
}

/// The next call, which is a list.
async fn list(upstream: &mut Upstream) -> Call {
    let call = upstream.call().await;
    assert_eq!((call.head.parts.method.as_str(), call.path()), ("GET", CONFIGMAPS));
    call
}

/// The next call, which deletes this object.
async fn deletes(upstream: &mut Upstream, name: &str) -> Call {
    let call = upstream.call().await;
    assert_eq!(call.head.parts.method, Method::DELETE);
    assert_eq!(call.target(), format!("{CONFIGMAPS}/{name}"));
    call
}

#[tokio::test]
async fn t56_a_judged_deletecollection_deletes_versions_of_its_own() {
    for http in Http::BOTH {
        let (mut upstream, _proxy, mut client) = scene_of(&half(), http).await;
        let target = format!("{CONFIGMAPS}?labelSelector=a%3Db&gracePeriodSeconds=0");
        let pending = client.send(request(Method::DELETE, &target));
        is_there(&mut upstream).await;
        let call = list(&mut upstream).await;
        assert_eq!(call.target(), format!("{CONFIGMAPS}?labelSelector=a%3Db&limit=500"));
        let accept = call.header("accept").unwrap();
        assert!(accept.contains("as=PartialObjectMetadataList"), "not whole objects: {accept}");
        let mut opaque = ours("c", 3);
        opaque["metadata"]["resourceVersion"] = OPAQUE.into();
        call.json(200, &page(100, "", &[ours("a", 1), others("b", 2), opaque, ours("d", 4)]));
        // One of the objects is gone meanwhile.
        for (name, rv, code) in [("a", "1", 200), ("c", OPAQUE, 404), ("d", "4", 409)] {
            let mut call = deletes(&mut upstream, name).await;
            assert_eq!(call.header("content-type").as_deref(), Some("application/json"));
            let body: Value = serde_json::from_slice(&call.body().await.unwrap()).unwrap();
            call.json(code, "{\"kind\":\"Status\"}");
            let only = json!({"uid": uid(name, true), "resourceVersion": rv});
            assert_eq!(body["preconditions"], only);
            assert_eq!(body["gracePeriodSeconds"], 0);
        }
        // An object that has changed is listed again; it may be another shard's by then.
        for (is_ours, rv) in [(true, 5), (false, 6)] {
            let again = list(&mut upstream).await;
            assert_eq!(again.query("fieldSelector").as_deref(), Some("metadata.name=d"));
            assert_eq!(again.query("labelSelector").as_deref(), Some("a=b"));
            again.json(200, &page(100, "", &[object_in("ns", "d", is_ours, rv)]));
            if is_ours {
                deletes(&mut upstream, "d").await.json(409, "{\"kind\":\"Status\"}");
            }
        }
        let (code, body) = client::text(pending.await.unwrap()).await;
        assert!(code == 200 && body.contains("\"Success\""), "{code} {body}");
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn bad_options_of_a_deletecollection_that_go_on_and_on() {
    for http in Http::BOTH {
        let (mut upstream, proxy, mut client) = scene_of(&half(), http).await;
        // No one announces how long they are.
        let (sent, options) = client::upload(Method::DELETE, CONFIGMAPS);
        let pending = client.send(sent);
        options.send("{\"kind\":\"DeleteOptions\"".to_owned() + &" ".repeat(40 << 10)).await;
        options.send(" ".repeat(40 << 10)).await;
        let (code, body) = client::text(pending.await.unwrap()).await;
        assert_eq!(code, 413, "{body}");
        assert!(body.contains("larger than 64 KiB"), "{body}");
        let refused = [("reason", "body_too_large")];
        proxy.until_metric("ctrlmesh_refusals_total", &refused, 1.0).await;
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn t56_a_judged_deletecollection_goes_through_all_pages_and_stops_at_a_no() {
    let (mut upstream, _proxy, mut client) = scene_of(&half(), Http::Two).await;
    let target = format!("{CONFIGMAPS}?resourceVersion=7&resourceVersionMatch=Exact");
    let pending = client.send(request(Method::DELETE, &target));
    is_there(&mut upstream).await;
    let call = list(&mut upstream).await;
    assert_eq!(call.query("resourceVersion").as_deref(), Some("7"));
    assert_eq!(call.query("resourceVersionMatch").as_deref(), Some("Exact"));
    call.json(200, &page(100, "token", &[others("b", 2)]));
    let call = list(&mut upstream).await;
    assert_eq!(call.query("continue").as_deref(), Some("token"));
    assert_eq!(call.query("resourceVersion"), None, "the token has it");
    call.json(200, &page(100, "", &[ours("a", 1), ours("c", 1)]));
    deletes(&mut upstream, "a").await.json(403, "{\"kind\":\"Status\",\"code\":403}");
    let (code, body) = client::text(pending.await.unwrap()).await;
    assert_eq!((code, body.as_str()), (403, "{\"kind\":\"Status\",\"code\":403}"));
    assert!(upstream.is_quiet(), "nothing more was deleted");
}

#[tokio::test]
async fn t56_a_token_that_expires_under_way_begins_anew() {
    for own in [false, true] {
        let (mut upstream, _proxy, mut client) = scene_of(&half(), Http::Two).await;
        let query = if own { "?continue=mine" } else { "" };
        let pending = client.send(request(Method::DELETE, &format!("{CONFIGMAPS}{query}")));
        is_there(&mut upstream).await;
        list(&mut upstream).await.json(200, &page(100, "token", &[others("a", 1)]));
        list(&mut upstream).await.json(410, "{\"kind\":\"Status\",\"code\":410}");
        if own {
            // Objects before the client's own token are not its to delete.
            assert_eq!(client::text(pending.await.unwrap()).await.0, 410);
            continue;
        }
        let call = list(&mut upstream).await;
        assert_eq!(call.query("continue"), None);
        call.json(200, &page(100, "", &[]));
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
}

/// A resource without the verb, or over all namespaces: the API server answers 405 to anybody.
#[tokio::test]
async fn bad_t56_deletecollection_that_the_api_server_does_not_have() {
    let (mut upstream, proxy, mut client) = scene_of(&half(), Http::Two).await;
    let all = ["delete", "deletecollection", "list"];
    let absent = [
        (ALL, names(true, &all)),
        (CONFIGMAPS, names(true, &["delete", "list"])),
        (CONFIGMAPS, names(true, &all).replace("configmaps", "maps")),
    ];
    for (target, answer) in absent {
        let pending = client.send(request(Method::DELETE, target));
        upstream.call().await.json(200, &answer);
        let (code, body) = client::text(pending.await.unwrap()).await;
        assert!(code == 405 && body.contains("\"MethodNotAllowed\""), "{target}: {code} {body}");
    }
    proxy.until_metric("ctrlmesh_refusals_total", &[("reason", "method_not_allowed")], 3.0).await;
    for code in [403, 429, 503] {
        let pending = client.send(request(Method::DELETE, ALL));
        upstream.call().await.json(code, "{\"kind\":\"Status\"}");
        let answer = client::text(pending.await.unwrap()).await;
        assert_eq!(answer, (code, "{\"kind\":\"Status\"}".to_owned()));
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn t56_what_is_in_no_namespace_is_deleted() {
    let (mut upstream, _proxy, mut client) = scene_of(&half(), Http::Two).await;
    let pending = client.send(request(Method::DELETE, ALL));
    upstream.call().await.json(200, &names(false, &["deletecollection"]));
    let mut cluster = ours("a", 1);
    cluster["metadata"].as_object_mut().unwrap().remove("namespace");
    let call = upstream.call().await;
    assert_eq!(call.path(), ALL);
    call.json(200, &page(100, "", &[cluster]));
    let call = upstream.call().await;
    assert_eq!((call.head.parts.method.as_str(), call.target()), ("DELETE", &*format!("{ALL}/a")));
    call.json(200, "{}");
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    // An object of a namespace has another path.
    let pending = client.send(request(Method::DELETE, ALL));
    upstream.call().await.json(200, &names(false, &["deletecollection"]));
    upstream.call().await.json(200, &page(100, "", &[ours("a", 1)]));
    assert_eq!(client::text(pending.await.unwrap()).await.0, 500);
    assert!(upstream.is_quiet());
}

/// As many objects as the client's limit, and the token of the rest.
#[tokio::test]
async fn t56_a_limit_is_of_the_shards_objects() {
    let (mut upstream, _proxy, mut client) = scene_of(&half(), Http::Two).await;
    let pending =
        client.send(request(Method::DELETE, &format!("{CONFIGMAPS}?limit=3&continue=mine")));
    is_there(&mut upstream).await;
    let call = list(&mut upstream).await;
    assert_eq!(
        (call.query("limit"), call.query("continue")),
        (Some("3".into()), Some("mine".into()))
    );
    call.json(200, &page(100, "one", &[others("a", 1), ours("b", 1), others("c", 1)]));
    deletes(&mut upstream, "b").await.json(200, "{}");
    // Pages grow if few objects are the shard's.
    let call = list(&mut upstream).await;
    assert_eq!(
        (call.query("limit"), call.query("continue")),
        (Some("6".into()), Some("one".into()))
    );
    let rest = [others("d", 1), ours("e", 1), ours("f", 1), others("g", 1), ours("h", 1)];
    call.json(200, &page(100, "two", &rest));
    // A page that was too large is listed again, with a token for its very end.
    let call = list(&mut upstream).await;
    assert_eq!(
        (call.query("limit"), call.query("continue")),
        (Some("3".into()), Some("one".into()))
    );
    call.json(200, &page(100, "three", &rest[..3]));
    deletes(&mut upstream, "e").await.json(200, "{}");
    deletes(&mut upstream, "f").await.json(200, "{}");
    let (code, body) = client::text(pending.await.unwrap()).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (code, &body["status"], &body["metadata"]["continue"]),
        (200, &json!("Success"), &json!("three"))
    );
    assert!(upstream.is_quiet());

    // A server that ignores `limit` is not asked for ever.
    let pending = client.send(request(Method::DELETE, &format!("{CONFIGMAPS}?limit=1")));
    is_there(&mut upstream).await;
    list(&mut upstream).await.json(200, &page(100, "", &[ours("a", 1), ours("b", 1)]));
    deletes(&mut upstream, "a").await.json(200, "{}");
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);

    // An invalid limit is the API server's to refuse.
    let pending = client.send(request(Method::DELETE, &format!("{CONFIGMAPS}?limit=x")));
    is_there(&mut upstream).await;
    let call = list(&mut upstream).await;
    assert_eq!(call.query("limit").as_deref(), Some("x"));
    call.json(400, "{\"kind\":\"Status\"}");
    assert_eq!(client::text(pending.await.unwrap()).await.0, 400);
}

#[tokio::test]
async fn bad_t56_the_boundary_moves_while_a_collection_is_deleted() {
    let (mut upstream, proxy, mut client) = scene_of(&half(), Http::Two).await;
    let pending = client.send(request(Method::DELETE, CONFIGMAPS));
    is_there(&mut upstream).await;
    list(&mut upstream).await.json(200, &page(100, "", &[ours("a", 1), ours("b", 1)]));
    let first = deletes(&mut upstream, "a").await;
    proxy.change_policy(&other_half()).await;
    first.json(200, "{}");
    let (code, body) = client::text(pending.await.unwrap()).await;
    assert!(code == 409 && body.contains("\"Conflict\""), "{code} {body}");
    assert!(upstream.is_quiet(), "the other one is someone else's now");
    proxy.until_metric("ctrlmesh_refusals_total", &[("reason", "scope_changed")], 1.0).await;

    // A change of another resource's limit does not count.
    let with = |resource: &str| {
        let limit = format!(
            "limits: [{{relateResources: [{{apiGroups: [\"\"], resources: [{resource}]}}], selector: \
             {{matchLabels: {{team: a}}}}}}, "
        );
        other_half().replace("limits: [", &limit)
    };
    for changed in [with("services"), with("endpoints")] {
        let pending = client.send(request(Method::DELETE, CONFIGMAPS));
        is_there(&mut upstream).await;
        list(&mut upstream).await.json(200, &page(100, "", &[others("b", 1), others("c", 1)]));
        let first = deletes(&mut upstream, "b").await;
        proxy.change_policy(&changed).await;
        first.json(200, "{}");
        deletes(&mut upstream, "c").await.json(200, "{}");
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
}

#[tokio::test]
async fn t47_a_collection_of_large_objects_is_deleted() {
    let (mut upstream, _proxy, mut client) = scene_of(&half(), Http::Two).await;
    let pending = client.send(request(Method::DELETE, CONFIGMAPS));
    is_there(&mut upstream).await;
    let answer = list(&mut upstream).await.stream(200, &[("content-type", "application/json")]);
    let mut large = others("large", 1);
    large["metadata"]["annotations"] = json!({"last-applied": "x".repeat(240 << 10)});
    let large = large.to_string();
    answer.send("{\"kind\":\"List\",\"metadata\":{\"resourceVersion\":\"9\"},\"items\":[").await;
    for _ in 0..160 {
        answer.send(format!("{large},")).await;
    }
    answer.send(format!("{}]}}", ours("a", 1))).await;
    answer.end();
    deletes(&mut upstream, "a").await.json(200, &large);
    let (code, body) = client::text(pending.await.unwrap()).await;
    assert_eq!(code, 200, "{body}");
}

#[tokio::test]
async fn t63_a_judged_deletecollection_is_made_with_its_own_token() {
    let (mut upstream, _proxy, mut client) = scene_of(&half(), Http::Two).await;
    let deletes = |token: &'static str| {
        let mut sent = request(Method::DELETE, CONFIGMAPS);
        sent.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_static(token));
        sent
    };
    let mut pending = vec![client.send(deletes("Bearer one"))];
    let first = upstream.call().await;
    pending.push(client.send(deletes("Bearer two")));
    let second = upstream.call().await;
    for (call, token) in [(first, "Bearer one"), (second, "Bearer two")] {
        assert_eq!(call.header("authorization").as_deref(), Some(token));
        call.json(200, &names(true, &["deletecollection"]));
        let call = list(&mut upstream).await;
        assert_eq!(call.header("authorization").as_deref(), Some(token));
        call.json(200, &page(100, "", &[ours("a", 1)]));
        let call = upstream.call().await;
        assert_eq!(call.head.parts.method, Method::DELETE);
        assert_eq!(call.header("authorization").as_deref(), Some(token));
        call.json(200, "{}");
    }
    for pending in pending {
        assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
    }
}

#[tokio::test]
async fn bad_delete_options_of_a_judged_collection() {
    let (mut upstream, proxy, mut client) = scene_of(&half(), Http::Two).await;
    for body in ["[", r#"{"preconditions":{"uid":"x"}}"#] {
        let refused = client.send(request_with(Method::DELETE, CONFIGMAPS, body)).await.unwrap();
        assert_eq!(client::text(refused).await.0, 400);
    }
    let mut yaml = request_with(Method::DELETE, CONFIGMAPS, "dryRun: [All]\n");
    yaml.headers_mut().insert("content-type", "application/yaml".parse().unwrap());
    assert_eq!(client::text(client.send(yaml).await.unwrap()).await.0, 415);
    let long = request_with(Method::DELETE, CONFIGMAPS, " ".repeat((64 << 10) + 1));
    assert_eq!(client::text(client.send(long).await.unwrap()).await.0, 413);
    assert!(upstream.is_quiet());
    for bad in [
        "{\"items\":[{\"metadata\":{\"name\":\"a\"}}]}".to_owned(),
        page(100, "", &[ours("a", 1)]).replace("\"resourceVersion\":\"1\"", "\"other\":\"1\""),
        page(100, "", &[json!({"metadata": {"name": "b", "namespace": "ns"}}), ours("a", 1)]),
        page(100, "", &[object_in("other", "b", true, 1), ours("a", 1)]),
        page(100, "", &[])[..20].to_owned(),
        page(100, "", &vec![ours("a", 1); 20_001]),
        "[]".to_owned(),
    ] {
        let pending = client.send(request(Method::DELETE, CONFIGMAPS));
        is_there(&mut upstream).await;
        list(&mut upstream).await.json(200, &bad);
        assert_eq!(client::text(pending.await.unwrap()).await.0, 500, "{bad}");
    }
    proxy.until_metric("ctrlmesh_refusals_total", &[("reason", "bad_body")], 2.0).await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn t56_a_collection_that_is_the_shards_is_deleted_by_the_api_server() {
    let mut upstream = Upstream::start().await;
    let names = configmaps_policy("namespaces: {names: [ns]}, clusterScoped: Exclude");
    let proxy = Proxy::with_policy(&upstream, &names).await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let pending = client.send(request(Method::DELETE, CONFIGMAPS));
    let call = upstream.call().await;
    assert_eq!((call.head.parts.method.as_str(), call.target()), ("DELETE", CONFIGMAPS));
    call.json(200, "{}");
    pending.await.unwrap();
}
