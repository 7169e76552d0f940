//! The conditions `InForce`, `Overlap` and `Silent` of a ShardingConfig in a ring: whether it is
//! promised that no object has two owners, whether the configs agree, and whether a pod says nothing.
//!
//! Hides what the promise hangs on. Does not know how a pod's Lease is found, or how a config selects
//! its pods.

use std::{collections::BTreeMap, sync::Arc};

use super::{Missed, Verdict};
use crate::{
    manager::duty::{found::namespace, subject::About, waiting::Lacking},
    policy::{
        NamespaceLabels, Rule, Scope, ShardingDraft,
        ring::{Overlap, Wanted},
    },
};

pub(super) const IN_FORCE: &str = "InForce";
pub(super) const OVERLAP: &str = "Overlap";
pub(super) const SILENT: &str = "Silent";
/// The reason of a promise that a config does without.
const IMMEDIATE: &str = "Immediate";
/// Most configs and resources that are named.
const MOST_NAMED: usize = 5;

/// The rings, by namespace and name.
#[derive(Default)]
pub(in crate::manager::duty) struct Rings<'a>(BTreeMap<(&'a str, &'a str), RingFacts<'a>>);

/// The facts of one ring.
#[derive(Default)]
struct RingFacts<'a> {
    wishes: Vec<Wanted<Arc<Scope>>>,
    overlaps: Arc<[Overlap]>,
    /// Whether a config needs labels of namespaces that are not known.
    has_unknown: bool,
    /// The configs that take everything at once.
    immediate: Missed<'a>,
    without_lease: Missed<'a>,
    unreadable: Missed<'a>,
    has_young: bool,
    has_pods: bool,
    /// The pods of each shard that are silent, and whether one was not heard for long enough.
    silent: BTreeMap<&'a str, Silence<'a>>,
}

#[derive(Default)]
struct Silence<'a> {
    pods: Missed<'a>,
    has_unheard: bool,
    has_heard: bool,
}

/// The overlaps of the rings, compared once for the same wishes: there are as many pairs of configs as
/// their number squared.
#[derive(Default)]
pub(in crate::manager::duty) struct Overlaps(BTreeMap<(String, String), Compared>);

struct Compared {
    wishes: Vec<Wanted<Arc<Scope>>>,
    overlaps: Arc<[Overlap]>,
}

impl Overlaps {
    /// Fills in the overlaps of these rings, and forgets those of others.
    pub(in crate::manager::duty) fn compare(&mut self, rings: &mut Rings<'_>) {
        let mut before = std::mem::take(&mut self.0);
        for ((namespace, ring), facts) in &mut rings.0 {
            let key = ((*namespace).to_owned(), (*ring).to_owned());
            let same = before.remove(&key).filter(|compared| compared.wishes == facts.wishes);
            let compared = same.unwrap_or_else(|| Compared {
                wishes: facts.wishes.clone(),
                overlaps: Overlap::all(&facts.wishes).into(),
            });
            facts.overlaps = Arc::clone(&compared.overlaps);
            self.0.insert(key, compared);
        }
    }
}

/// A pod of a ring, by what its Lease shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager::duty) enum PodOfRing {
    /// A pod without a Lease, which has started a moment ago.
    Young,
    /// A pod without a Lease.
    WithoutLease,
    /// A pod whose Lease cannot be read.
    Unreadable,
    /// A pod whose Lease was not followed for long enough.
    Unheard,
    /// A pod that does not renew its Lease.
    Silent,
    /// A pod that renews its Lease.
    Heard,
}

impl<'a> Rings<'a> {
    /// Adds a config, whose limits are resolved by the labels of namespaces if they are known.
    pub(in crate::manager::duty) fn add_config(
        &mut self,
        namespace: &'a str,
        draft: &'a ShardingDraft,
        known: Option<&NamespaceLabels>,
    ) {
        let Some(ring) = draft.ring.as_deref() else { return };
        let facts = self.0.entry((namespace, ring)).or_default();
        if !draft.waits {
            facts.immediate.add(&draft.config.object.name);
        }
        match Wanted::of(draft, known) {
            Ok(wanted) => facts.wishes.extend(wanted),
            Err(_) => facts.has_unknown = true,
        }
    }

    /// Adds a pod that this config selects.
    pub(in crate::manager::duty) fn add_pod(
        &mut self,
        namespace: &'a str,
        draft: &'a ShardingDraft,
        pod: &'a str,
        is: PodOfRing,
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
        facts.has_pods |= is != PodOfRing::Young;
    }

    /// The things about a config that people should know. That it takes everything at once they do.
    pub(in crate::manager::duty) fn lacking(
        &self,
        key: &'a str,
        draft: &'a ShardingDraft,
    ) -> Vec<Lacking<'a>> {
        let [in_force, overlap, silent] = self.verdicts(namespace(key), draft);
        let mut lacking = Vec::new();
        let mut report = |of: &'static str, reason: &'static str, message: String| {
            let uid = draft.config.object.uid.as_deref().unwrap_or_default();
            lacking.push(Lacking { about: About::Config(of), key, uid, reason, message });
        };
        if let Verdict::No(because, message) = in_force
            && because != IMMEDIATE
        {
            report(IN_FORCE, because, message);
        }
        if let Verdict::Yes(_, message) = overlap {
            report(OVERLAP, OVERLAP, message);
        }
        if let Verdict::Yes(_, message) = silent {
            report(SILENT, SILENT, message);
        }
        lacking
    }

    /// The verdicts about a config: whether the promise is in force, whether it overlaps with
    /// another, whether a pod is silent.
    pub(super) fn verdicts(&self, namespace: &str, draft: &ShardingDraft) -> [Verdict; 3] {
        let facts = draft.ring.as_deref().and_then(|ring| self.0.get(&(namespace, ring)));
        match facts {
            None => [const { Verdict::None }; 3],
            Some(facts) => {
                let shard = &*draft.config.object.name;
                [facts.in_force(), facts.overlap(shard), facts.silent(shard)]
            }
        }
    }
}

impl RingFacts<'_> {
    fn in_force(&self) -> Verdict {
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
                "{pods} has no Lease, so nobody waits for it: create it again, with this version of \
                 the mesh and its right to leases"
            );
            return Verdict::No("NoLease", message);
        }
        match (self.has_pods, self.has_young) {
            (true, false) => Verdict::Yes("Claimed", String::new()),
            _ => Verdict::Unknown,
        }
    }

    fn overlap(&self, shard: &str) -> Verdict {
        let mut parts = Vec::new();
        let mut reason = "LimitedOnce";
        for overlap in &*self.overlaps {
            let Some(rival) = overlap.rival_of(shard) else { continue };
            if let Some(rules) = first_of(&overlap.wanted_twice) {
                reason = "WantedTwice";
                parts.push(format!("ShardingConfig {rival} wants some of the same {rules}"));
            }
            if let Some(rules) = first_of(&overlap.limited_once) {
                parts.push(format!("of this and ShardingConfig {rival} only one limits {rules}"));
            }
        }
        match (parts.is_empty(), self.has_unknown) {
            (false, _) => {
                let more = parts.len().saturating_sub(MOST_NAMED);
                parts.truncate(MOST_NAMED);
                let more = if more > 0 { format!("; {more} more") } else { String::new() };
                Verdict::Yes(reason, format!("{}{more}; draw them apart", parts.join("; ")))
            }
            (true, true) => Verdict::Unknown,
            (true, false) => Verdict::No("Apart", String::new()),
        }
    }

    fn silent(&self, shard: &str) -> Verdict {
        let Some(silence) = self.silent.get(shard) else { return Verdict::Unknown };
        if let Some(pods) = silence.pods.named("pod") {
            let message = format!(
                "the Lease of {pods} is not renewed, and the other shards wait for it: see `ctrlmesh \
                 handover`; `--delete-silent` deletes the pod"
            );
            return Verdict::Yes("NotRenewed", message);
        }
        match silence.has_heard && !silence.has_unheard {
            true => Verdict::No("Renewed", String::new()),
            false => Verdict::Unknown,
        }
    }
}

/// The first resources, and how many more there are. `None` if there is none.
fn first_of(rules: &[Rule]) -> Option<String> {
    let named: Vec<_> = rules.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    let more = rules.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(", {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("{}{more}", named.join(", ")))
}
