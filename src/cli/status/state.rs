//! The state of the mesh: ShardingConfigs, their scope and problems.
//!
//! Hides how configs, pods and Leases are judged together. Knows no cluster, and no form of output but
//! the names in JSON.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Serialize;

use crate::handover::{
    self, PodState, RingState, State,
    found::{Found, FoundPod},
};
use ctrlmesh_api::keys;
use ctrlmesh_policy::{
    ByResource, NamespaceLabels, Scope, ShardingDraft, choose, object_of,
    ownership::{Comparison, gaps},
    shard_of,
};

/// The state of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The configs that can be used, by namespace and name.
    pub configs: Vec<ConfigState>,
    /// The things that are not as they should be.
    pub problems: Vec<Problem>,
}

/// The state of a config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigState {
    /// The namespace.
    pub namespace: String,
    /// The name of the config, which is that of the shard.
    pub shard: String,
    /// The ring. `None` if it is in none.
    pub ring: Option<String>,
    /// The number of the spec.
    pub generation: Option<i64>,
    /// The number of injected pods that it selects.
    pub pods: usize,
    /// The number of those that are ready.
    pub ready: usize,
    /// The number of those that have exactly what it wants. `None` where no pod says so: outside of a
    /// ring, and where everything is taken at once.
    pub in_force: Option<usize>,
    /// The numbers of the spec by which pods claim in their Leases, each with the number of pods.
    pub generations: BTreeMap<i64, usize>,
    /// The scope of each resource that it limits.
    pub owns: BTreeMap<String, String>,
    /// The images of the proxies, each with the number of pods.
    pub proxies: BTreeMap<String, usize>,
}

/// One problem of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The thing: its kind, namespace and name.
    pub of: String,
    /// The problem, and often the remedy.
    pub says: String,
}

/// The configs of a ring that can be used, each with what it wants.
pub(super) type Shards<'f> = Vec<(&'f str, ByResource<Arc<Scope>>)>;

/// The state of the mesh. `known` are all namespaces, or `None` if they may not be listed.
pub(super) fn status(found: &Found, known: Option<&NamespaceLabels>) -> Status {
    let rings = handover::states(found);
    let mut problems = Vec::new();
    problems.extend(found.configs.iter().filter_map(|checked| {
        let invalid = checked.as_ref().err()?;
        let says = invalid.problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        Some(problem(object_of(checked).to_string(), says.join("; ")))
    }));
    let unready = found.unready.iter();
    problems.extend(unready.map(|(root, says)| problem(root.to_string(), says.as_str())));
    for ((namespace, ring), shards) in by_ring(found, known) {
        let name = format!("ring {namespace}/{ring}");
        problems.extend(of_ring(&shards, known).into_iter().map(|says| problem(&*name, says)));
    }
    if known.is_none() {
        let says = "may not be listed, so it is not known what no shard has";
        problems.push(problem("namespaces", says));
    }
    problems.extend(of_pods(found, &rings));
    let configs = drafts(found).map(|draft| config(draft, found, &rings, known)).collect();
    Status { configs, problems }
}

fn problem(of: impl Into<String>, says: impl Into<String>) -> Problem {
    Problem { of: of.into(), says: says.into() }
}

fn drafts(found: &Found) -> impl Iterator<Item = &ShardingDraft> {
    found.configs.iter().filter_map(shard_of)
}

/// The shards of each ring, by its namespace and name.
pub(super) fn by_ring<'f>(
    found: &'f Found,
    known: Option<&NamespaceLabels>,
) -> BTreeMap<(&'f str, &'f str), Shards<'f>> {
    let mut rings: BTreeMap<_, Shards<'f>> = BTreeMap::new();
    for draft in drafts(found) {
        let (Some(ring), Ok(policy)) = (draft.ring.as_deref(), draft.resolve(known)) else {
            continue;
        };
        let object = &draft.config.object;
        let shards = rings.entry((&*object.namespace, ring)).or_default();
        shards.push((&*object.name, policy.sharding.area()));
    }
    rings
}

/// The problems of a ring: what two of its shards own, and what none does.
fn of_ring(shards: &Shards<'_>, known: Option<&NamespaceLabels>) -> Vec<String> {
    let mut says = Vec::new();
    for (at, (one, area)) in shards.iter().enumerate() {
        for (other, theirs) in shards.iter().skip(at + 1) {
            let compared = Comparison::of([area, theirs], known);
            if let Some(common) = compared.said_common() {
                says.push(format!(
                    "{one} and {other} own {common}; select each object in one config alone"
                ));
            }
            if let Some(undecided) = compared.said_undecided() {
                says.push(format!("{one} and {other} may own {undecided}"));
            }
            if let Some(rules) = compared.said_limited_once() {
                says.push(format!("of {one} and {other} only one limits {rules}"));
            }
        }
    }
    let areas: Vec<_> = shards.iter().map(|(_, area)| area).collect();
    match known.map(|known| gaps(&areas, known)) {
        Some(Ok(gaps)) => {
            says.extend(gaps.iter().map(|gap| format!("no shard has {gap}; give them to one")));
        }
        Some(Err((rule, why))) => {
            says.push(format!("it is not known whether each of {rule} has a shard: {why}"));
        }
        None => {}
    }
    says
}

/// The pods that do not have what they should.
fn of_pods(found: &Found, rings: &[RingState]) -> Vec<Problem> {
    let named = |pod: &FoundPod| format!("pod {}/{}", pod.namespace, pod.name);
    let mut problems = Vec::new();
    for pod in &found.bare {
        let says =
            "asks for injection and is not injected: create it again, with the webhook in place";
        problems.push(problem(named(pod), says));
    }
    for pod in &found.others {
        let configs = of_namespace(found, &pod.namespace);
        if let Ok(config) = choose(configs, &pod.labels, &pod.namespace, None) {
            let says = format!(
                "is selected by {} and does not ask for injection, so it sees all objects: give its \
                 template the label {}{}: \"true\", and create it again",
                config.config.object,
                keys::PREFIX,
                keys::ENABLE_PROXY
            );
            problems.push(problem(named(pod), says));
        }
    }
    for pod in &found.pods {
        if let Err(why) =
            choose(of_namespace(found, &pod.namespace), &pod.labels, &pod.namespace, None)
        {
            problems.push(problem(named(pod), format!("{why}; {}", why.remedy())));
        }
    }
    for RingState { namespace, shards, .. } in rings {
        for state in shards.iter().flat_map(|shard| &shard.pods) {
            if !matches!(state.state, State::Settled | State::Immediate) {
                problems.push(problem(format!("pod {namespace}/{}", state.pod), &*state.says));
            }
        }
    }
    problems
}

fn of_namespace<'f>(
    found: &'f Found,
    namespace: &'f str,
) -> impl Iterator<Item = &'f ctrlmesh_policy::Checked> {
    found.configs.iter().filter(move |checked| *object_of(checked).namespace == *namespace)
}

fn config(
    draft: &ShardingDraft,
    found: &Found,
    rings: &[RingState],
    known: Option<&NamespaceLabels>,
) -> ConfigState {
    let object = &draft.config.object;
    let is_selected = |pod: &&FoundPod| {
        *pod.namespace == *object.namespace
            && choose(of_namespace(found, &object.namespace), &pod.labels, &pod.namespace, None)
                .is_ok_and(|chosen| chosen.config.object.is_same(object))
    };
    let pods: Vec<_> = found.pods.iter().filter(is_selected).collect();
    let mut proxies = BTreeMap::new();
    for image in pods.iter().filter_map(|pod| pod.proxy.clone()) {
        *proxies.entry(image).or_default() += 1;
    }
    let area = draft.resolve(known).map(|policy| policy.sharding.area());
    let owns = area.iter().flat_map(|area| area.pieces().collect::<Vec<_>>());
    let owns = owns.map(|(rule, scope)| {
        let scope = scope.map(ToString::to_string).filter(|text| !text.is_empty());
        (rule.to_string(), scope.unwrap_or_else(|| "everything".to_owned()))
    });
    ConfigState {
        namespace: object.namespace.to_string(),
        shard: object.name.to_string(),
        ring: draft.ring.as_deref().map(str::to_owned),
        generation: object.generation,
        ready: pods.iter().filter(|pod| pod.is_ready).count(),
        in_force: in_force(draft, &pods, rings),
        generations: generations(draft, &pods, rings),
        owns: owns.collect(),
        pods: pods.len(),
        proxies,
    }
}

/// The number of pods that have what the present spec wants, by their Leases.
fn in_force(draft: &ShardingDraft, pods: &[&FoundPod], rings: &[RingState]) -> Option<usize> {
    let object = &draft.config.object;
    draft.ring.as_deref().filter(|_| draft.waits)?;
    let is_in_force = states(draft, pods, rings)
        .filter(|state| state.state == State::Settled && state.generation == object.generation);
    Some(is_in_force.count())
}

/// The numbers of the spec by which pods claim in their Leases, each with the number of pods.
fn generations(
    draft: &ShardingDraft,
    pods: &[&FoundPod],
    rings: &[RingState],
) -> BTreeMap<i64, usize> {
    let mut generations = BTreeMap::new();
    for generation in states(draft, pods, rings).filter_map(|state| state.generation) {
        *generations.entry(generation).or_default() += 1;
    }
    generations
}

/// The states of some pods of a config in their rings.
fn states<'r>(
    draft: &ShardingDraft,
    pods: &[&FoundPod],
    rings: &'r [RingState],
) -> impl Iterator<Item = &'r PodState> {
    let uids: BTreeSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
    let namespace = draft.config.object.namespace.clone();
    let of_namespace = rings.iter().filter(move |ring| *ring.namespace == *namespace);
    let states = of_namespace.flat_map(|ring| &ring.shards).flat_map(|shard| &shard.pods);
    states.filter(move |state| uids.contains(&state.uid))
}
