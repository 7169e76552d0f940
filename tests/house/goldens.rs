//! The golden files.

use std::fmt::Write as _;

use ctrlmesh::{
    net::tls::H2,
    policy::Refusal,
    wire::{media::Encoding, status::Status},
};
use http::Method;
use strum::VariantArray;

use crate::support::{
    client::{Client, Http, chunk, config, connect, request},
    golden,
    manager::Manager,
    policies::{everything_policy, moved_policy},
    process::run,
    proxy::Files,
    upstream::Upstream,
};

#[tokio::test]
async fn help() {
    for command in [
        "", "proxy", "manager", "mesh-ca", "explain", "handover", "status", "doctor", "shard",
        "unshard", "crds",
    ] {
        let args: Vec<_> = [command, "--help"]
            .into_iter()
            .filter(|arg| !arg.is_empty())
            .map(str::to_owned)
            .collect();
        let (code, said) = run(&args).await;
        assert_eq!(code, 0, "{said}");
        let name = if command.is_empty() { "help.txt" } else { &format!("help-{command}.txt") };
        golden::check(name, &said);
    }
}

/// The definitions that users apply are generated from the types.
#[tokio::test]
async fn custom_resource_definitions() {
    let (code, said) = run(&["crds".to_owned()]).await;
    assert_eq!(code, 0, "{said}");
    golden::check_file("deploy/crds.yaml", &said);
}

#[test]
fn statuses() {
    let mut text = String::new();
    for refusal in Refusal::VARIANTS {
        let refused = refusal.because("WHY");
        let status = &refused.status;
        let _ = writeln!(text, "{}", refusal.label());
        let _ = writeln!(text, "  code {}, Retry-After {:?}", status.code, refused.retry_after);
        let _ = writeln!(text, "  json {}", body(status, Encoding::Json));
        let _ = writeln!(text, "  yaml {}", body(status, Encoding::Yaml));
        let _ = writeln!(text, "  protobuf {}", body(status, Encoding::Protobuf));
        let _ = writeln!(text, "  cbor {}", body(status, Encoding::Cbor));
        for encoding in [Encoding::Json, Encoding::Protobuf, Encoding::Cbor] {
            let event = status.error_event(encoding).escape_ascii().to_string();
            let _ = writeln!(text, "  event {encoding:?} {event}");
        }
    }
    golden::check("refusals.txt", &text);
}

fn body(status: &Status, encoding: Encoding) -> String {
    format!("{} {}", encoding.content_type(), status.encode(encoding).escape_ascii())
}

/// A metric is shown only after its first value, so each gets one.
#[tokio::test]
async fn metrics() {
    let mut upstream = Upstream::start().await;
    let manager = Manager::start().await;
    let files = Files::new(&upstream.ca.pem);
    manager.give_to(&files);
    let mut setup = manager.setup(&upstream, &files);
    setup.webhook.webhook_port = Some(9443);
    let proxy = setup.start(files).await;
    proxy.until_ready_says("[+]certificate ok").await;
    let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
    connect(proxy.addr, trust, "example.com").await.unwrap_err();
    proxy.until_closed("unknown_server_name").await;
    let mut client = Client::new(&proxy, Http::Two).await;
    let refused = client.send(request(Method::GET, "//x")).await.unwrap();
    assert_eq!(refused.status(), 400);
    let watch = client.send(request(Method::GET, "/api/v1/configmaps?watch=1"));
    let events = upstream.call().await.watch();
    let mut seen = watch.await.unwrap();
    proxy.change_policy(&moved_policy("green")).await;
    chunk(&mut seen).await.unwrap().unwrap();
    events.given_up().await;
    let judged = everything_policy("namespaces: {names: [ours]}, clusterScoped: Exclude");
    proxy.change_policy(&judged).await;
    let list = client.send(request(Method::GET, "/api/v1/configmaps"));
    let item = r#"{"metadata":{"namespace":"ours"}}"#;
    upstream.call().await.json(200, &format!("{{\"items\":[{item}]}}"));
    list.await.unwrap();
    let foreign = client.send(request(Method::POST, "/api/v1/namespaces/theirs/configmaps"));
    upstream.call().await.json(201, "{}");
    assert_eq!(foreign.await.unwrap().status(), 201);
    let half =
        "hash: {of: uid, ranges: [{from: \"0x0000000000000000\", to: \"0x8000000000000000\"}]}";
    proxy.change_policy(&everything_policy(half)).await;
    let delete = client.send(request(Method::DELETE, "/api/v1/namespaces/ns/configmaps"));
    let served = r#"{"name":"configmaps","namespaced":true,"verbs":["deletecollection"]}"#;
    upstream.call().await.json(200, &format!("{{\"resources\":[{served}]}}"));
    upstream.call().await.json(200, "{\"items\":[]}");
    assert_eq!(delete.await.unwrap().status(), 200);

    let (_, text) = proxy.admin_page("/metrics").await;
    let mut table = String::new();
    for line in text.lines().filter(|line| line.starts_with("# ")) {
        let _ = writeln!(table, "{}", line.trim_start_matches("# "));
    }
    golden::check("metrics.txt", &table);
}
