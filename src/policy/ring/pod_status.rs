//! The handover status of each pod of a ring, from Leases and configs.
//!
//! Hides which pod gives up what, and which one waits for which. Knows no
//! time, no pod without a Lease, and no encoding. Words: what a pod *keeps* it claims though its
//! config does not want it; what it *lacks* its config wants, and it does not claim it.

use super::{
    claim::{Claim, Lease},
    config::DesiredScope,
};
use crate::{ByResource, ObjectSet, Rule, sharding::refined};

/// The standing of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodStatus<'l, S> {
    /// The resources of which it keeps objects: requests on them are under way, or it has not seen
    /// the config.
    pub keeps: Vec<Rule>,
    /// The resources of which it lacks objects.
    pub lacks: Vec<Rule>,
    /// The Leases of other shards that claim what it wants, and claims too, each with the resources.
    pub waits_for: Vec<(&'l Lease<S>, Vec<Rule>)>,
}

/// Two configs of a ring that do not agree about some resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The shard of the elder config, and that of the other.
    pub shards: [Box<str>; 2],
    /// The resources of which both want the same objects, as far as is known.
    pub wanted_twice: Vec<Rule>,
    /// The resources that only one of them limits: the other may write all of their objects.
    pub limited_once: Vec<Rule>,
}

impl<'l, S: ObjectSet> PodStatus<'l, S> {
    /// The standing of the pod with this Lease, among those of its ring. `wanted` is the wish of its
    /// config, or `None` if there is no such config: then it keeps all that it claims.
    pub fn of(lease: &Lease<S>, wanted: Option<&ByResource<S>>, leases: &'l [Lease<S>]) -> Self {
        let nothing = ByResource::new([(Rule::everything(), Some(S::nothing()))]);
        let wanted = wanted.unwrap_or(&nothing);
        let claim = &lease.claim;
        let rules = refined(claim.area().into_iter().chain([wanted]));
        let pieces =
            |rule: &Rule| (claim.area().and_then(|area| area.find(rule)), wanted.find(rule));
        let keeps = |rule: &Rule| match pieces(rule) {
            (Some(claimed), Some(wanted)) => claimed.meet(wanted) != *claimed,
            _ => false,
        };
        let lacks =
            |rule: &Rule| wanted.find(rule).is_some_and(|wanted| !claim.covers(rule, wanted));
        let mut waits_for = Vec::new();
        for other in leases.iter().filter(|other| other.pod != lease.pod && lease.is_rival(other)) {
            let rules = contested(claim, wanted, &other.claim);
            if !rules.is_empty() {
                waits_for.push((other, rules));
            }
        }
        Self {
            keeps: rules.iter().filter(|rule| keeps(rule)).cloned().collect(),
            lacks: rules.iter().filter(|rule| lacks(rule)).cloned().collect(),
            waits_for,
        }
    }
}

impl<S> Lease<S> {
    /// Whether the other is of another shard. One that cannot be read is.
    fn is_rival(&self, other: &Self) -> bool {
        other.shard.is_none() || other.shard != self.shard
    }
}

/// The resources of which a pod wants and claims what another claims.
fn contested<S: ObjectSet>(
    claim: &Claim<S>,
    wanted: &ByResource<S>,
    other: &Claim<S>,
) -> Vec<Rule> {
    let areas = [claim.area(), Some(wanted), other.area()];
    let is_contested = |rule: &Rule| {
        let Some(wanted) = wanted.find(rule) else { return false };
        let both = match claim {
            Claim::Nothing => return false,
            Claim::All => wanted.clone(),
            Claim::Of(area) => match area.find(rule) {
                Some(claimed) => claimed.meet(wanted),
                None => return false,
            },
        };
        !both.is_nothing() && other.may_hold(rule, &both)
    };
    refined(areas.into_iter().flatten()).into_iter().filter(is_contested).collect()
}

impl Overlap {
    /// The pairs of shards that do not agree.
    pub fn all<S: ObjectSet>(wishes: &[DesiredScope<S>]) -> Vec<Self> {
        let mut all = Vec::new();
        for (at, one) in wishes.iter().enumerate() {
            for other in wishes.iter().skip(at + 1).filter(|other| other.is_rival_of(one)) {
                let pair = if one.birth <= other.birth { [one, other] } else { [other, one] };
                all.extend(Self::of(pair));
            }
        }
        all
    }

    /// The other shard, if one is this.
    pub fn rival_of(&self, shard: &str) -> Option<&str> {
        let [elder, other] = &self.shards;
        match () {
            () if **elder == *shard => Some(other),
            () if **other == *shard => Some(elder),
            () => None,
        }
    }

    /// The other shard, if one is this and both want the same objects of the resource.
    pub fn rival_about(&self, shard: &str, rule: &Rule) -> Option<&str> {
        let rival = self.rival_of(shard)?;
        let mut rules = self.wanted_twice.iter();
        rules.any(|wanted| wanted == rule || wanted.conflicts(rule)).then_some(rival)
    }

    /// The disagreement of two shards, the elder first. `None` if there is none.
    fn of<S: ObjectSet>(pair: [&DesiredScope<S>; 2]) -> Option<Self> {
        let [mut wanted_twice, mut limited_once] = [Vec::new(), Vec::new()];
        for rule in refined(pair.iter().map(|wanted| &*wanted.area)) {
            match pair.map(|wanted| wanted.area.find(&rule)) {
                [Some(one), Some(other)] if !one.is_disjoint(other) => wanted_twice.push(rule),
                [Some(_), None] | [None, Some(_)] => limited_once.push(rule),
                _ => {}
            }
        }
        let shards = pair.map(|wanted| wanted.shard.clone());
        let is_any = !wanted_twice.is_empty() || !limited_once.is_empty();
        is_any.then_some(Self { shards, wanted_twice, limited_once })
    }
}
