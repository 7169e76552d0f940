//! The kinds that the operator reconciles: whether whole namespaces suit them, and what shards must share.

use std::collections::BTreeSet;

use super::judgement::{Because, Judgement, Wanted, reconciled, some};
use crate::shard::{
    args::By,
    facts::{CustomKind, Facts},
    read::{
        rights::Rights,
        schema::{Reference, references},
    },
};
use ctrlmesh_api::{Shared, SharedWrite};
use ctrlmesh_policy::GroupResource;

pub(super) fn judge(facts: &Facts, wanted: &Wanted, judgement: &mut Judgement) {
    let rights = judgement.seen("the rights of its account", &facts.rights);
    let kinds = judgement.seen("the custom kinds", &facts.kinds).map_or(&[][..], Vec::as_slice);
    let own = reconciled(facts);
    if rights.is_some() && own.is_empty() {
        judgement.unknown(
            "no role names the status of a custom kind for its account: which objects it reconciles is not known",
            "",
        );
    }
    match wanted.by {
        By::Uid => by_uid(&own, wanted, judgement),
        By::Namespace => {
            one_namespace(&own, judgement);
            refer(&own, kinds, rights, judgement);
            cluster_scoped(&own, judgement);
            if rights.is_some_and(|rights| rights.may_everywhere(&["create"], "", "namespaces")) {
                judgement.warn(
                    "it may create namespaces: a new one may be in another shard, and its creator's writes there \
                     are refused",
                    "if it does so, name what it writes there in spec.fence.except",
                );
            }
        }
    }
}

/// The resources that are told apart by their uids.
fn by_uid(own: &[&CustomKind], wanted: &Wanted, judgement: &mut Judgement) {
    let named = wanted
        .resources
        .iter()
        .map(|resource| Because { part: resource.clone(), reason: "You named it.".to_owned() });
    judgement.resources = named.collect();
    if judgement.resources.is_empty() {
        let own = own.iter().map(|kind| Because {
            part: GroupResource::new(&kind.group, &kind.plural),
            reason: "Its account may write the status.".to_owned(),
        });
        judgement.resources = own.collect();
    }
    if judgement.resources.is_empty() {
        judgement.refuse(
            "which resources it reconciles is not known",
            "name them with --resources, such as --resources applications.argoproj.io",
        );
    }
    judgement.warn(
        "uids tell the shard of these resources alone: all shards see everything else, and the fence judges nothing",
        "see that the operator finds the objects that it creates by their owners, and not by a label",
    );
}

/// Whether all that it reconciles is in one namespace, whose shard would have everything.
fn one_namespace(own: &[&CustomKind], judgement: &mut Judgement) {
    let counted = own.iter().filter_map(|kind| kind.objects.as_ref()).flatten();
    let counted: Vec<_> = counted.filter(|(namespace, _)| !namespace.is_empty()).collect();
    let namespaces: BTreeSet<_> = counted.iter().map(|(namespace, _)| *namespace).collect();
    let objects: usize = counted.iter().map(|(_, count)| **count).sum();
    if let (Some(namespace), 1, 2..) = (namespaces.first(), namespaces.len(), objects) {
        judgement.warn(
            format!("all {objects} objects that it reconciles are in namespace {namespace}: one shard has them all"),
            "give --by uid",
        );
    }
}

/// The fields of the kinds that lead to other namespaces.
fn refer(
    own: &[&CustomKind],
    kinds: &[CustomKind],
    rights: Option<&Rights>,
    judgement: &mut Judgement,
) {
    let (mut named, mut gathering) = (Vec::new(), Vec::new());
    for kind in own {
        for reference in references(&kind.schema) {
            match reference {
                Reference::Named { path } => named.push(format!("{}'s {path}", kind.kind)),
                Reference::Selector { path, kind: gathered } => {
                    let says = format!("{}'s {path}", kind.kind);
                    let is_it = |one: &&CustomKind| one.kind.eq_ignore_ascii_case(&gathered);
                    match kinds.iter().find(is_it) {
                        Some(one) => {
                            share(one, &format!("{says} gathers them."), rights, judgement)
                        }
                        None => gathering.push(says),
                    }
                }
            }
        }
    }
    if !gathering.is_empty() {
        judgement.warn(
            format!(
                "objects of several namespaces are gathered by {}: a shard sees those of its own namespaces alone",
                some(&gathering)
            ),
            "name what is gathered in spec.shared",
        );
    }
    if !named.is_empty() {
        judgement.warn(
            format!("objects in other namespaces are referred to by {}", some(&named)),
            "name in spec.shared what it lists or watches there; a get by name is always answered",
        );
    }
}

/// Shares the objects of a kind, once.
fn share(one: &CustomKind, reason: &str, rights: Option<&Rights>, judgement: &mut Judgement) {
    let has_it = |shared: &Because<Shared>| {
        shared.part.api_groups == [one.group.clone()]
            && shared.part.resources == [one.plural.clone()]
    };
    if judgement.shared.iter().any(has_it) {
        return;
    }
    // The status says to whom it was of use; each shard that gathers it writes there.
    let writes = rights.is_some_and(|rights| one.is_reconciled(rights));
    let part = Shared {
        api_groups: vec![one.group.clone()],
        resources: vec![one.plural.clone()],
        namespaces: vec!["*".to_owned()],
        write: writes.then_some(SharedWrite::All),
    };
    judgement.shared.push(Because { part, reason: reason.to_owned() });
}

/// Cluster-scoped kinds, whose objects the first shard reconciles.
fn cluster_scoped(own: &[&CustomKind], judgement: &mut Judgement) {
    let all = own.iter().filter(|kind| !kind.is_namespaced);
    let names: Vec<_> = all.map(|kind| kind.kind.clone()).collect();
    if !names.is_empty() {
        judgement.unknown(
            format!(
                "the first shard alone reconciles what is cluster-scoped: {}. Whether it creates objects in \
                 namespaces for it is not known",
                some(&names)
            ),
            "if it does, the condition WritesRefused has the entry of spec.fence.except",
        );
    }
}
