//! The namespaces of the mesh, one after the other.

use k8s_openapi::jiff::Timestamp;

use super::{namespace, pods::Pods, reviews, words::named};
use crate::doctor::{
    facts::ClusterFacts,
    finding::{Check, Findings},
};

/// Judges the namespaces; of their pods the wanted one alone if one is wanted.
pub(super) fn judge(
    cluster: &ClusterFacts,
    wanted: Option<&str>,
    now: Timestamp,
    found: &mut Findings,
) {
    let (check, manager) = (Check::Namespaces, &cluster.manager);
    let Some(all) = found.seen(check, "mesh", &cluster.namespaces) else { return };
    let names: Vec<_> = all.iter().map(|facts| facts.name.as_str()).collect();
    if all.is_empty() {
        found.warning(
            check,
            "mesh",
            "no namespace has a ShardingConfig or a pod with the label",
            namespace::JOIN,
        );
    } else {
        found.ok(check, "mesh", format!("looked at {}", named("namespace", &names)));
    }
    for facts in all {
        let subject = format!("namespace {}", facts.name);
        let object = found.seen(check, &subject, &facts.namespace);
        if let Some(None) = object {
            let fix = "see whether the name is right: kubectl get namespaces";
            found.error(check, &subject, "is not there", fix);
            continue;
        }
        let pods = Pods::new(facts, wanted);
        namespace::judge(facts, manager, &pods, found);
        pods.judge(facts, manager, found);
        reviews::judge(facts, cluster, &pods, found);
        namespace::refused(facts, now, found);
    }
}
