//! The conditions `HandoverActive`, `NoOverlap`, `NoGaps`, `LeasesRenewed`, `LocksRenamed`, `WritesRefused` and `RelatedResourcesLimited` of a
//! ShardingConfig in a ring: whether it is promised that no object has two owners, whether the configs
//! agree, whether they have all objects, whether a pod says nothing, whether the shard leads, and whether
//! it was refused writes.
//!
//! Hides what the promise hangs on. Does not know how a pod's Lease is found, or how a config selects
//! its pods.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use super::{
    compared::{Compared, Comparisons},
    locks::{LOCKS_RENAMED, ShardElections, Unheld},
    related::{RELATED_RESOURCES_LIMITED, ShardRelated},
    writes::{ShardWrites, WRITES_REFUSED},
};
use crate::{
    configs::ConfigFacts,
    reconcile::{
        leases::{PodOfRing, Said},
        observed::namespace,
        problem::{About, Problem},
        verdict::{Missed, Verdict},
    },
};
use ctrlmesh_policy::{Draft, NamespaceLabels, Scope, ShardingDraft, ring::DesiredScope};

pub(super) const HANDOVER_ACTIVE: &str = "HandoverActive";
pub(super) const NO_OVERLAP: &str = "NoOverlap";
pub(super) const NO_GAPS: &str = "NoGaps";
pub(super) const LEASES_RENEWED: &str = "LeasesRenewed";
/// The reason of a promise that a config does without.
const IMMEDIATE: &str = "Immediate";

/// The rings, by namespace and name.
#[derive(Default)]
pub(in crate::reconcile) struct Rings<'a>(BTreeMap<(&'a str, &'a str), RingFacts<'a>>);

/// The facts of one ring.
#[derive(Default)]
struct RingFacts<'a> {
    wishes: Vec<DesiredScope<Arc<Scope>>>,
    /// The configs next to each other. `None` until they are compared.
    compared: Option<Arc<Compared>>,
    /// Whether a config needs labels of namespaces that are not known.
    has_unknown: bool,
    /// Whether a config of the namespace is invalid: its pods go by its last good version.
    has_invalid: bool,
    /// The configs that take everything at once.
    immediate: Missed<'a>,
    without_lease: Missed<'a>,
    unreadable: Missed<'a>,
    has_young: bool,
    has_pods: bool,
    /// The pods of each shard that are silent, and whether one was not heard for long enough.
    silent: BTreeMap<&'a str, Silence<'a>>,
    /// The elections of the pods of each shard.
    elections: BTreeMap<&'a str, ShardElections<'a>>,
    /// The foreign writes of the pods of each shard.
    writes: BTreeMap<&'a str, ShardWrites<'a>>,
    /// The related resources of the pods of each shard.
    related: BTreeMap<&'a str, ShardRelated<'a>>,
}

#[derive(Default)]
struct Silence<'a> {
    pods: Missed<'a>,
    has_unheard: bool,
    has_heard: bool,
}

impl<'a> Rings<'a> {
    /// Adds a config, whose limits are resolved by the labels of namespaces if they are known.
    pub(in crate::reconcile) fn add_config(
        &mut self,
        namespace: &'a str,
        config: &'a ConfigFacts,
        known: Option<&NamespaceLabels>,
    ) {
        let Ok(Draft::Sharding(draft)) = &config.checked else { return };
        let Some(ring) = draft.ring.as_deref() else { return };
        let facts = self.0.entry((namespace, ring)).or_default();
        if !draft.waits {
            facts.immediate.add(&draft.config.object.name);
        }
        match config.wanted(known) {
            Ok(wanted) => facts.wishes.extend(wanted),
            Err(_) => facts.has_unknown = true,
        }
    }

    /// Notes that a config of a namespace is invalid. It may be of any ring there.
    pub(in crate::reconcile) fn add_invalid(&mut self, namespace: &str) {
        let of_namespace = self.0.iter_mut().filter(|((at, _), _)| *at == namespace);
        of_namespace.for_each(|(_, facts)| facts.has_invalid = true);
    }

    /// Compares the configs of each ring. Returns the number of configs that own what another does, and
    /// of rings that leave something to no one.
    pub(in crate::reconcile) fn compare(
        &mut self,
        comparisons: &mut Comparisons,
        namespaces: Option<&Arc<NamespaceLabels>>,
    ) -> [i64; 2] {
        let wishes = self.0.iter().map(|(key, facts)| (key, &*facts.wishes));
        let compared = comparisons.of(wishes, namespaces);
        let mut counts = [0; 2];
        for (facts, compared) in self.0.values_mut().zip(compared) {
            let shards = facts.wishes.iter().map(|wanted| &*wanted.shard);
            let overlapping = shards.filter(|shard| compared.owns_twice(shard)).count();
            let found = [overlapping, usize::from(compared.has_gap())];
            for (count, found) in counts.iter_mut().zip(found) {
                *count += i64::try_from(found).unwrap_or(i64::MAX);
            }
            facts.compared = Some(compared);
        }
        counts
    }

    /// Adds a pod that this config selects.
    pub(in crate::reconcile) fn add_pod(
        &mut self,
        namespace: &'a str,
        draft: &'a ShardingDraft,
        pod: &'a str,
        is: PodOfRing,
        said: Said<'a>,
    ) {
        let Some(ring) = draft.ring.as_deref().filter(|_| draft.waits) else { return };
        let facts = self.0.entry((namespace, ring)).or_default();
        let silence = facts.silent.entry(&draft.config.object.name).or_default();
        match is {
            PodOfRing::Young => facts.has_young = true,
            PodOfRing::WithoutLease => facts.without_lease.add(pod),
            PodOfRing::Unreadable => facts.unreadable.add(pod),
            PodOfRing::Unheard => silence.has_unheard = true,
            PodOfRing::Silent => silence.pods.add(pod),
            PodOfRing::Heard => silence.has_heard = true,
        }
        // Another pod's word is old.
        if is == PodOfRing::Heard {
            let shard = &*draft.config.object.name;
            facts.elections.entry(shard).or_default().add(pod, said.elections);
            facts.writes.entry(shard).or_default().add(pod, said.foreign_writes);
            facts.related.entry(shard).or_default().add(pod, said.related);
        }
        facts.has_pods |= is != PodOfRing::Young;
    }

    /// The things about a config that people should know. That it takes everything at once they do.
    pub(in crate::reconcile) fn problems(
        &self,
        key: &'a str,
        draft: &'a ShardingDraft,
    ) -> Vec<Problem<'a>> {
        let [active, no_overlap, no_gaps, renewed, locks, writes, related] =
            self.verdicts(namespace(key), draft);
        let mut problems = Vec::new();
        let mut report = |of: &'static str, reason: &'static str, message: String| {
            let uid = draft.config.object.uid.as_deref().unwrap_or_default();
            problems.push(Problem { about: About::Config(of), key, uid, reason, message });
        };
        if let Verdict::No(because, message) = active
            && because != IMMEDIATE
        {
            report(HANDOVER_ACTIVE, because, message);
        }
        if let Verdict::No(because, message) = no_overlap {
            report(NO_OVERLAP, because, message);
        }
        // Who writes one config alone may mean to leave the rest alone.
        if let Verdict::No(because, message) = no_gaps
            && self.has_several(namespace(key), draft)
        {
            report(NO_GAPS, because, message);
        }
        if let Verdict::No(because, message) = renewed {
            report(LEASES_RENEWED, because, message);
        }
        if let Verdict::No(because, message) = locks {
            report(LOCKS_RENAMED, because, message);
        }
        if let Verdict::Yes(because, message) | Verdict::No(because, message) = writes
            && !message.is_empty()
        {
            report(WRITES_REFUSED, because, message);
        }
        if let Verdict::No(because, message) = related {
            report(RELATED_RESOURCES_LIMITED, because, message);
        }
        problems
    }

    /// Notes since when no one holds a lock, by what was noted before.
    pub(in crate::reconcile) fn see_locks(
        &mut self,
        drafts: impl Iterator<Item = (&'a str, &'a ShardingDraft)>,
        unheld: &mut Unheld,
        now: Instant,
    ) {
        let before = unheld.begin();
        for (at, draft) in drafts {
            let Some(ring) = draft.ring.as_deref() else { continue };
            let shard = &*draft.config.object.name;
            let facts = self.0.get_mut(&(namespace(at), ring));
            if let Some(elections) = facts.and_then(|facts| facts.elections.get_mut(shard)) {
                elections.see([namespace(at), shard], draft, &before, unheld, now);
            }
        }
    }

    fn has_several(&self, namespace: &str, draft: &ShardingDraft) -> bool {
        let facts = draft.ring.as_deref().and_then(|ring| self.0.get(&(namespace, ring)));
        facts.is_some_and(|facts| facts.wishes.len() > 1)
    }

    /// The verdicts about a config: whether the promise is in force, whether it owns nothing
    /// of another's, whether all of its ring have all objects, whether a pod is silent, whether it leads,
    /// whether it was refused writes, whether it limits what belongs together.
    pub(super) fn verdicts(&self, namespace: &str, draft: &ShardingDraft) -> [Verdict; 7] {
        let facts = draft.ring.as_deref().and_then(|ring| self.0.get(&(namespace, ring)));
        match facts {
            None => [const { Verdict::None }; 7],
            Some(facts) => {
                let shard = &*draft.config.object.name;
                [
                    facts.handover_active(),
                    facts.no_overlap(shard),
                    facts.no_gaps(),
                    facts.leases_renewed(shard),
                    facts.leads(draft),
                    facts.writes.get(shard).map_or(Verdict::Unknown, ShardWrites::verdict),
                    facts.related.get(shard).map_or(Verdict::Unknown, ShardRelated::verdict),
                ]
            }
        }
    }
}

impl RingFacts<'_> {
    fn handover_active(&self) -> Verdict {
        if let Some(configs) = self.immediate.named("ShardingConfig") {
            let message = format!(
                "an object may have two owners while it is handed over: {configs} of the ring takes \
                 everything at once; set spec.handover.mode to Wait in all"
            );
            return Verdict::No(IMMEDIATE, message);
        }
        if let Some(pods) = self.unreadable.named("pod") {
            let message = format!(
                "the Lease of {pods} cannot be read, so it counts as a claim of everything: delete it"
            );
            return Verdict::No("Unreadable", message);
        }
        if let Some(pods) = self.without_lease.named("pod") {
            let message = format!(
                "{pods} has no Lease, so no one waits for it: create it again, with this version of \
                 the mesh and its right to leases"
            );
            return Verdict::No("NoLease", message);
        }
        match (self.has_pods, self.has_young) {
            (true, false) => Verdict::Yes("Claimed", String::new()),
            _ => Verdict::Unknown,
        }
    }

    fn no_overlap(&self, shard: &str) -> Verdict {
        match self.compared.as_ref().map_or(Verdict::Unknown, |all| all.no_overlap(shard)) {
            Verdict::Yes(..) if self.has_unknown => Verdict::Unknown,
            verdict => verdict,
        }
    }

    fn no_gaps(&self) -> Verdict {
        let is_known = !self.has_unknown && !self.has_invalid;
        let compared = self.compared.as_ref().filter(|_| is_known);
        compared.map_or(Verdict::Unknown, |all| all.no_gaps())
    }

    fn leads(&self, draft: &ShardingDraft) -> Verdict {
        let has_locks = draft.lock_names().next().is_some();
        match self.elections.get(&*draft.config.object.name) {
            Some(elections) => elections.verdict(has_locks),
            None if has_locks => Verdict::Unknown,
            None => Verdict::None,
        }
    }

    fn leases_renewed(&self, shard: &str) -> Verdict {
        let Some(silence) = self.silent.get(shard) else { return Verdict::Unknown };
        if let Some(pods) = silence.pods.named("pod") {
            let message = format!(
                "the Lease of {pods} is not renewed, and the other shards wait for it: see `ctrlmesh \
                 handover`; `--delete-silent` deletes the pod"
            );
            return Verdict::No("NotRenewed", message);
        }
        match silence.has_heard && !silence.has_unheard {
            true => Verdict::Yes("Renewed", String::new()),
            false => Verdict::Unknown,
        }
    }
}
