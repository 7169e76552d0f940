//! The rights of the manager's roles: each is used, and none is missing.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, AuditEntry, Manager, until};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

use crate::manager::{
    deployments::give_and_evict,
    kridge::come_in,
    leases::{is_deleted, orphan},
    roots::come_and_go,
    scene::{
        AUDIENCE, OPERATORS, SECRET, SOON, at, authorities, bundle, certificate, cluster, config,
        create, get, has, manager, pod, token,
    },
};

const ACCOUNT: &str = "system:serviceaccount:ctrlmesh-system:ctrlmesh-manager";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ROLES: [&str; 3] = [
    "clusterroles/ctrlmesh-manager",
    "namespaces/ctrlmesh-system/roles/ctrlmesh-manager",
    "namespaces/default/roles/ctrlmesh-manager-api-server",
];

/// A verb on a resource, as `get pods`.
type Right = String;

fn words(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The rights that the roles give.
fn given(api: &ApiServer) -> Result<BTreeSet<Right>> {
    let mut given = BTreeSet::new();
    for role in ROLES {
        let role = get(api, &format!("{RBAC}/{role}"))?.context(role)?;
        for rule in role["rules"].as_array().context("rules")? {
            for resource in words(&rule["resources"]) {
                let right = |verb: &str| format!("{verb} {resource}");
                given.extend(words(&rule["verbs"]).into_iter().map(right));
            }
        }
    }
    ensure!(given.contains("create tokenreviews"), "{given:?}");
    Ok(given)
}

/// The rights that a request needs.
fn needed(entry: &AuditEntry) -> Vec<Right> {
    let Some(object) = &entry.object_ref else { return Vec::new() };
    let resource = match &*object.subresource {
        "" => object.resource.clone(),
        subresource => format!("{}/{subresource}", object.resource),
    };
    let right = |verb: &str| format!("{verb} {resource}");
    let mut needed = vec![right(&entry.verb)];
    let is_apply = entry.request_uri.contains("force=true");
    if is_apply && entry.response_status.as_ref().is_some_and(|status| status.code == 201) {
        // RBAC asks for it where apply finds nothing.
        needed.push(right("create"));
    }
    if is_apply && object.resource.ends_with("rolebindings") {
        // The manager has not itself what it gives.
        needed.push("bind clusterroles".to_owned());
    }
    needed
}

/// Has the manager do each of its duties once.
fn work(api: &ApiServer) -> Result<()> {
    let mut manager = manager(api, &[])?;
    let orphan = orphan(api)?;
    let mut config = config(OPERATORS);
    let selector = json!({ "matchLabels": { "tier": "gold" } });
    config["spec"]["limits"] =
        json!([{ "namespaces": { "selector": selector }, "clusterScoped": "Exclude" }]);
    config["spec"]["webhook"] = json!({ "certDir": "/certs", "port": 9443, "certSecret": "kept" });
    create(api, &config, &[])?;
    let cas = bundle(api, OPERATORS)?["manager.crt"].as_str().context("CAs")?.to_owned();
    let pod = create(api, &pod(OPERATORS, "one"), &[])?;
    until("rights for the pod", SOON, || {
        get(api, &format!("{RBAC}/namespaces/{OPERATORS}/rolebindings/ctrlmesh-proxy"))
    })?;
    until("rights to the labels of namespaces", SOON, || {
        get(api, &format!("{RBAC}/clusterrolebindings/ctrlmesh-proxy-namespaces"))
    })?;
    until("an Event of the pod, which no config selects", SOON, || {
        let events = get(api, &format!("/api/v1/namespaces/{OPERATORS}/events"))?;
        Ok(events.filter(|list| list["items"].as_array().is_some_and(|all| !all.is_empty())))
    })?;
    let ours = "ctrlmesh.kusionstack.io/enable-proxy";
    let mut env = self::pod(OPERATORS, "env");
    env["metadata"]["labels"] = json!({ (ours): "true", "shard": "blue" });
    env["metadata"]["annotations"] = json!({ "ctrlmesh.kusionstack.io/enable-iptables": "false" });
    create(api, &env, &[])?;
    until("the condition of a config whose pod is in env mode", SOON, || {
        let configs = get(api, "/apis/ctrlmesh.kusionstack.io/v1alpha1/shardingconfigs")?;
        let all = configs.context("a list")?;
        let conditions = all["items"][0]["status"]["conditions"].as_array();
        let is_said = |one: &Value| one["type"] == "WebhookRedirected" && one["status"] == "False";
        Ok(conditions.is_some_and(|all| all.iter().any(is_said)).then_some(()))
    })?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let request = CertificateParams::new(Vec::new())?.serialize_request(&key)?;
    let token = token(api, Some(AUDIENCE), Some(&pod))?;
    let answer = manager.ask_for_leaf(&cas, &token, request.der())?;
    ensure!(answer.status == 200, "{}: {}", answer.status, answer.text);
    api.kubectl(&["delete", "secret", SECRET, "-n", Manager::NAMESPACE])?;
    until("the Secret is back", SOON, || get(api, &at(Manager::NAMESPACE, "secrets", SECRET)))?;
    manager.stop()?;
    // A name more is a reason for another root.
    manager.start_again_with("--trust-names=api.example.com")?;
    until("the next root is stored", SOON, || {
        Ok((!authorities(api)?["root-next.crt"].is_null()).then_some(()))
    })?;
    let next = certificate(api, "root-next.crt")?;
    until("the next root is published", SOON, || {
        let data = bundle(api, OPERATORS)?;
        Ok(data["ca.crt"].as_str().is_some_and(|text| text.contains(&next)).then_some(()))
    })?;
    is_deleted(api, &orphan)?;
    come_and_go(api)?;
    give_and_evict(api)?;
    come_in(api)?;
    manager.stop()
}

#[test]
fn i12_each_right_is_used_and_none_is_missing() -> Result<()> {
    let api = cluster()?;
    work(&api)?;
    let entries = api.audit().entries()?;
    let ours = entries.iter().filter(|entry| entry.user.username == ACCOUNT);
    let mut used = BTreeSet::new();
    for entry in ours {
        let status = entry.response_status.as_ref().map(|status| status.code);
        ensure!(status != Some(403), "{} {} is refused", entry.verb, entry.request_uri);
        used.extend(needed(entry));
    }
    let given = given(&api)?;
    let unused: Vec<_> = given.difference(&used).collect();
    ensure!(unused.is_empty(), "rights that no one uses: {unused:?}");
    // What it needs without a rule is what each account has.
    let more: Vec<_> = used.difference(&given).collect();
    ensure!(more.is_empty(), "rights of no rule: {more:?}");
    // All that names the program is of that account.
    for entry in &entries {
        let is_ours = entry.user_agent.as_ref().is_some_and(|agent| agent.starts_with("ctrlmesh/"));
        if is_ours {
            ensure!(entry.user.username == ACCOUNT, "{} by {:?}", entry.request_uri, entry.user);
        }
    }
    has(&format!("{used:?}"), "update leases")
}
