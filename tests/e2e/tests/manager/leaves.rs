//! Leaves: for the proxy of an injected pod, and for no one else.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use ctrlmesh::net::tls;
use ctrlmesh_e2e::{Manager, Response};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    client::WebPkiServerVerifier,
    client::danger::ServerCertVerifier,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use serde_json::Value;

use crate::golden;
use crate::manager::scene::{AUDIENCE, Bed, bundle, certificate, config, create, has, pod};

fn request(key: &KeyPair) -> Result<Vec<u8>> {
    let names = vec!["evil.example".to_owned()];
    Ok(CertificateParams::new(names)?.serialize_request(key)?.der().to_vec())
}

struct Scene {
    bed: Bed,
    cas: String,
    pod: Value,
}

impl Scene {
    fn new(bed: Bed) -> Result<Self> {
        let (api, namespace) = (bed.api(), bed.place().namespace);
        create(api, &config(namespace), &[])?;
        let cas = bundle(api, namespace)?["manager.crt"].as_str().context("CAs")?.to_owned();
        let pod = create(api, &pod(namespace, "one"), &[])?;
        Ok(Self { bed, cas, pod })
    }

    fn ask(&self, token: &str, request: &[u8]) -> Result<Response> {
        self.bed.manager().ask_for_leaf(&self.cas, token, request)
    }
}

#[test]
fn i12_a_proxy_gets_a_leaf_that_clients_of_the_bundle_accept() -> Result<()> {
    // It counts the leaves of its manager.
    let scene = Scene::new(Bed::with_own_cluster()?)?;
    let (at, manager) = (scene.bed.place(), scene.bed.manager());
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let token = at.token(Some(AUDIENCE), Some(&scene.pod))?;
    let answer = scene.ask(&token, &request(&key)?)?;
    ensure!(answer.status == 200, "{}: {}", answer.status, answer.text);
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(answer.text.as_bytes()).collect::<Result<_, _>>()?;
    ensure!(chain.len() == 2, "leaf and issuer");
    let bundle = bundle(at.api, at.namespace)?;
    let roots = tls::roots_from_pem(bundle["ca.crt"].as_str().context("text")?.as_bytes());
    let roots = Arc::new(roots.context("roots")?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, tls::provider()).build()?;
    for name in ["10.96.0.1", "kubernetes.default.svc", "localhost", "127.0.0.1"] {
        let name = ServerName::try_from(name)?;
        verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now())?;
    }
    let evil = ServerName::try_from("evil.example")?;
    let foreign = verifier.verify_server_cert(&chain[0], &chain[1..], &evil, &[], UnixTime::now());
    ensure!(foreign.is_err(), "a name of the request");
    ensure!(manager.metric(r#"ctrlmesh_manager_leaves_total{result="signed"}"#)? == 1.0);
    let log = manager.log()?;
    ensure!(!log.contains(&token), "a token in the log");
    // Each metric has had a value already.
    let (_, metrics) = manager.admin_page("/metrics")?;
    let table = metrics.lines().filter_map(|line| line.strip_prefix("# "));
    golden::check_file(
        "tests/golden/metrics-manager.txt",
        &table.map(|line| format!("{line}\n")).collect::<String>(),
    );
    Ok(())
}

#[test]
fn bad_i12_nobody_else_gets_a_leaf_and_the_answer_says_why() -> Result<()> {
    // No other test of its cluster asks for a leaf.
    let scene = Scene::new(Bed::new("no-leaf")?)?;
    let Scene { bed, pod: injected, .. } = &scene;
    let (api, at) = (bed.api(), bed.place());
    let mut plain = pod(at.namespace, "plain");
    plain["metadata"]["labels"] = Value::Null;
    let plain = create(api, &plain, &[])?;
    let gone = create(api, &pod(at.namespace, "gone"), &[])?;
    let of_gone = at.token(Some(AUDIENCE), Some(&gone))?;
    at.kubectl(&["delete", "pod", "gone", "--now"])?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let good = request(&key)?;
    let cases = [
        (at.token(None, Some(injected))?, 401, "not accepted"),
        (at.token(Some("other"), Some(injected))?, 401, "not accepted"),
        (at.token(Some(AUDIENCE), None)?, 403, "bound to no pod"),
        (at.token(Some(AUDIENCE), Some(&plain))?, 403, "no-leaf/plain is not injected"),
        ("x".to_owned(), 401, "not accepted"),
        (api.admin_token().to_owned(), 401, "not"),
    ];
    for (token, code, said) in cases {
        let answer = scene.ask(&token, &good)?;
        ensure!(answer.status == code, "{said}: {} {}", answer.status, answer.text);
        has(&answer.text, said)?;
        ensure!(!answer.text.contains(&token) || token == "x", "{}", answer.text);
    }
    // For some seconds the API server may still take the token of a pod that is gone.
    let answer = scene.ask(&of_gone, &good)?;
    let said = if answer.status == 401 { "invalidated" } else { "no-leaf/gone is gone" };
    ensure!([401, 403].contains(&answer.status), "{} {}", answer.status, answer.text);
    has(&answer.text, said)?;
    let token = at.token(Some(AUDIENCE), Some(injected))?;
    let mut unproven = good.clone();
    let last = unproven.last_mut().context("bytes")?;
    *last ^= 1;
    let large = vec![0; 1 << 20];
    for (request, code, said) in [
        (unproven, 400, "not signed by its own key"),
        (b"no request".to_vec(), 400, "PKCS#10"),
        (Vec::new(), 400, "PKCS#10"),
        (large, 413, "16384 are taken"),
    ] {
        let answer = scene.ask(&token, &request)?;
        ensure!(answer.status == code, "{said}: {} {}", answer.status, answer.text);
        has(&answer.text, said)?;
    }
    ensure!(bed.manager().metric(r#"ctrlmesh_manager_leaves_total{result="signed"}"#)? == 0.0);
    // It goes on.
    ensure!(scene.ask(&token, &good)?.status == 200);
    Ok(())
}

#[test]
fn i12_keys_of_the_authorities_are_in_the_secret_and_nowhere_else() -> Result<()> {
    let scene = Scene::new(Bed::new("keys")?)?;
    let (api, manager) = (scene.bed.api(), scene.bed.manager());
    let keys = ["serving.key", "root.key", "issuer.key"];
    let keys: Vec<String> = keys.iter().map(|key| certificate(api, key)).collect::<Result<_>>()?;
    let mut seen = vec![manager.log()?, manager.admin_page("/metrics")?.1];
    for plural in ["configmaps", "pods", "events", "secrets"] {
        let all = api.client().get(&format!("/api/v1/{plural}"))?;
        let mut all = all.json()?;
        if let Some(items) = all["items"].as_array_mut() {
            items.retain(|item| item["metadata"]["namespace"] != Manager::NAMESPACE);
        }
        seen.push(all.to_string());
    }
    for key in keys {
        let line = key.lines().nth(1).context("a second line")?;
        ensure!(seen.iter().all(|text| !text.contains(line)), "a key was seen");
    }
    Ok(())
}
