//! A review goes to the shard that owns the object.

use http::{HeaderValue, Method};
use serde_json::{Value, json};

use super::mesh::{BOTH, Mesh, Setup, call, post, review, review_of};
use crate::support::{
    client::{self, Http, request, text},
    scrape, until,
    upstream::Call,
};

const ALLOWED: &str = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"r-1","allowed":true,"auditAnnotations":{"pod":"that"}}}"#;

async fn answered(mut call: Call) -> String {
    let body = call.body().await.unwrap();
    call.json(200, ALLOWED);
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn i13_a_review_is_answered_by_the_shard_that_owns_the_object() {
    let mut mesh = Mesh::start().await;
    for (team, other) in [("blue", "green"), ("green", "blue")] {
        for at in ["blue", "green"] {
            let mut client =
                mesh.client(mesh.shards.iter().find(|it| it.name == at).unwrap(), Http::One).await;
            let pending = client.send(call(review(team)));
            let arrived = mesh.shard(team).operator.call().await;
            assert_eq!(arrived.target(), "/validate?timeout=10s");
            assert_eq!(arrived.header("host").as_deref(), Some("kubernetes"));
            assert_eq!(arrived.header("content-type").as_deref(), Some("application/json"));
            assert_eq!(arrived.header("ctrlmesh-hop"), None, "it is the peers' own");
            assert_eq!(answered(arrived).await, review(team), "byte for byte");
            let answer = pending.await.unwrap();
            assert_eq!(answer.headers()["content-type"], "application/json");
            assert_eq!(text(answer).await, (200, ALLOWED.to_owned()));
            assert!(mesh.shard(other).operator.is_quiet(), "team {team} at {at}");
        }
    }
    let names = mesh.shard("blue").operator.server_names();
    assert!(names.contains(&Some("localhost".to_owned())), "that of the client: {names:?}");
    for name in ["blue", "green"] {
        let shard = mesh.shard(name);
        for how in ["here", "forwarded", "received"] {
            assert_eq!(shard.reviews(how).await.to_string(), "1", "{name}: {how}");
        }
    }
}

#[tokio::test]
async fn i13_an_update_is_its_old_owners() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let of = |team: &str| json!({"metadata": {"name": "x", "labels": {"team": team}}});
    let body = review_of("UPDATE", &of("blue"), &of("green"));
    let pending = client.send(call(body.clone()));
    let arrived = mesh.shard("green").operator.call().await;
    assert_eq!(answered(arrived).await, body);
    assert_eq!(pending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn i13_what_is_no_review_is_the_local_operators() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let conversion = r#"{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"c"}}"#;
    let truncated = &review("green")[..40];
    let twice = review("green").replace("\"uid\":\"r-1\",", "\"uid\":\"r-1\",\"uid\":\"r-1\",");
    let no_uid = review("green").replace("\"uid\":\"r-1\",", "");
    for body in [conversion, truncated, &twice, &no_uid, "[]", ""] {
        let pending = client.send(call(body));
        let mut arrived = mesh.shard("blue").operator.call().await;
        assert_eq!(arrived.body().await.unwrap(), body.as_bytes());
        arrived.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200, "{body}");
    }
    let mut other_kind = call(review("green"));
    other_kind.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
    // No one unpacks it: the API server sends none.
    let mut packed = call(review("green"));
    packed.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
    let mut other_method = call(review("green"));
    *other_method.method_mut() = Method::PUT;
    for request in [other_kind, packed, other_method, request(Method::GET, "/healthz")] {
        let pending = client.send(request);
        mesh.shard("blue").operator.call().await.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
    assert!(mesh.shard("green").operator.is_quiet());
}

#[tokio::test]
async fn i13_a_review_inside_an_objects_data_decides_nothing() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let inner: Value = serde_json::from_str(&review("green")).unwrap();
    let object = json!({"data": {"review": review("green")}, "spec": inner,
        "metadata": {"name": "x", "labels": {"team": "blue"}}});
    let pending = client.send(call(review_of("CREATE", &object, &Value::Null)));
    answered(mesh.shard("blue").operator.call().await).await;
    assert_eq!(pending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn bad_hop_header_from_outside_is_dropped() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let mut marked = call(review("green"));
    marked.headers_mut().insert("ctrlmesh-hop", HeaderValue::from_static("http/1.1"));
    let pending = client.send(marked);
    answered(mesh.shard("green").operator.call().await).await;
    assert_eq!(pending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn bad_two_policies_at_once_cost_one_hop() {
    let mut mesh = Mesh::with(Setup { behind: Some("green"), ..Setup::default() }).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("green")));
    // By its own policy it is blue's, and blue has sent it.
    answered(mesh.shard("green").operator.call().await).await;
    assert_eq!(pending.await.unwrap().status(), 200);
    assert!(mesh.shard("blue").operator.is_quiet());
    assert_eq!(mesh.shard("green").reviews("disagreed").await.to_string(), "1");
}

#[tokio::test]
async fn bad_unknown_sni_gets_the_webhook_certificate() {
    let mut mesh = Mesh::start().await;
    for name in ["127.0.0.1", "10.96.0.1"] {
        // An address is sent as no name at all.
        let config = client::config(mesh.ca.pem.as_bytes(), &[Http::One.alpn()]);
        let tls = client::connect(mesh.shards[0].addr, config, name).await.unwrap();
        let mut client = client::Client::over(tls, Http::One, 1 << 16).await;
        let pending = client.send(call(review("blue")));
        answered(mesh.shard("blue").operator.call().await).await;
        assert_eq!(pending.await.unwrap().status(), 200);
    }
    let config = client::config(mesh.ca.pem.as_bytes(), &[Http::One.alpn()]);
    let foreign = client::connect(mesh.shards[0].addr, config, "elsewhere.example").await;
    let error = foreign.unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "the client refuses it, as it would: {error}");
}

#[tokio::test]
async fn i13_each_operator_is_reached_as_by_the_api_server() {
    let mut mesh = Mesh::with(Setup { alpn: BOTH.to_vec(), ..Setup::default() }).await;
    for http in Http::BOTH {
        let mut client = mesh.client(&mesh.shards[0], http).await;
        for team in ["blue", "green"] {
            let pending = client.send(call(review(team)));
            let arrived = mesh.shard(team).operator.call().await;
            let is_h2 = arrived.parts.version == http::Version::HTTP_2;
            assert_eq!(is_h2, http == Http::Two, "as the client of the mesh came, at {team}");
            answered(arrived).await;
            assert_eq!(pending.await.unwrap().status(), 200);
        }
    }
    let names = mesh.shard("green").operator.server_names();
    let is_of_url = |name: &Option<String>| name.as_deref() == Some("kubernetes");
    assert!(!names.is_empty() && names.iter().all(is_of_url), "{names:?}");
}

#[tokio::test]
async fn i13_with_route_any_the_pod_that_got_it_answers() {
    let mut mesh = Mesh::with(Setup { webhook: ", route: Any", ..Setup::default() }).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("green")));
    answered(mesh.shard("blue").operator.call().await).await;
    assert_eq!(pending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a12_18_what_nobody_owns_is_answered_as_unowned_says() {
    for (webhook, allowed) in [(", unowned: Allow", true), (", unowned: Deny", false)] {
        let mesh = Mesh::with(Setup { webhook, ..Setup::default() }).await;
        let mut client = mesh.client(&mesh.shards[0], Http::One).await;
        for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
            let body = review("red").replace("admission.k8s.io/v1", version);
            let answer = client.send(call(body)).await.unwrap();
            assert_eq!(answer.headers()["content-type"], "application/json");
            let (code, body) = text(answer).await;
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((code, &body["kind"]), (200, &json!("AdmissionReview")), "{body}");
            assert_eq!(body["apiVersion"], version);
            assert_eq!(body["response"]["uid"], "r-1");
            assert_eq!(body["response"]["allowed"], allowed);
            assert_eq!(body["response"]["status"]["code"] == 403, !allowed);
        }
        assert_eq!(mesh.shards[0].reviews("unowned").await.to_string(), "2");
    }
}

#[tokio::test]
async fn i13_what_nobody_owns_is_answered_here_by_default() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("red")));
    answered(mesh.shard("blue").operator.call().await).await;
    assert_eq!(pending.await.unwrap().status(), 200);
}

/// The Status of a failed call.
fn status(body: &str) -> Value {
    let status: Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["kind"], "Status", "{body}");
    assert_eq!(status["code"], 503);
    status
}

#[tokio::test]
async fn bad_owner_down_is_a_failed_call_that_says_which_shard() {
    let mut mesh = Mesh::start().await;
    let green = mesh.shards.remove(1);
    drop(green);
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let answer = client.send(call(review("green"))).await.unwrap();
    assert!(!answer.headers().contains_key("retry-after"), "the API server would obey it");
    assert_eq!(answer.headers()["content-type"], "application/json");
    let (code, body) = text(answer).await;
    assert_eq!(code, 503);
    let status = status(&body);
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("no pod of shard green") && message.contains("green-0"), "{message}");
    assert_eq!(mesh.shards[0].reviews("failed").await.to_string(), "1");
    assert_eq!(mesh.shards[0].refused("owner_down").await.to_string(), "1");
    // Others are untouched.
    let pending = client.send(call(review("blue")));
    answered(mesh.shard("blue").operator.call().await).await;
    assert_eq!(pending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn bad_owner_down_is_answered_here_if_asked_for() {
    let mut mesh = Mesh::with(Setup { webhook: ", ownerDown: Any", ..Setup::default() }).await;
    drop(mesh.shards.remove(1));
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("green")));
    let arrived = mesh.shard("blue").operator.call().await;
    assert_eq!(arrived.header("ctrlmesh-hop"), None, "it is the peers' own");
    answered(arrived).await;
    assert_eq!(pending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn bad_broken_sibling_may_be_the_owner() {
    let mut mesh = Mesh::start().await;
    let file = mesh.policy_file();
    let broken = std::fs::read_to_string(&file).unwrap().replace("team: green", "'te am': green");
    std::fs::write(&file, broken).unwrap();
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    until(
        "the broken sibling",
        || async { scrape::page(mesh.shards[0].process.admin, "/debug/peers").await.1 },
        |page| page.contains("te am"),
    )
    .await;
    let (code, body) = text(client.send(call(review("red"))).await.unwrap()).await;
    assert_eq!(code, 503);
    let message = status(&body)["message"].to_string();
    assert!(message.contains("cannot be read") && message.contains("green"), "{message}");
    assert_eq!(mesh.shards[0].refused("owner_unknown").await.to_string(), "1");
    // What a shard owns that can be read is untouched.
    let pending = client.send(call(review("blue")));
    answered(mesh.shard("blue").operator.call().await).await;
    assert_eq!(pending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn i13_without_a_policy_for_webhooks_the_pod_that_got_it_answers() {
    let mut mesh = Mesh::start().await;
    let file = mesh.policy_file();
    let without = std::fs::read_to_string(&file).unwrap();
    let without: String = without
        .lines()
        .filter(|line| !line.contains("webhook:"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(&file, without).unwrap();
    let says = || async { mesh.shards[0].ready().await.1 };
    until("the change", says, |text| text.contains("has no spec.webhook")).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(post("/validate", review("green")));
    answered(mesh.shard("blue").operator.call().await).await;
    assert_eq!(pending.await.unwrap().status(), 200);
}
