//! Whose the objects of a namespace are, and whose one object is.
//!
//! Hides how shards are asked.

use std::sync::Arc;

use super::{
    gaps::{Gap, gaps},
    witness::Undecided,
};
use crate::{
    ByResource, GroupResource, NamespaceLabels, ObjectFacts, Rule, Scope, sharding::refined,
};

/// The owners of the objects of one resource in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners<'s> {
    /// The resource.
    pub rule: Rule,
    /// The shards that own objects there, each with its scope if it does not own them all.
    pub shards: Vec<(&'s str, Option<String>)>,
    /// Some that no shard owns. `None` if there are none.
    pub gap: Result<Option<Gap>, Undecided>,
}

/// The owners in a namespace, for each resource that all of these shards limit.
pub fn owners_in<'s>(
    namespace: &str,
    shards: &[(&'s str, &ByResource<Arc<Scope>>)],
    known: &NamespaceLabels,
) -> Vec<Owners<'s>> {
    let labels = known.get(namespace).cloned().unwrap_or_default();
    let here = NamespaceLabels::from([(namespace.to_owned(), labels)]);
    let areas: Vec<_> = shards.iter().map(|(_, area)| *area).collect();
    let mut owners = Vec::new();
    for rule in refined(areas.iter().copied()) {
        let scopes = shards.iter().map(|(shard, area)| Some((*shard, area.find(&rule)?)));
        let Some(scopes) = scopes.collect::<Option<Vec<_>>>() else { continue };
        let of_rule = scopes
            .iter()
            .map(|(_, scope)| ByResource::new([(rule.clone(), Some(Arc::clone(*scope)))]));
        let of_rule: Vec<_> = of_rule.collect();
        let gap = match gaps(&of_rule.iter().collect::<Vec<_>>(), &here) {
            Ok(gaps) => Ok(gaps.into_iter().find(|gap| gap.namespaces > 0)),
            Err((_, why)) => Err(why),
        };
        let facts = ObjectFacts::common_in(namespace);
        let owns = |(shard, scope): (&'s str, &Arc<Scope>)| match scope.owns(&facts) {
            Some(false) => None,
            Some(true) => Some((shard, None)),
            None => Some((shard, Some(scope.to_string()))),
        };
        let shards = scopes.into_iter().filter_map(owns).collect();
        owners.push(Owners { rule, shards, gap });
    }
    owners
}

/// The shards that own an object; one that does not limit its resource does. `None` for a shard
/// whose ownership depends on unknown facts of the object.
pub fn owners_of<'s>(
    resource: &GroupResource,
    object: &ObjectFacts<'_>,
    shards: &[(&'s str, &ByResource<Arc<Scope>>)],
) -> Vec<(&'s str, Option<bool>)> {
    let rule = Rule::of(resource);
    let owns = |area: &ByResource<Arc<Scope>>| {
        area.find(&rule).map_or(Some(true), |scope| scope.owns(object))
    };
    shards.iter().map(|(shard, area)| (*shard, owns(area))).collect()
}
