//! Roots, and the configs of the shards that they draw.
//!
//! Hides which facts of pods and Leases count for the children of a root. Does not know which child gets
//! what (`policy::roots`).

mod counts;
mod targets;
mod write;

use std::collections::BTreeMap;

use self::targets::Target;
pub(super) use self::{
    counts::Counts,
    targets::Targets,
    write::{Release, Writes, as_found, own, set_spec},
};
use super::{
    leases::Leases,
    observed::{ChosenPod, namespace},
    problem::{About, Problem},
    verdict::{READY, Verdict},
};
use crate::{
    configs::{ConfigFacts, Configs, RootOf, key, name},
    workload::FoundTarget,
};
use ctrlmesh_api::{TargetKind, keys};
use ctrlmesh_policy::{
    Draft, NamespaceLabels, NotChosen, object_of,
    roots::{Blocked, Child, Root, Shard, Shards, Situation, Step, step},
};

/// The reason for which it is not ready while objects are not counted.
const UNCOUNTED: &str = "Uncounted";
/// Most names in a message.
const MOST_NAMED: usize = 5;

/// The roots, each with the next step of its children, by their keys.
#[derive(Default)]
pub(super) struct Roots<'m>(BTreeMap<&'m str, RootFacts<'m>>);

/// A root, and its children as they are found.
struct RootFacts<'m> {
    root: &'m Root,
    children: BTreeMap<String, &'m ConfigFacts>,
    /// The shards that the root needs now. `None` if its replicas are not known, or are 0.
    shards: Option<Shards>,
    target: Target,
    step: Step,
    /// The injected pods of the StatefulSet that no shard has.
    surplus: Vec<String>,
    /// The reason why its objects are not counted.
    uncounted: Option<String>,
}

impl<'m> Roots<'m> {
    /// The roots among the configs, with the pods that go by their children.
    pub(super) fn of(
        configs: &'m Configs,
        chosen: &[ChosenPod<'m>],
        leases: &Leases,
        (counts, targets): (&Counts, &Targets),
        namespaces: Option<&NamespaceLabels>,
    ) -> Self {
        let mut pods: BTreeMap<String, Vec<&ChosenPod<'m>>> = BTreeMap::new();
        for one in chosen {
            if let Ok(config) = one.config {
                let at = key(namespace(one.key), &config.config.object.name);
                pods.entry(at).or_default().push(one);
            }
        }
        let facts = |(at, root): (&'m str, &'m Root)| {
            let wanted = root.possible_shards().into_iter();
            let wanted: Vec<_> = wanted.map(|shard| root.name(shard)).collect();
            let of_namespace = configs.facts_of(namespace(at));
            let named = of_namespace.map(|config| (object_of(&config.checked), config));
            let children: BTreeMap<_, _> = named
                .filter(|(object, config)| {
                    is_own(config, root) || wanted.iter().any(|name| **name == *object.name)
                })
                .map(|(object, config)| (object.name.to_string(), config))
                .collect();
            let found = children.iter().map(|(name, config)| {
                let pods = pods.get(&key(namespace(at), name)).map(Vec::as_slice);
                (name.clone(), child(root, config, pods.unwrap_or_default(), leases))
            });
            let found: BTreeMap<String, Child> = found.collect();
            let of_namespace = chosen.iter().filter(|one| namespace(one.key) == namespace(at));
            let with_pods = of_namespace.filter_map(|one| shard_of(root, one)).collect();
            let own = found.iter().filter(|(_, child)| child.is_own);
            let with_child = own.filter_map(|(name, _)| root.shard_named(name)).collect();
            let size = targets.size(at, root);
            let shards = size.map(|size| root.shards(size, &with_pods, &with_child));
            let (fenced, is_settled) = (counts.fenced(root), targets.is_settled(at, root));
            let step = counts.with_load(at, root, namespaces, |load| {
                step(&fenced, &found, &Situation { shards: shards.clone(), is_settled, load })
            });
            let surplus = shards.as_ref().map(|shards| surplus(at, root, shards, chosen));
            let (surplus, uncounted) = (surplus.unwrap_or_default(), counts.problem(root));
            let target = targets.of(at, root);
            (at, RootFacts { root, children, shards, target, step, surplus, uncounted })
        };
        Self(all(configs).map(facts).collect())
    }

    /// The writes of children that are due.
    pub(super) fn due(&self) -> Vec<(String, Writes)> {
        let due = self.0.iter().filter(|(_, facts)| !facts.step.phases.is_empty());
        let write = |(at, facts): (&&str, &RootFacts<'_>)| {
            let writes = Writes::new(facts.root, &facts.children, &facts.step.phases);
            ((*at).to_owned(), writes)
        };
        due.map(write).collect()
    }

    /// The verdict about a root, and the names of its children.
    pub(super) fn verdict(&self, key: &str) -> (Verdict, Vec<String>) {
        let Some(facts) = self.0.get(key) else { return (Verdict::Unknown, Vec::new()) };
        let RootFacts { root, children, step, surplus, .. } = facts;
        let shards = facts.shards.iter().flatten().map(|shard| root.name(*shard));
        let is_there = |name: &String| {
            children.get(name).is_some_and(|config| is_own(config, root) && !root.is_disabled)
        };
        let names = shards.filter(is_there).collect();
        let verdict = match facts.trouble() {
            Some((reason, message)) => Verdict::No(reason, message),
            None if !step.phases.is_empty() => {
                Verdict::No("Progressing", "its children are being written".to_owned())
            }
            None if root.is_disabled => {
                Verdict::No("Disabled", "spec.root.disable is true: it has no children".to_owned())
            }
            None if !surplus.is_empty() => Verdict::No("Surplus", beyond(surplus)),
            None => Verdict::Yes("LaidOut", facts.warning().unwrap_or_default()),
        };
        (verdict, names)
    }

    /// The roots about which there is something to report: what takes its time is nothing yet.
    pub(super) fn problems(&self) -> Vec<Problem<'m>> {
        let problems = |(at, facts): (&&'m str, &RootFacts<'m>)| {
            let uid = facts.root.object.uid.as_deref().unwrap_or_default();
            let (reason, message) = facts.trouble()?;
            let takes_time = match facts.step.holds.first() {
                Some(Blocked::Uncounted(_)) => facts.uncounted.is_none(),
                hold => {
                    matches!(
                        hold,
                        Some(Blocked::Opening(_) | Blocked::Claimed(_) | Blocked::Settling(_))
                    )
                }
            };
            (!takes_time).then_some(Problem {
                about: About::Config(READY),
                key: at,
                uid,
                reason,
                message,
            })
        };
        self.0.iter().filter_map(problems).collect()
    }
}

impl RootFacts<'_> {
    /// The reason why the shards are not as the root says, and the message.
    fn trouble(&self) -> Option<(&'static str, String)> {
        let uncounted = self.uncounted.clone().map(|why| (UNCOUNTED, why));
        match self.step.holds.first() {
            Some(Blocked::Uncounted(_)) if uncounted.is_some() => uncounted,
            Some(Blocked::Idle(_)) | None => {
                let without_pods = self.without_pods();
                let hold = self.step.holds.first().map(|hold| (reason(hold), self.message(hold)));
                without_pods.or(hold).or(uncounted)
            }
            Some(hold) => Some((reason(hold), self.message(hold))),
        }
    }

    /// The reason why there are no pods to shard. `None` if there are, or it is not known yet.
    fn without_pods(&self) -> Option<(&'static str, String)> {
        let (at, target) = (&self.root.object.namespace, &self.root.target);
        let kind = target.kind.as_str();
        if self.root.is_disabled {
            return None;
        }
        match &self.target {
            Target::Unknown(why) if self.shards.is_none() => {
                let why = why.as_deref().unwrap_or("it was not read yet");
                let message = format!(
                    "the replicas of {kind} {at}/{}, by which there are shards, are not known: {why}",
                    target.name
                );
                Some(("TargetUnknown", message))
            }
            Target::Unknown(_) => None,
            Target::Found(FoundTarget::There(workload)) => (workload.replicas == 0).then(|| {
                let message = format!(
                    "{kind} {at}/{} has 0 replicas, so its shards stay as they are: scale it up",
                    target.name
                );
                ("NoReplicas", message)
            }),
            Target::Found(found) => Some(("NoTarget", found.problem(at, target)?)),
        }
    }

    /// A warning about the workload.
    fn warning(&self) -> Option<String> {
        match &self.target {
            Target::Found(found) => found.warning(&self.root.target),
            Target::Unknown(_) => None,
        }
    }

    fn message(&self, hold: &Blocked) -> String {
        message(hold, self.root.target.kind.as_str())
    }
}

/// The shard of a root that a pod is of, by its label or by its ordinal.
fn shard_of(root: &Root, one: &ChosenPod<'_>) -> Option<Shard> {
    match root.target.kind {
        TargetKind::StatefulSet => root.shard_of(name(one.key)),
        TargetKind::Deployment => root.shard_named(one.pod.labels.as_ref()?.get(keys::SHARD)?),
    }
}

/// The roots among the configs, by their keys.
pub(super) fn all(configs: &Configs) -> impl Iterator<Item = (&str, &Root)> {
    configs.all().filter_map(|(at, config)| match &config.checked {
        Ok(Draft::Root(draft)) if !config.is_going => Some((at, &draft.root)),
        _ => None,
    })
}

/// The pods of a root's StatefulSet that have no shard.
fn surplus(key: &str, root: &Root, shards: &Shards, chosen: &[ChosenPod<'_>]) -> Vec<String> {
    let of_namespace = chosen.iter().filter(|one| namespace(one.key) == namespace(key));
    let lone = of_namespace.filter(|one| matches!(one.config, Err(NotChosen::None { .. })));
    let beyond = lone.map(|one| name(one.key)).filter(|pod| root.is_beyond(pod, shards));
    beyond.map(str::to_owned).collect()
}

fn beyond(pods: &[String]) -> String {
    format!(
        "pod {} is in no shard: scale the StatefulSet down, or give the root more shards or more pods of \
         each",
        named(pods)
    )
}

/// Whether a config is a child of a root.
fn is_own(config: &ConfigFacts, root: &Root) -> bool {
    config.child.as_ref().is_some_and(|child| child.is_of(&root.object))
}

fn child(root: &Root, config: &ConfigFacts, pods: &[&ChosenPod<'_>], leases: &Leases) -> Child {
    let object = object_of(&config.checked);
    let named = |one: &&&ChosenPod<'_>| name(one.key).to_owned();
    let is_opening =
        |one: &&&ChosenPod<'_>| !leases.has_claimed(&object.namespace, one.pod, object);
    // One that no one owns is written again.
    let owned = config.child.as_ref().filter(|child| matches!(child.root, RootOf::Owner(_)));
    Child {
        spec: owned.and_then(|child| child.spec.clone()),
        partition: config.child.as_ref().and_then(|child| child.partition.clone()),
        is_own: is_own(config, root),
        is_ready: pods.iter().any(|one| one.pod.is_ready),
        opening: pods.iter().filter(is_opening).map(|one| named(&one)).collect(),
        pods: pods.iter().map(|one| named(&one)).collect(),
        is_claimed: leases.is_claimed(object),
        is_going: config.is_going,
    }
}

fn reason(hold: &Blocked) -> &'static str {
    match hold {
        Blocked::Foreign(_) => "Foreign",
        Blocked::Uncounted(_) => UNCOUNTED,
        Blocked::Pods(_) => "PodsWouldMove",
        Blocked::NotReady(_) => "NotReady",
        Blocked::Settling(_) => "Settling",
        Blocked::Opening(_) => "Opening",
        Blocked::Claimed(_) => "Claimed",
        Blocked::Idle(_) => "NoReadyPod",
    }
}

fn message(hold: &Blocked, kind: &str) -> String {
    match hold {
        Blocked::Idle(names) => format!(
            "no pod of {} is ready, so no one handles its objects: scale the {kind}, or see why its \
             pods are not ready",
            named(names)
        ),
        Blocked::Settling(names) => format!(
            "{} gets a part of what others have once the replicas of the {kind} have not changed for 10 s",
            named(names)
        ),
        Blocked::Uncounted(names) => format!(
            "the objects are not counted yet, by whose number {} gets a part of what others have",
            named(names)
        ),
        Blocked::Foreign(names) => format!(
            "ShardingConfig {} has the name of a child and is not its own, so nothing is written: delete \
             it, or give the root another prefix",
            named(names)
        ),
        Blocked::Pods(pods) => format!(
            "pod {} would be of another shard while it runs, so nothing is written: change the root \
             back, or scale the {kind} to 0 first",
            named(pods)
        ),
        Blocked::NotReady(names) => format!(
            "no pod of {} is ready, so it is not given what others have: scale the {kind}, or see \
             why its pods are not ready",
            named(names)
        ),
        Blocked::Opening(pods) => format!(
            "pod {} has not claimed yet what it was given: see `ctrlmesh handover`",
            named(pods)
        ),
        Blocked::Claimed(names) => format!(
            "a pod of {} claims what it had, so it is not deleted yet: see `ctrlmesh handover`",
            named(names)
        ),
    }
}

/// The first names, and how many more there are.
fn named(names: &[String]) -> String {
    let first = names.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST_NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
