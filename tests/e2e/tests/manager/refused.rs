//! The other rules of a namespace that an injected pod meets: quotas, ranges, secrets of an account.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, until};
use serde_json::{Value, json};

use crate::manager::scene::{Bed, Place, SOON, create, is_injected, pod};

/// A pod whose own container stays within every rule.
fn modest(at: Place<'_>, name: &str) -> Value {
    let mut pod = pod(at.namespace, name);
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

fn range(at: Place<'_>, limit: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": { "name": "range", "namespace": at.namespace },
        "spec": { "limits": [limit] },
    })
}

/// A quota that counts. The controller that would count is not there.
fn make_quota(at: Place<'_>) -> Result<()> {
    at.kubectl(&["create", "quota", "cpus", "--hard=limits.cpu=10"])?;
    let status = json!({
        "status": { "hard": { "limits.cpu": "10" }, "used": { "limits.cpu": "0" } },
    });
    let path = at.at("resourcequotas", "cpus/status");
    let kind = "application/merge-patch+json";
    at.api.client().request("PATCH", &path, kind, status.to_string().into_bytes())?.json().map(drop)
}

#[test]
fn bad_i12_a_quota_or_a_range_names_our_containers_and_gives_way_to_its_remedy() -> Result<()> {
    let bed = Bed::new("quota")?;
    let (api, at) = (bed.api(), bed.place());
    make_quota(at)?;
    is_refused(api, &modest(at, "a"), "must specify limits.cpu for: ctrlmesh-init,ctrlmesh-proxy")?;
    create(api, &range(at, &json!({ "type": "Container", "default": { "cpu": "500m" } })), &[])?;
    is_created(api, &modest(at, "a"))?;
    at.kubectl(&["delete", "limitrange/range", "quota/cpus"])?;

    create(api, &range(at, &json!({ "type": "Container", "max": { "memory": "128Mi" } })), &[])?;
    let words = "maximum memory usage per Container is 128Mi, but limit is 256Mi";
    is_refused(api, &modest(at, "b"), words)?;
    let mut smaller = modest(at, "b");
    let resources = json!({ "limits": { "memory": "96Mi" } }).to_string();
    smaller["metadata"]["annotations"] =
        json!({ "ctrlmesh.kusionstack.io/proxy-resource": resources });
    is_created(api, &smaller)
}

/// An account with `kubernetes.io/enforce-mountable-secrets` lets its pods name its own Secrets
/// alone. Injection adds none but those with which images are pulled.
#[test]
fn bad_i12_an_account_that_enforces_its_secrets_has_pull_secrets_or_a_reason() -> Result<()> {
    let bed = Bed::new("pull-secrets")?;
    let (api, at) = (bed.api(), bed.place());
    let account = |more: Value| {
        let enforces = json!({ "kubernetes.io/enforce-mountable-secrets": "true" });
        let mut account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": { "name": "strict", "namespace": at.namespace, "annotations": enforces },
        });
        account["imagePullSecrets"] = more;
        api.apply(&account.to_string())
    };
    let mut pod = modest(at, "c");
    pod["spec"]["serviceAccountName"] = json!("strict");
    account(json!([]))?;
    is_refused(api, &pod, "imagePullSecrets[0].name=\"regcred\"")?;
    account(json!([{ "name": "regcred" }]))?;
    is_created(api, &pod)?;
    // Nothing else of ours is a Secret.
    let stored = api.client().get(&at.at("pods", "c"))?.json()?;
    let volumes = stored["spec"]["volumes"].as_array().context("volumes")?;
    ensure!(volumes.iter().all(|volume| volume["secret"].is_null()), "{volumes:#?}");
    Ok(())
}
