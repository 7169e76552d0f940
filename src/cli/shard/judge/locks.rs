//! The locks by which the operator elects its leader.
//!
//! Hides how a lock is found: by the pods that hold Leases, or by the roles that name some.

use std::collections::BTreeSet;

use k8s_openapi::api::coordination::v1::Lease;

use super::judgement::{Because, Judgement};
use crate::shard::{
    before,
    facts::{Facts, Workload},
};
use ctrlmesh_api::{LockRef, lease};

pub(super) fn judge(facts: &Facts, judgement: &mut Judgement) {
    // Its shards hold other Leases already.
    if before::root_of(facts).is_some() {
        return;
    }
    let leases = judgement.seen("the Leases of all namespaces", &facts.leases);
    let pods = judgement.seen("the pods of the workload", &facts.pods);
    let (leases, pods) =
        (leases.map_or(&[][..], Vec::as_slice), pods.map_or(&[][..], Vec::as_slice));
    let names: Vec<&str> = pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
    let mut locks: Vec<_> = leases.iter().filter_map(|held| lock(held, &names, facts)).collect();
    locks.sort_by(|one, other| one.part.name.cmp(&other.part.name));
    if locks.is_empty() {
        locks = by_role(facts);
    }
    if locks.is_empty() {
        judgement.unknown(
            "no pod of it holds a Lease, and no role names one: its locks are not known",
            "if it elects a leader, name each lock in spec.controller.locks; else all of its shards \
             wait for one lock",
        );
    }
    if locks.len() > 1 {
        let names: Vec<_> = locks.iter().map(|lock| lock.part.name.clone()).collect();
        judgement.warn(
            format!(
                "it has {} locks: {}. Each shard gets its own of each",
                names.len(),
                names.join(", ")
            ),
            "take out of spec.controller.locks those that only one pod of the cluster may hold",
        );
    }
    elsewhere(facts, &locks, judgement);
    judgement.locks = locks;
}

/// A Lease that a pod of the workload holds. client-go's identity begins with the host's name, the pod's.
fn lock(held: &Lease, pods: &[&str], facts: &Facts) -> Option<Because<LockRef>> {
    let meta = &held.metadata;
    if meta.labels.as_ref().is_some_and(|labels| labels.contains_key(lease::RING)) {
        return None;
    }
    let holder = held.spec.as_ref()?.holder_identity.as_deref()?;
    let is_holder = |pod: &&&str| {
        holder
            .strip_prefix(**pod)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', '-']))
    };
    let pod = pods.iter().filter(is_holder).max_by_key(|pod| pod.len())?;
    let part = reference(meta.name.clone()?, meta.namespace.as_deref(), &facts.workload);
    Some(Because { part, reason: format!("Pod {pod} holds it.") })
}

/// The Leases that roles of the account name.
fn by_role(facts: &Facts) -> Vec<Because<LockRef>> {
    let Ok(rights) = &facts.rights else { return Vec::new() };
    let named = rights.named_leases().into_iter().filter(|named| !named.name.is_empty());
    named
        .map(|named| {
            let reason = match &named.namespace {
                Some(namespace) => format!("A Role of namespace {namespace} names it."),
                None => "A ClusterRole names it.".to_owned(),
            };
            let part = reference(named.name, named.namespace.as_deref(), &facts.workload);
            Because { part, reason }
        })
        .collect()
}

fn reference(name: String, namespace: Option<&str>, workload: &Workload) -> LockRef {
    let namespace = namespace.filter(|namespace| *namespace != workload.namespace);
    LockRef { name, namespace: namespace.map(str::to_owned) }
}

fn elsewhere(facts: &Facts, locks: &[Because<LockRef>], judgement: &mut Judgement) {
    let elsewhere = locks.iter().filter_map(|lock| lock.part.namespace.as_deref());
    let namespaces: BTreeSet<_> = elsewhere.collect();
    if let Ok(rights) = &facts.rights
        && !namespaces.is_empty()
        && !rights.may(&["create", "patch"], "", "events")
    {
        judgement.warn(
            "it has no right to write Events in its own namespace, where the shards' locks are",
            "nothing depends on them: its log says so at each election",
        );
    }
}
