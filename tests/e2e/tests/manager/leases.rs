//! The Leases of pods: who may write one, and who deletes it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Rule, until};
use serde_json::{Value, json};

use crate::{
    chart::rendered,
    manager::scene::{Bed, OPERATORS, Place, SOON, create, get, has, pod},
};

const MERGE: &str = "application/merge-patch+json";
const RING: &str = "ctrlmesh.kusionstack.io/ring";
/// The time in which the Lease of a pod that is gone is deleted.
pub(crate) const GONE: Duration = Duration::from_secs(200);

/// The path of the Leases.
fn leases(at: Place<'_>) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", at.namespace)
}

/// A Lease of that name.
fn lease_in(namespace: &str, name: &str, ring: Option<&str>) -> Value {
    let labels = ring.map(|ring| json!({ (RING): ring }));
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "spec": { "holderIdentity": "one" },
    })
}

fn of(pod: &Value) -> Result<String> {
    Ok(format!("ctrlmesh-{}", pod["metadata"]["uid"].as_str().context("a uid")?))
}

/// Waits until the account of pods may write Leases.
fn has_rights(at: Place<'_>, token: &str) -> Result<()> {
    until("rights to Leases", SOON, || {
        Ok((at.api.client().with_token(token).get(&leases(at))?.status == 200).then_some(()))
    })
}

#[test]
fn i14_a_pod_writes_and_deletes_its_own_lease_alone() -> Result<()> {
    let bed = Bed::new("own-lease")?;
    let (api, at) = (bed.api(), bed.place());
    let leases = leases(at);
    let lease = |name: &str, ring: Option<&str>| lease_in(at.namespace, name, ring);
    let one = create(api, &pod(at.namespace, "one"), &[])?;
    let two = create(api, &pod(at.namespace, "two"), &[])?;
    let unbound = at.token(None, None)?;
    has_rights(at, &unbound)?;
    let token = at.token(None, Some(&one))?;
    let client = api.client().with_token(&token);
    let (own, other) = (of(&one)?, of(&two)?);
    let refused = |client: &ctrlmesh_e2e::Client, method: &str, name: &str, body: &Value| {
        let path = match method {
            "POST" => leases.clone(),
            _ => format!("{leases}/{name}"),
        };
        let kind = match method {
            "PATCH" => MERGE,
            _ => "application/json",
        };
        let answer = client.request(method, &path, kind, body.to_string().into_bytes())?;
        ensure!(answer.status == 403, "{method} {name}: {} {}", answer.status, answer.text);
        has(&answer.text, "only that pod writes and deletes it")
    };
    // A policy is in force some time after it is stored.
    until("the policy is in force", SOON, || {
        let answer = client.post(&leases, &lease(&other, Some("op")))?;
        if answer.status == 201 {
            at.kubectl(&["delete", "lease", &other])?;
        }
        Ok((answer.status == 403).then_some(()))
    })?;

    client.post(&leases, &lease(&own, Some("op")))?.json()?;
    api.client().post(&leases, &lease(&other, Some("op")))?.json()?;
    let patch = json!({ "metadata": { "labels": { "more": "words" } } });
    for (method, body) in [("PATCH", &patch), ("DELETE", &json!({}))] {
        refused(&client, method, &other, body)?;
    }
    // Nor by another name, without the label, or with a token that no pod has.
    refused(&client, "POST", "op", &lease("op", Some("op")))?;
    let invented = "ctrlmesh-3f9c0d1e-0000-4000-8000-000000000000";
    refused(&client, "POST", invented, &lease(invented, None))?;
    for (method, body) in [("PATCH", &patch), ("DELETE", &json!({}))] {
        refused(&api.client().with_token(&unbound), method, &own, body)?;
    }
    // Other Leases are no one's business.
    client.post(&leases, &lease("lock", None))?.json()?;
    client.post(&leases, &lease("ctrlmesh-lock", None))?.json()?;
    client.delete(&format!("{leases}/lock"))?.json()?;
    // A Lease does not become one of a pod's, nor the other way round.
    let ring = json!({ "metadata": { "labels": { (RING): "op" } } });
    refused(&client, "PATCH", "ctrlmesh-lock", &ring)?;

    let path = format!("{leases}/{own}");
    client.request("PATCH", &path, MERGE, patch.to_string().into_bytes())?.json()?;
    client.delete(&path)?.json()?;
    // People are bound by their rights alone.
    at.kubectl(&["delete", "lease", &other])?;

    // Renewals wait next to leader election, not behind the requests of the app.
    let metrics = api.client().get("/metrics")?.text;
    let dispatched = metrics.lines().any(|line| {
        line.starts_with("apiserver_flowcontrol_dispatched_requests_total{")
            && line.contains("flow_schema=\"ctrlmesh-leases\"")
            && line.contains("priority_level=\"leader-election\"")
    });
    ensure!(dispatched, "no request went by the FlowSchema");
    Ok(())
}

/// With `leases.strict` of the chart. The account of pods has a Role of its own, and that which `doctor`
/// prints.
#[test]
fn an_account_of_the_mesh_writes_the_locks_alone_that_a_role_names() -> Result<()> {
    let bed = Bed::with_own_cluster()?;
    let (api, at) = (bed.api(), bed.place());
    let parts = ["--show-only=templates/leases.yaml", "--show-only=templates/rbac.yaml"];
    let strict = rendered("least", &[&["--set", "leases.strict=true"][..], &parts].concat())?;
    api.apply(&strict)?;
    for (role, verb, name) in
        [("own", "update", "own"), ("ctrlmesh-locks", "get,update,patch", "op---blue")]
    {
        let resource = "--resource=leases.coordination.k8s.io";
        let [verb, name] = [format!("--verb={verb}"), format!("--resource-name={name}")];
        at.kubectl(&["create", "role", role, &verb, resource, &name])?;
        let account = format!("--serviceaccount={}:default", at.namespace);
        let role_of = format!("--role={role}");
        at.kubectl(&["create", "rolebinding", role, &role_of, &account])?;
    }
    let pod = create(api, &pod(at.namespace, "one"), &[])?;
    has_rights(at, &at.token(None, None)?)?;
    let client = api.client().with_token(&at.token(None, Some(&pod))?);
    let lease = |name: &str, ring: Option<&str>| lease_in(at.namespace, name, ring);
    let leases = leases(at);
    for name in ["own", "foreign"] {
        api.client().post(&leases, &lease(name, None))?.json()?;
    }
    let change = json!({ "spec": { "holderIdentity": "two" } }).to_string();
    let send = |client: &ctrlmesh_e2e::Client, method: &str, name: &str| {
        let path = format!("{leases}/{name}");
        match method {
            "POST" => client.post(&leases, &lease(name, None)),
            "DELETE" => client.delete(&path),
            _ => client.request("PATCH", &path, MERGE, change.clone().into_bytes()),
        }
    };
    until("the policy is in force", SOON, || {
        let answer = send(&client, "PATCH", "foreign")?;
        Ok(answer.text.contains("this account may not update the Lease").then_some(()))
    })?;
    for (method, name, code) in [
        ("POST", "op---blue", 201),
        ("PATCH", "op---blue", 200),
        ("PATCH", "own", 200),
        ("POST", "op---green", 403),
        ("DELETE", "foreign", 403),
        ("DELETE", "op---blue", 200),
    ] {
        let answer = send(&client, method, name)?;
        ensure!(answer.status == code, "{method} {name}: {} {}", answer.status, answer.text);
    }
    // The pod's own is no lock, and who is not of the mesh is bound by RBAC alone.
    client.post(&leases, &lease(&of(&pod)?, Some("op")))?.json()?;
    let group: &[&str] = &["coordination.k8s.io"];
    let rule = Rule::new(group, &["leases"], &["patch"]);
    let plain = api.service_account(at.namespace, "plain", &[rule])?;
    let answer = send(&api.client().with_token(&plain.token), "PATCH", "foreign")?;
    ensure!(answer.status == 200, "{} {}", answer.status, answer.text);
    Ok(())
}

/// A Lease of a pod that was never there.
pub(crate) fn orphan(api: &ApiServer) -> Result<String> {
    let name = "ctrlmesh-00000000-0000-4000-8000-000000000000";
    let leases = leases(Place::operators(api));
    api.client().post(&leases, &lease_in(OPERATORS, name, Some("op")))?.json()?;
    Ok(format!("{leases}/{name}"))
}

/// Waits until the manager has deleted a Lease.
pub(crate) fn is_deleted(api: &ApiServer, path: &str) -> Result<()> {
    until("the Lease of a pod that is gone is deleted", GONE, || {
        Ok(get(api, path)?.is_none().then_some(()))
    })
}
