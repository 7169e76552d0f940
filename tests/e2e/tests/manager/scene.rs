//! A cluster with its namespaces and the webhooks, and what a test does in it.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use ctrlmesh::cli::yaml;
use ctrlmesh_e2e::{ApiServer, Manager, until};
use serde_json::{Value, json};

/// The audience of the tokens that proxies enrol with.
pub(crate) const AUDIENCE: &str = "ctrlmesh.kusionstack.io";
/// The time in which what the leader keeps is right again.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// A namespace with a ShardingConfig.
pub(crate) const OPERATORS: &str = "operators";
/// The Secret with the authorities.
pub(crate) const SECRET: &str = "ctrlmesh-trust";
/// The label of a config that is not compared with others, and needs no manager.
pub(crate) const IGNORE: &str = "ctrlmesh.kusionstack.io/ignore-validate";
/// The name of the bundle.
pub(crate) const BUNDLE: &str = "ctrlmesh-ca-bundle";

/// Starts an API server that has what a chart installs, but for the manager.
pub(crate) fn cluster() -> Result<ApiServer> {
    let api = ApiServer::start()?;
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/base");
    for file in ["namespace.yaml", "ctrlmesh.yaml"] {
        api.apply(&fs::read_to_string(base.join(file))?)?;
    }
    api.kubectl(&["create", "namespace", OPERATORS])?;
    for namespace in [OPERATORS, "default"] {
        api.kubectl(&["create", "serviceaccount", "default", "-n", namespace])?;
    }
    Ok(api)
}

/// A replica that is ready, and whose webhooks the API server calls.
pub(crate) fn manager(api: &ApiServer, flags: &[&str]) -> Result<Manager> {
    let manager = Manager::start(api, "manager-0", flags)?;
    manager.receive_reviews(api)?;
    manager.wait_ready()?;
    // The API server learns of a configuration by a watch of its own, which nothing shows.
    until("a pod is injected", SOON, || {
        let stored = create(api, &pod("default", "probe"), &["--dry-run=server"]);
        Ok(stored.is_ok_and(|stored| is_injected(&stored)).then_some(()))
    })
    .with_context(|| manager.log().unwrap_or_default())?;
    await_review(api).with_context(|| manager.log().unwrap_or_default())?;
    Ok(manager)
}

/// Waits until the API server has configs reviewed by the replica that was named to it last, and
/// trusts it.
pub(crate) fn await_review(api: &ApiServer) -> Result<()> {
    until("a config is reviewed", SOON, || {
        let stored = create(api, &config("default"), &["--dry-run=server"]);
        Ok(stored.is_ok().then_some(()))
    })
}

/// Whether a pod has a proxy.
pub(crate) fn is_injected(pod: &Value) -> bool {
    pod["spec"]["initContainers"]
        .as_array()
        .is_some_and(|all| all.iter().any(|container| container["name"] == "ctrlmesh-proxy"))
}

/// A ShardingConfig.
pub(crate) fn config(namespace: &str) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "blue", "namespace": namespace },
        "spec": { "selector": { "matchLabels": { "shard": "blue" } } },
    })
}

/// The config, with the label by which it is not compared with others.
pub(crate) fn let_in(mut config: Value) -> Value {
    config["metadata"]["labels"] = json!({ IGNORE: "" });
    config
}

/// A pod that asks for injection.
pub(crate) fn pod(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": { "ctrlmesh.kusionstack.io/enable-proxy": "true" },
        },
        "spec": { "containers": [{ "name": "app", "image": "localhost/app:1" }] },
    })
}

/// Creates an object; returns what is stored.
pub(crate) fn create(api: &ApiServer, object: &Value, flags: &[&str]) -> Result<Value> {
    let args = [&["create", "-o", "json", "-f", "-"], flags].concat();
    let stored = api.kubectl_client().run_with_input(&args, &yaml::print(object))?;
    Ok(serde_json::from_str(&stored)?)
}

/// An object. `None` if there is none.
pub(crate) fn get(api: &ApiServer, path: &str) -> Result<Option<Value>> {
    let response = api.client().get(path)?;
    match response.status {
        404 => Ok(None),
        _ => response.json().map(Some),
    }
}

/// The path of a namespaced object of the core group.
pub(crate) fn at(namespace: &str, plural: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{plural}/{name}")
}

/// The data of the Secret with the authorities.
pub(crate) fn authorities(api: &ApiServer) -> Result<Value> {
    let secret = get(api, &at(Manager::NAMESPACE, "secrets", SECRET))?;
    Ok(secret.context("there is no Secret")?["data"].take())
}

/// A certificate of the Secret, as PEM.
pub(crate) fn certificate(api: &ApiServer, key: &str) -> Result<String> {
    let data = authorities(api)?;
    let text = data[key].as_str().with_context(|| format!("no {key}"))?;
    Ok(String::from_utf8(STANDARD.decode(text)?)?)
}

/// Waits for the bundle of a namespace, and returns its data.
pub(crate) fn bundle(api: &ApiServer, namespace: &str) -> Result<Value> {
    until("a bundle", SOON, || {
        Ok(get(api, &at(namespace, "configmaps", BUNDLE))?.map(|mut map| map["data"].take()))
    })
}

/// Checks that a text has a part.
pub(crate) fn has(text: &str, part: &str) -> Result<()> {
    ensure!(text.contains(part), "no {part:?} in {text}");
    Ok(())
}

/// A token of the account `default`, bound to an object.
pub(crate) fn token(
    api: &ApiServer,
    audience: Option<&str>,
    bound: Option<&Value>,
) -> Result<String> {
    let path = at(OPERATORS, "serviceaccounts", "default/token");
    let bound = bound.map(|pod| {
        let meta = &pod["metadata"];
        json!({ "kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"] })
    });
    let spec = json!({ "audiences": audience.map(|a| vec![a]), "boundObjectRef": bound });
    let answer = api.client().post(&path, &json!({ "spec": spec }))?.json()?;
    Ok(answer["status"]["token"].as_str().context("a token")?.to_owned())
}
