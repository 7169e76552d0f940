//! What a pod's controller has asked of the API server, for who writes limits.

use std::fmt::Write as _;

use crate::cluster::{Cluster, ClusterError, ObjectName};
use ctrlmesh_api::ObservedRequests;

/// The explanation, a line for each resource.
pub(super) async fn explain(cluster: &Cluster, pod: &ObjectName) -> Result<String, ClusterError> {
    let namespace = match &pod.namespace {
        Some(namespace) => namespace.clone(),
        None => cluster.default_namespace().await?,
    };
    Ok(text(&cluster.observed(&namespace, &pod.name).await?))
}

fn text(observed: &ObservedRequests) -> String {
    let name = |group: &str, resource: &str| match group {
        "" => resource.to_owned(),
        group => format!("{resource}.{group}"),
    };
    let mut rows = vec![["RESOURCE".to_owned(), "LIMITED".to_owned(), "VERBS".to_owned()]];
    for one in &observed.resources {
        let is_limited = if one.is_limited { "yes" } else { "no" };
        rows.push([name(&one.group, &one.resource), is_limited.into(), one.verbs.join(", ")]);
    }
    let width = rows.iter().map(|[name, ..]| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for [name, is_limited, verbs] in rows {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{name:<width$}  {is_limited:<7}  {verbs}");
    }
    let elections = &observed.elections;
    for (what, locks) in [
        ("holds", &elections.held),
        ("may not write", &elections.forbidden),
        ("renews, and its ShardingConfig does not name", &elections.unnamed),
    ] {
        if !locks.is_empty() {
            let _ = writeln!(text, "locks that it {what}: {}", locks.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ctrlmesh_api::{ObservedResource, lease::Elections};

    #[test]
    fn each_resource_has_a_line_and_the_locks_follow() {
        let resource = |group: &str, name: &str, verbs: &[&str], is_limited| ObservedResource {
            group: group.to_owned(),
            resource: name.to_owned(),
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            is_limited,
        };
        let observed = ObservedRequests {
            resources: vec![
                resource("", "secrets", &["create", "list", "watch"], false),
                resource("example.com", "widgets", &["list"], true),
            ],
            elections: Elections {
                held: vec!["ops/op".to_owned()],
                unnamed: vec!["leases kube-system/op".to_owned()],
                ..Elections::default()
            },
        };
        assert_eq!(
            text(&observed),
            "RESOURCE             LIMITED  VERBS\n\
             secrets              no       create, list, watch\n\
             widgets.example.com  yes      list\n\
             locks that it holds: ops/op\n\
             locks that it renews, and its ShardingConfig does not name: leases kube-system/op\n"
        );
    }
}
