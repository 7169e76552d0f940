//! The API server's own record of who asked it.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use ctrlmesh_e2e::{AuditEntry, Installed};

/// The addresses of pods.
const PODS: &str = "10.244.0.";
const MANAGER: &str = "system:serviceaccount:ctrlmesh-system:ctrlmesh-manager";
const OPERATOR: &str = "system:serviceaccount:demo:demo-operator";

/// Whether a request came from a pod or names our program.
fn is_ours(entry: &AuditEntry) -> bool {
    let agent = entry.user_agent.as_deref().unwrap_or_default();
    let address = entry.source_ips.first().map(String::as_str).unwrap_or_default();
    address.starts_with(PODS) || agent.starts_with("ctrlmesh/")
}

/// The requests of ours, with how an error names each.
fn requests(scene: &Installed) -> Result<Vec<(AuditEntry, String)>> {
    let all = scene.node().api().audit().entries()?.into_iter().filter(is_ours);
    let told = |entry: AuditEntry| {
        let AuditEntry { verb, request_uri, user, user_agent, .. } = &entry;
        let told = format!("{verb} {request_uri} by {} {user_agent:?}", user.username);
        (entry, told)
    };
    Ok(all.map(told).collect())
}

/// Checks that all requests are the manager's or the operator's own, but for those that were refused
/// as no one's: an uninstall takes the account away before replicas have ended.
pub(crate) fn by_themselves(scene: &Installed) -> Result<()> {
    let mut users = BTreeSet::new();
    for (entry, told) in requests(scene)? {
        let user = entry.user.username;
        if user.is_empty() {
            continue;
        }
        ensure!([MANAGER, OPERATOR].contains(&&*user), "someone else's request: {told}");
        users.insert(user);
    }
    ensure!(users.len() == 2, "only {users:?} asked");
    Ok(())
}

/// Checks that no right and no identity is missing.
pub(crate) fn none_refused(scene: &Installed) -> Result<()> {
    for (entry, told) in requests(scene)? {
        let status = entry.response_status.map(|status| status.code);
        ensure!(!matches!(status, Some(401 | 403)), "refused: {told}");
    }
    Ok(())
}
