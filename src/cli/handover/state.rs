//! The state of rings: who has what, and who waits for whom.
//!
//! Hides how pods, configs and Leases are brought together. Knows no cluster, and no form of output
//! but the names in JSON.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::found::{Found, FoundLease, FoundPod};
use ctrlmesh_policy::{
    Checked, Rule, Scope, ShardingDraft, choose, object_of,
    ring::{Claim, DesiredScope, Lease, Overlap, PodStatus, Said},
    shard_of,
};

/// The state of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RingState {
    /// The namespace.
    pub namespace: String,
    /// The name of the ring.
    pub ring: String,
    /// The shards, by name.
    pub shards: Vec<ShardState>,
    /// The shards that do not agree.
    pub overlaps: Vec<OverlapState>,
}

/// The state of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShardState {
    /// The name of the config. `None` if a Lease does not say it.
    pub shard: Option<String>,
    /// The number of the config's spec. `None` if there is no such config.
    pub generation: Option<i64>,
    /// Whether the shard waits for others. `None` if there is no such config.
    pub waits: Option<bool>,
    /// The pods, by name.
    pub pods: Vec<PodState>,
}

/// The state of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodState {
    /// The name of the pod.
    pub pod: String,
    /// The uid of the pod.
    pub uid: String,
    /// The state, in a word.
    pub state: State,
    /// The state, in a sentence.
    pub says: String,
    /// Whether the pod is there.
    pub is_there: bool,
    /// The number of the config's spec that the pod follows. `None` if it has no Lease.
    pub generation: Option<i64>,
    /// The scope of each resource that it claims. `None` if it has no Lease that can be read.
    pub claim: Option<BTreeMap<String, String>>,
    /// The resources of which it keeps objects that its config does not want.
    pub keeps: Vec<String>,
    /// The resources of which it lacks objects that its config wants.
    pub lacks: Vec<String>,
    /// The pods that it waits for.
    pub waits_for: Vec<WaitState>,
    /// The number of requests of a former boundary, when the Lease was written.
    pub under_way: usize,
    /// The time since when it claims this.
    pub since: Option<Timestamp>,
    /// The time of the Lease's last renewal.
    pub renewed: Option<Timestamp>,
}

/// A pod that another waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitState {
    /// The name of the pod.
    pub pod: String,
    /// The uid of the pod.
    pub uid: String,
    /// The shard of the pod. `None` if it does not say.
    pub shard: Option<String>,
    /// The resources.
    pub resources: Vec<String>,
}

/// The state of a pod in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// The pod has what its config wants, and nothing else.
    Settled,
    /// The pod claims what others still claim.
    Waits,
    /// The pod keeps what its config does not want.
    GivesUp,
    /// The pod does not claim yet what its config wants.
    Claims,
    /// The pod does not claim what another config wants, too.
    Overlaps,
    /// The pod's config is deleted or cannot be used, and the last good one stays in force.
    LastGood,
    /// The pod's Lease cannot be read, and counts as a claim of everything.
    Unreadable,
    /// The pod has no Lease, and so no one waits for it.
    NoLease,
    /// The pod's config has it take everything at once.
    Immediate,
}

/// Two shards that do not agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OverlapState {
    /// The shards, that of the elder config first.
    pub shards: [String; 2],
    /// The resources of which both want the same objects.
    pub wanted_twice: Vec<String>,
    /// The resources that only one of them limits.
    pub limited_once: Vec<String>,
}

/// The rings, by namespace and name.
pub(crate) fn states(found: &Found) -> Vec<RingState> {
    let mut names = BTreeSet::new();
    for draft in drafts(found) {
        let namespace = &*draft.config.object.namespace;
        names.extend(draft.ring.as_deref().map(|ring| (namespace, ring)));
    }
    names.extend(found.leases.iter().map(|lease| (&*lease.namespace, &*lease.says.ring)));
    names.into_iter().map(|(namespace, ring)| state(found, namespace, ring)).collect()
}

fn drafts(found: &Found) -> impl Iterator<Item = &ShardingDraft> {
    found.configs.iter().filter_map(shard_of)
}

fn state(found: &Found, namespace: &str, ring: &str) -> RingState {
    let is_of_ring = |draft: &&ShardingDraft| {
        *draft.config.object.namespace == *namespace && draft.ring.as_deref() == Some(ring)
    };
    let drafts: Vec<_> = drafts(found).filter(is_of_ring).collect();
    let known = found.namespaces.as_ref();
    let wishes: Vec<_> =
        drafts.iter().filter_map(|draft| DesiredScope::of(draft, known).ok().flatten()).collect();
    let overlaps = Overlap::all(&wishes);
    let found_leases: Vec<_> = found
        .leases
        .iter()
        .filter(|lease| lease.namespace == namespace && lease.says.ring == ring)
        .collect();
    let leases: Vec<_> = found_leases.iter().map(|lease| lease.claim()).collect();
    let ring_pods = RingPods { found, leases: &found_leases };
    let mut shards: BTreeMap<Option<&str>, Vec<PodState>> = BTreeMap::new();
    for draft in &drafts {
        let shard = Some(&*draft.config.object.name);
        shards.entry(shard).or_default().extend(ring_pods.without_lease(draft));
    }
    for (read, lease) in found_leases.iter().zip(&leases) {
        let wish = wishes.iter().find(|wish| lease.shard.as_deref() == Some(&*wish.shard));
        let standing = PodStatus::of(lease, wish.map(|wish| &*wish.area), &leases);
        let last_good = last_good(found, namespace, lease.shard.as_deref());
        let pod = ring_pods.with_lease(read, lease, &standing, &overlaps, last_good);
        shards.entry(read.says.shard.as_deref()).or_default().push(pod);
    }
    let shards = shards.into_iter().map(|(shard, mut pods)| {
        let draft = drafts.iter().find(|draft| Some(&*draft.config.object.name) == shard);
        pods.sort_by(|one, other| (&one.pod, &one.uid).cmp(&(&other.pod, &other.uid)));
        ShardState {
            shard: shard.map(str::to_owned),
            generation: draft.and_then(|draft| draft.config.object.generation),
            waits: draft.map(|draft| draft.waits),
            pods,
        }
    });
    RingState {
        namespace: namespace.to_owned(),
        ring: ring.to_owned(),
        shards: shards.collect(),
        overlaps: overlaps.iter().map(OverlapState::of).collect(),
    }
}

/// What became of the config of a shard, if its pods go by the last good one.
fn last_good(found: &Found, namespace: &str, shard: Option<&str>) -> Option<&'static str> {
    let shard = shard?;
    let is_its = |checked: &&Checked| {
        let object = object_of(checked);
        *object.namespace == *namespace && *object.name == *shard
    };
    match found.configs.iter().find(is_its) {
        None => Some("is deleted"),
        Some(Err(_)) => Some("cannot be used"),
        Some(Ok(_)) => None,
    }
}

/// The pods and Leases of one ring.
struct RingPods<'f> {
    found: &'f Found,
    leases: &'f [&'f FoundLease],
}

impl RingPods<'_> {
    /// The pods of a shard that have no Lease.
    fn without_lease(&self, draft: &ShardingDraft) -> Vec<PodState> {
        let object = &draft.config.object;
        let configs = || {
            let all = self.found.configs.iter();
            all.filter(|checked| *object_of(checked).namespace == *object.namespace)
        };
        let is_of_shard = |pod: &&FoundPod| {
            pod.namespace == *object.namespace
                && choose(configs(), &pod.labels, &pod.namespace, None)
                    .is_ok_and(|chosen| chosen.config.object.is_same(object))
                && self.leases.iter().all(|lease| lease.says.pod_uid != pod.uid)
        };
        let (state, says) = match draft.waits {
            true => (State::NoLease, "has no Lease: no one waits for it"),
            false => (State::Immediate, "takes everything at once, without a Lease"),
        };
        let of_shard = self.found.pods.iter().filter(is_of_shard);
        of_shard.map(|pod| PodState::new(&pod.name, &pod.uid, state, says.to_owned())).collect()
    }

    /// The pod with this Lease.
    fn with_lease(
        &self,
        read: &FoundLease,
        lease: &Lease<Arc<Scope>>,
        standing: &PodStatus<'_, Arc<Scope>>,
        overlaps: &[Overlap],
        last_good: Option<&'static str>,
    ) -> PodState {
        let says = &read.says;
        let waits_for: Vec<_> =
            standing.waits_for.iter().map(|(lease, rules)| self.wait(lease, rules)).collect();
        let is_there = self.found.pods.iter().any(|pod| pod.uid == says.pod_uid);
        let (state, mut sentence) = match (last_good, lease.shard.as_deref()) {
            (Some(why), Some(shard)) if is_there => {
                let sentence = format!(
                    "uses its last config, which stays in force: ShardingConfig {shard} {why}"
                );
                (State::LastGood, sentence)
            }
            _ => in_words(lease, standing, &waits_for, overlaps),
        };
        if !is_there {
            sentence.push_str("; its pod is gone");
        }
        PodState {
            is_there,
            generation: Some(says.generation),
            claim: lease.shard.is_some().then(|| texts_of(&lease.claim)),
            keeps: texts(&standing.keeps),
            lacks: texts(&standing.lacks),
            waits_for,
            under_way: says.under_way,
            since: says.claimed,
            renewed: Some(says.renewed),
            ..PodState::new(&says.holder, &says.pod_uid, state, sentence)
        }
    }

    fn wait(&self, lease: &Lease<Arc<Scope>>, rules: &[Rule]) -> WaitState {
        let read = self.leases.iter().find(|read| *read.says.pod_uid == *lease.pod);
        WaitState {
            pod: read.map(|read| read.says.holder.clone()).unwrap_or_default(),
            uid: lease.pod.to_string(),
            shard: lease.shard.as_deref().map(str::to_owned),
            resources: texts(rules),
        }
    }
}

fn in_words(
    lease: &Lease<Arc<Scope>>,
    standing: &PodStatus<'_, Arc<Scope>>,
    waits_for: &[WaitState],
    overlaps: &[Overlap],
) -> (State, String) {
    let Some(shard) = lease.shard.as_deref() else {
        return (State::Unreadable, "cannot be read, and counts as a claim of everything".into());
    };
    let PodStatus { keeps, lacks, .. } = standing;
    let mut parts = Vec::new();
    let mut state = State::Settled;
    let mut note = |is: State, part: String| {
        if state == State::Settled {
            state = is;
        }
        parts.push(part);
    };
    for WaitState { pod, shard, resources, .. } in waits_for {
        let whose = match shard {
            Some(shard) => format!("of shard {shard}"),
            None => "whose Lease cannot be read".to_owned(),
        };
        note(State::Waits, format!("waits for {pod} {whose}: {}", resources.join(", ")));
    }
    if !keeps.is_empty() {
        note(State::GivesUp, format!("gives up {}", texts(keeps).join(", ")));
    }
    let rival = |rule: &Rule| {
        let mut overlaps = overlaps.iter();
        overlaps.find_map(|overlap| overlap.rival_about(shard, rule)).map(str::to_owned)
    };
    let mut by_rival: BTreeMap<Option<String>, Vec<Rule>> = BTreeMap::new();
    for rule in lacks {
        by_rival.entry(rival(rule)).or_default().push(rule.clone());
    }
    for (rival, rules) in by_rival {
        let rules = texts(&rules).join(", ");
        match rival {
            Some(rival) => {
                note(
                    State::Overlaps,
                    format!("leaves {rules} to shard {rival}, which wants the same"),
                );
            }
            None => note(State::Claims, format!("does not claim yet what it wants of {rules}")),
        }
    }
    if parts.is_empty() {
        parts.push("has what its config wants".to_owned());
    }
    (state, parts.join("; "))
}

fn texts(rules: &[Rule]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

fn texts_of(claim: &Claim<Arc<Scope>>) -> BTreeMap<String, String> {
    match claim {
        Claim::Nothing => BTreeMap::new(),
        Claim::All => [("*.*".to_owned(), "everything".to_owned())].into(),
        Claim::Of(area) => {
            let scope = |scope: Option<&Arc<Scope>>| match scope.map(ToString::to_string) {
                Some(text) if !text.is_empty() => text,
                _ => "everything".to_owned(),
            };
            area.pieces().map(|(rule, piece)| (rule.to_string(), scope(piece))).collect()
        }
    }
}

impl RingState {
    /// The state but for the times of renewals, which change always.
    pub(super) fn without_times(&self) -> Self {
        let mut state = self.clone();
        let pods = state.shards.iter_mut().flat_map(|shard| &mut shard.pods);
        pods.for_each(|pod| pod.renewed = None);
        state
    }
}

impl PodState {
    fn new(pod: &str, uid: &str, state: State, says: String) -> Self {
        Self {
            pod: pod.to_owned(),
            uid: uid.to_owned(),
            state,
            says,
            is_there: true,
            generation: None,
            claim: None,
            keeps: Vec::new(),
            lacks: Vec::new(),
            waits_for: Vec::new(),
            under_way: 0,
            since: None,
            renewed: None,
        }
    }
}

impl OverlapState {
    fn of(overlap: &Overlap) -> Self {
        Self {
            shards: overlap.shards.clone().map(String::from),
            wanted_twice: texts(&overlap.wanted_twice),
            limited_once: texts(&overlap.limited_once),
        }
    }
}

impl FoundLease {
    fn claim(&self) -> Lease<Arc<Scope>> {
        let says = &self.says;
        let said = Said { shard: says.shard.as_deref(), claim: says.claim.as_deref() };
        Lease::read(&says.pod_uid, &says.ring, &self.version, said)
    }
}
