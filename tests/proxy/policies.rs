//! The policy file, and the policy in the cluster: the last good one stays.

use std::{
    fs,
    time::{Duration, Instant},
};

use ctrlmesh::net::tls::HTTP_11;
use http::Method;

use crate::support::{
    CONFIGMAPS,
    client::{self, Client, Http, request},
    cluster::{Cluster, FORBIDDEN, config, configs},
    pki::Ca,
    policies::{POLICY, moved_policy},
    process::{flags, run, run_with},
    proxy::{Files, Proxy},
    scene, scrape, soon, until,
    upstream::{Behaviour, Upstream},
};

const REJECTED: &str = "ctrlmesh_policy_rejected_total";

/// Exit code and output of a start with this policy file.
async fn start(policy: &str) -> (i32, String) {
    let files = Files::new(&Ca::new("any").pem);
    files.put_policy(policy);
    run(&flags(&files, "127.0.0.1:6443")).await
}

fn with(spec: &str) -> String {
    format!(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {{name: blue}}\nspec: {spec}\n"
    )
}

#[tokio::test]
async fn bad_log_filter() {
    let files = Files::new(&Ca::new("any").pem);
    let env = [("CTRLMESH_LOG", "info,acess=verbose")];
    let (code, said) = run_with(&flags(&files, "127.0.0.1:6443"), &env).await;
    assert_eq!(code, 64, "{said}");
    for part in ["CTRLMESH_LOG", "info,acess=verbose", "\"acess=verbose\"", "TARGET=LEVEL"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[tokio::test]
async fn bad_policy_operator() {
    let bad = "{selector: {matchExpressions: [{key: a, operator: Near, values: [b]}]}}";
    let (code, said) = start(&with(bad)).await;
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("Near") && said.contains("DoesNotExist"), "{said}");
}

#[tokio::test]
async fn bad_policy_boundary() {
    let limit = "{namespaces: {names: [Team], pattern: '('}, hash: {of: uid, ranges: [{from: '0x1', to: ''}]}}";
    let (code, said) =
        start(&with(&format!("{{selector: {{matchLabels: {{app: op}}}}, limits: [{limit}]}}")))
            .await;
    assert_eq!(code, 64, "{said}");
    let fields = ["clusterScoped", "hash.ranges[0]", "namespaces.names[0]", "namespaces.pattern"];
    for field in fields {
        assert!(said.contains(&format!("spec.limits[0].{field}")), "{field}: {said}");
    }
}

#[tokio::test]
async fn bad_policy_conflicting_pair() {
    let limit = "{relateResources: [{apiGroups: [\"\"], resources: [pods]}], selector: {matchLabels: {a: b}}}";
    let spec = format!("{{selector: {{matchLabels: {{app: op}}}}, limits: [{limit}, {limit}]}}");
    let (code, said) = start(&with(&spec)).await;
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("spec.limits[1].relateResources[0]"), "{said}");
    assert!(
        said.contains("pods is limited already by spec.limits[0].relateResources[0]"),
        "{said}"
    );
}

#[tokio::test]
async fn bad_policy_absent_shard() {
    for (policy, there_is) in
        [(POLICY.replace("name: blue", "name: green"), "green"), (String::new(), "none")]
    {
        let (code, said) = start(&policy).await;
        assert_eq!(code, 64, "{said}");
        assert!(said.contains("\"blue\"") && said.contains(there_is), "{said}");
    }
}

#[tokio::test]
async fn bad_policy_file_that_is_none() {
    let files = Files::new(&Ca::new("any").pem);
    fs::remove_file(files.policy()).unwrap();
    let (code, said) = run(&flags(&files, "127.0.0.1:6443")).await;
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("--policy") && said.contains("policy.yaml"), "{said}");
    for (policy, what) in [
        ("kind: [", "document 1"),
        (&*with("{selector: {}}"), "spec.selector"),
        (&*with("{selector: {matchLabels: {a: b}}, limit: []}"), "limit"),
        (&*format!("{POLICY}\n---\n{POLICY}"), "two ShardingConfigs"),
        (&*format!("# {}\n{POLICY}", "x".repeat(1 << 20)), "1 MiB"),
    ] {
        let (code, said) = start(policy).await;
        assert_eq!(code, 64, "{said}");
        assert!(said.contains(what), "{said}");
    }
}

/// The selector that the upstream gets: the scope in force.
async fn scope(client: &mut Client, upstream: &mut Upstream) -> String {
    let pending = client.send(request(Method::GET, CONFIGMAPS));
    let call = upstream.call().await;
    let scope = call.query("labelSelector").unwrap();
    call.json(200, "{}");
    client::text(pending.await.unwrap()).await;
    scope
}

#[tokio::test]
async fn bad_policy_file_deleted_later() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    fs::remove_file(proxy.files.policy()).unwrap();
    proxy.until_metric(REJECTED, &[], 1.0).await;
    let (code, body) = proxy.admin_page("/readyz").await;
    assert_eq!(code, 200, "the last good one is in force: {body}");
    assert!(body.contains("blue epoch 1 stays in force") && body.contains("policy.yaml"), "{body}");
    assert_eq!(scope(&mut client, &mut upstream).await, "shard=blue");
    proxy.files.put_policy(POLICY);
    proxy.until_ready_says("policy ok: blue epoch 1\n").await;
}

#[tokio::test]
async fn bad_policy_change_later_keeps_the_last_good() {
    let (mut upstream, proxy, mut client) = scene(Http::Two).await;
    let watching = client.send(request(Method::GET, &format!("{CONFIGMAPS}?watch=1")));
    let events = upstream.call().await.watch();
    let mut seen = watching.await.unwrap();

    proxy.files.put_policy(&POLICY.replace("shard: blue", "\"bad key!\": x"));
    proxy.until_metric(REJECTED, &[], 1.0).await;
    let (code, body) = proxy.admin_page("/readyz").await;
    assert_eq!(code, 200, "{body}");
    assert!(body.contains("stays in force") && body.contains("bad key!"), "{body}");
    assert_eq!(scope(&mut client, &mut upstream).await, "shard=blue");
    events.send("{\"type\":\"ADDED\",\"object\":{}}\n").await;
    client::chunk(&mut seen).await.unwrap().unwrap();

    proxy.change_policy(&moved_policy("green")).await;
    proxy.until_ready_says("policy ok: blue epoch 2\n").await;
    assert_eq!(scope(&mut client, &mut upstream).await, "shard=green");
    assert_eq!(proxy.metric(REJECTED, &[]).await.to_string(), "1");
}

#[tokio::test]
async fn a_change_that_changes_nothing_is_none() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    // A mistake and its correction bracket the change: both are seen, in this order.
    proxy.files.put_policy(&format!("# said otherwise\n{POLICY}"));
    proxy.files.put_policy("kind: [");
    proxy.until_metric(REJECTED, &[], 1.0).await;
    proxy.files.put_policy(POLICY);
    proxy.until_ready_says("policy ok: blue epoch 1\n").await;
}

const INTERNAL: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","message":"starting","code":500}"#;

fn http1() -> Behaviour {
    Behaviour { alpn: vec![HTTP_11], ..Behaviour::default() }
}

#[tokio::test]
async fn bad_t71_no_policy_yet() {
    let mut cluster = Cluster::start().await;
    // The proxy's own list of ShardingConfigs has no response while the client's requests arrive.
    let own = cluster.upstream.call().await;
    assert!(own.path().ends_with("/namespaces/ns/shardingconfigs"), "{}", own.target());
    assert!(own.header("user-agent").unwrap().starts_with("ctrlmesh/"));
    cluster.until_ready_says(503, "[-]policy failed").await;
    let mut client =
        Client::to(cluster.process.addr, &cluster.files.mesh_ca_pem(), Http::One).await;
    for accept in [
        "application/json",
        "application/vnd.kubernetes.protobuf",
        "application/cbor",
        "application/yaml",
    ] {
        for target in
            [CONFIGMAPS.to_owned(), format!("{CONFIGMAPS}?watch=1"), format!("{CONFIGMAPS}/x")]
        {
            let mut sent = request(Method::GET, &target);
            sent.headers_mut().insert("accept", accept.parse().unwrap());
            let response = client.send(sent).await.unwrap();
            assert_eq!(response.status(), 503);
            assert_eq!(response.headers()["content-type"], accept);
            let seconds: u32 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert_eq!(seconds, 1);
            let (_, body) = client::whole(response).await.unwrap();
            assert!(String::from_utf8_lossy(&body).contains("ServiceUnavailable"));
        }
    }
    let (_, metrics) = scrape::page(cluster.process.admin, "/metrics").await;
    let refused = [("reason", "no_policy")];
    assert_eq!(scrape::sample(&metrics, "ctrlmesh_refusals_total", &refused).to_string(), "12");
    // A request for no resource needs no policy.
    let pending = client.send(request(Method::GET, "/version"));
    let version = cluster.upstream.call().await;
    assert_eq!(version.target(), "/version");
    version.json(200, "{}");
    assert_eq!(client::text(pending.await.unwrap()).await.0, 200);

    own.json(200, &configs(&[config("blue", "op")]));
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1").await;
}

#[tokio::test]
async fn bad_crd_absent() {
    let mut cluster = Cluster::start().await;
    let own = cluster.upstream.call().await;
    own.json(404, "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"reason\":\"NotFound\",\"message\":\"not found\",\"code\":404}");
    cluster.until_ready_says(503, "apply the CRD (ctrlmesh crds)").await;
    // The proxy lists again, and recovers by itself.
    cluster.upstream.call().await.json(200, &configs(&[config("blue", "op")]));
    cluster.until_ready_says(200, "blue epoch 1").await;
}

#[tokio::test]
async fn bad_own_account_may_not_watch() {
    let mut cluster = Cluster::start().await;
    let own = cluster.upstream.call().await;
    own.json(403, FORBIDDEN);
    cluster.until_ready_says(503, "may not list and watch shardingconfigs").await;
}

/// A client that repeats by itself says nothing before its last attempt: none but the first is
/// answered here.
#[tokio::test]
async fn a_refused_call_of_our_own_is_reported_before_it_is_repeated() {
    for code in [429, 503, 504] {
        let mut cluster = Cluster::start().await;
        let status = format!(
            "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\
             \"message\":\"not now\",\"reason\":\"x\",\"code\":{code}}}"
        );
        cluster.upstream.call().await.json(code, &status);
        cluster.until_ready_says(503, "not now").await;
    }
}

#[tokio::test]
async fn bad_no_config_selects_the_pod() {
    let mut cluster = Cluster::start().await;
    cluster.upstream.call().await.json(200, &configs(&[config("other", "another")]));
    cluster.until_ready_says(503, "selects the pod's labels").await;
}

#[tokio::test]
async fn bad_second_config_matches_and_the_first_is_deleted() {
    let mut cluster = Cluster::start().await;
    cluster.upstream.call().await.json(200, &configs(&[config("blue", "op")]));
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    let own = cluster.upstream.call().await;
    assert!(own.target().contains("watch=true"), "{}", own.target());
    let events = own.watch();
    events.send(format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", config("green", "op"))).await;
    cluster.until_ready_says(200, &format!("stays in force: {BOTH}")).await;
    events.send(format!("{{\"type\":\"DELETED\",\"object\":{}}}\n", config("green", "op"))).await;
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    events.send(format!("{{\"type\":\"DELETED\",\"object\":{}}}\n", config("blue", "op"))).await;
    cluster.until_ready_says(200, &format!("{DELETED}change the pod's labels\n")).await;
    // A config that is added later does not take its place either.
    events.send(format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", config("green", "op"))).await;
    cluster
        .until_ready_says(
            200,
            "change the pod's labels; until then ShardingConfig ns/green waits\n",
        )
        .await;
    events.send(format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", config("blue", "op"))).await;
    cluster.until_ready_says(200, BOTH).await;
}

const DELETED: &str = "[+]policy ok: blue epoch 1 stays in force: ShardingConfig ns/blue is \
                       deleted, and the pod still has the labels that it selected: create it \
                       again, or ";
const BOTH: &str = "the pod's labels are selected by ShardingConfig ns/blue, ShardingConfig \
                    ns/green: exactly one config must select them";

#[tokio::test]
async fn bad_config_in_force_is_deleted_and_another_selects_the_pod() {
    let mut cluster = Cluster::start().await;
    cluster.upstream.call().await.json(200, &configs(&[config("blue", "op")]));
    for (labels, says) in [
        ("app=\"op\"\n", "[+]policy ok: blue epoch 1\n"),
        ("app\n", "is not KEY=\"VALUE\""),
        ("app=\"op\"\ntier=\"x\"\n", "[+]policy ok: blue epoch 1\n"),
    ] {
        cluster.files.put_pod_labels(labels);
        cluster.until_ready_says(200, says).await;
    }
    let events = cluster.upstream.call().await.watch();
    let tell = async |kind: &str, config: &str| {
        events.send(format!("{{\"type\":\"{kind}\",\"object\":{config}}}\n")).await;
    };
    // A config for other pods with the same limits makes no new policy.
    let blue = config("blue", "op").replace("{\"app\":\"op\"}", "{\"tier\":\"x\"}");
    tell("MODIFIED", &blue).await;
    tell("ADDED", &config("green", "op")).await;
    cluster.until_ready_says(200, BOTH).await;
    tell("DELETED", &blue).await;
    let waits =
        format!("{DELETED}change the pod's labels; until then ShardingConfig ns/green waits\n");
    cluster.until_ready_says(200, &waits).await;
    cluster.files.put_pod_labels("app=\"op\"\n");
    cluster.until_ready_says(200, "[+]policy ok: green epoch 2\n").await;
}

#[tokio::test]
async fn the_pods_labels_choose_anew_and_hide_no_outage_of_the_configs() {
    let mut cluster = Cluster::start().await;
    let both = [config("blue", "op"), config("green", "other")];
    cluster.upstream.call().await.json(200, &configs(&both));
    let watch = cluster.upstream.call().await.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
    cluster.files.put_pod_labels("app\n");
    let unread = "blue epoch 1 stays in force: --pod-labels: \"app\" is not KEY=\"VALUE\"\n";
    cluster.until_ready_says(200, unread).await;
    cluster.files.put_pod_labels("app=\"op\"\n");
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;

    drop(watch);
    cluster.upstream.call().await.json(403, FORBIDDEN);
    let outage = "stays in force: the pod's ServiceAccount may not list and watch shardingconfigs";
    cluster.until_ready_says(200, &format!("[+]policy ok: blue epoch 1 {outage}")).await;
    let list = cluster.upstream.call().await;
    // The configs known last still decide, and may be old.
    cluster.files.put_pod_labels("app=\"other\"\n");
    cluster.until_ready_says(200, &format!("[+]policy ok: green epoch 2 {outage}")).await;
    list.json(200, &configs(&both));
    cluster.until_ready_says(200, "[+]policy ok: green epoch 2\n").await;
}

#[tokio::test]
async fn bad_config_watch_outage() {
    let mut cluster = Cluster::start().await;
    cluster.upstream.call().await.json(200, &configs(&[config("blue", "op")]));
    let watch = cluster.upstream.call().await.watch();
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;

    let (place, ca) = cluster.upstream.down().await;
    drop(watch);
    let outage = "blue epoch 1 stays in force: cannot watch shardingconfigs";
    let ready = || async { soon("readyz", scrape::page(cluster.process.admin, "/readyz")).await };
    until("readyz", ready, |(code, body)| *code == 200 && body.contains(outage)).await;

    // The API server is back, but fails: pauses between attempts grow, and the policy stays.
    let mut upstream = Upstream::on(place.listen(), ca, http1());
    let mut asked = Vec::new();
    for _ in 0..3 {
        let own = upstream.call().await;
        assert!(own.target().contains("shardingconfigs"), "{}", own.target());
        asked.push(Instant::now());
        own.json(500, INTERNAL);
    }
    assert!(asked[2] - asked[0] > Duration::from_secs(1), "{asked:?}");
    let (code, body) = ready().await;
    assert!(code == 200 && body.contains("blue epoch 1 stays in force"), "{body}");

    // The API server has recovered: an unchanged list clears the problem, too.
    upstream.call().await.json(200, &configs(&[config("blue", "op")]));
    until("readyz", ready, |(_, body)| body.contains("[+]policy ok: blue epoch 1\n")).await;
    let events = upstream.call().await.watch();
    let changed = config("blue", "op").replace("\"shard\":\"blue\"", "\"shard\":\"moved\"");
    events.send(format!("{{\"type\":\"MODIFIED\",\"object\":{changed}}}\n")).await;
    until("readyz", ready, |(_, body)| body.contains("[+]policy ok: blue epoch 2\n")).await;
}

#[tokio::test]
async fn an_api_server_that_is_busy_is_asked_again_by_our_own_pauses_alone() {
    let mut cluster = Cluster::start().await;
    let mut call = cluster.upstream.call().await;
    for code in [429, 503, 504] {
        let message = format!("busy with {code}");
        call.json(
            code,
            &format!(
                "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\
                 \"message\":\"{message}\",\"code\":{code}}}"
            ),
        );
        let answered = Instant::now();
        cluster.until_ready_says(503, &message).await;
        call = cluster.upstream.call().await;
        let pause = answered.elapsed();
        assert!(pause >= Duration::from_millis(400), "{code}: asked again after {pause:?}");
    }
    call.json(200, &configs(&[config("blue", "op")]));
    cluster.until_ready_says(200, "[+]policy ok: blue epoch 1\n").await;
}
