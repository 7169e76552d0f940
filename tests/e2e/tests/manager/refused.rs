//! The other rules of a namespace that an injected pod meets: quotas, ranges, secrets of an account.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, until};
use serde_json::{Value, json};

use crate::manager::scene::{OPERATORS, SOON, at, cluster, create, is_injected, manager, pod};

/// A pod whose own container stays within every rule.
fn modest(name: &str) -> Value {
    let mut pod = pod(OPERATORS, name);
    let resources = json!({ "cpu": "100m", "memory": "64Mi" });
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": resources });
    pod
}

/// Waits until a pod is created: the API server learns of rules by watches of its own.
fn is_created(api: &ApiServer, pod: &Value) -> Result<()> {
    let mut last = None;
    let created = until("a pod is created", SOON, || match create(api, pod, &[]) {
        Ok(stored) => Ok(Some(is_injected(&stored))),
        Err(error) => {
            last = Some(error);
            Ok(None)
        }
    });
    let is_injected = created.with_context(|| format!("{last:#?}"))?;
    ensure!(is_injected, "a pod without a proxy");
    Ok(())
}

/// Waits until a pod is refused with these words.
fn is_refused(api: &ApiServer, pod: &Value, words: &str) -> Result<()> {
    until("a pod is refused", SOON, || {
        let refused = create(api, pod, &["--dry-run=server"]).err();
        Ok(refused.filter(|error| format!("{error:#}").contains(words)).map(drop))
    })
    .with_context(|| words.to_owned())
}

fn range(limit: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": { "name": "range", "namespace": OPERATORS },
        "spec": { "limits": [limit] },
    })
}

/// A quota that counts. The controller that would count is not there.
fn make_quota(api: &ApiServer) -> Result<()> {
    api.kubectl(&["create", "quota", "cpus", "--hard=limits.cpu=10", "-n", OPERATORS])?;
    let status = json!({
        "status": { "hard": { "limits.cpu": "10" }, "used": { "limits.cpu": "0" } },
    });
    let path = at(OPERATORS, "resourcequotas", "cpus/status");
    let kind = "application/merge-patch+json";
    api.client().request("PATCH", &path, kind, status.to_string().into_bytes())?.json().map(drop)
}

#[test]
fn bad_i12_a_quota_or_a_range_names_our_containers_and_gives_way_to_its_remedy() -> Result<()> {
    let api = cluster()?;
    let _manager = manager(&api, &[])?;
    make_quota(&api)?;
    is_refused(&api, &modest("a"), "must specify limits.cpu for: ctrlmesh-init,ctrlmesh-proxy")?;
    create(&api, &range(&json!({ "type": "Container", "default": { "cpu": "500m" } })), &[])?;
    is_created(&api, &modest("a"))?;
    api.kubectl(&["delete", "limitrange/range", "quota/cpus", "-n", OPERATORS])?;

    create(&api, &range(&json!({ "type": "Container", "max": { "memory": "128Mi" } })), &[])?;
    let words = "maximum memory usage per Container is 128Mi, but limit is 256Mi";
    is_refused(&api, &modest("b"), words)?;
    let mut smaller = modest("b");
    let resources = json!({ "limits": { "memory": "96Mi" } }).to_string();
    smaller["metadata"]["annotations"] =
        json!({ "ctrlmesh.kusionstack.io/proxy-resource": resources });
    is_created(&api, &smaller)
}

/// An account with `kubernetes.io/enforce-mountable-secrets` lets its pods name its own Secrets
/// alone. Injection adds none but those with which images are pulled.
#[test]
fn bad_i12_an_account_that_enforces_its_secrets_has_pull_secrets_or_a_reason() -> Result<()> {
    let api = cluster()?;
    let _manager = manager(&api, &["--pull-secrets=regcred"])?;
    let account = |more: Value| {
        let enforces = json!({ "kubernetes.io/enforce-mountable-secrets": "true" });
        let mut account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": { "name": "strict", "namespace": OPERATORS, "annotations": enforces },
        });
        account["imagePullSecrets"] = more;
        api.apply(&account.to_string())
    };
    let mut pod = modest("c");
    pod["spec"]["serviceAccountName"] = json!("strict");
    account(json!([]))?;
    is_refused(&api, &pod, "imagePullSecrets[0].name=\"regcred\"")?;
    account(json!([{ "name": "regcred" }]))?;
    is_created(&api, &pod)?;
    // Nothing else of ours is a Secret.
    let stored = api.client().get(&at(OPERATORS, "pods", "c"))?.json()?;
    let volumes = stored["spec"]["volumes"].as_array().context("volumes")?;
    ensure!(volumes.iter().all(|volume| volume["secret"].is_null()), "{volumes:#?}");
    Ok(())
}
