//! Roots, and the configs of the shards that they draw.
//!
//! Hides which facts of pods and Leases count for the children of a root. Does not know which child gets
//! what (`policy::roots`).

mod counts;
mod write;

use std::collections::BTreeMap;

pub(super) use self::{
    counts::Counts,
    write::{Release, Writes, as_found, own, set_spec},
};
use super::{
    found::{ChosenPod, namespace},
    leases::Leases,
    subject::{About, Subject},
    verdict::{READY, Verdict},
    waiting::Lacking,
};
use crate::{
    manager::configs::{ConfigFacts, Configs, RootOf, key, name},
    policy::{
        Draft, NamespaceLabels, NotChosen, object_of,
        roots::{Child, Hold, Root, Step, step},
    },
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
        counts: &Counts,
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
            let wanted: Vec<_> = root.shards().map(|shard| root.name(shard)).collect();
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
            let found = found.collect();
            let fenced = counts.fenced(root);
            let step = counts.with_load(at, root, namespaces, |load| step(&fenced, &found, load));
            let (surplus, uncounted) = (surplus(at, root, chosen), counts.problem(root));
            (at, RootFacts { root, children, step, surplus, uncounted })
        };
        Self(all(configs).map(facts).collect())
    }

    /// The writes of children that are due.
    pub(super) fn due(&self) -> Vec<(Subject, Writes)> {
        let due = self.0.iter().filter(|(_, facts)| !facts.step.phases.is_empty());
        let write = |(at, facts): (&&str, &RootFacts<'_>)| {
            let writes = Writes::new(facts.root, &facts.children, &facts.step.phases);
            (Subject::Children((*at).to_owned()), writes)
        };
        due.map(write).collect()
    }

    /// The verdict about a root, and the names of its children.
    pub(super) fn verdict(&self, key: &str) -> (Verdict, Vec<String>) {
        let Some(facts) = self.0.get(key) else { return (Verdict::Unknown, Vec::new()) };
        let RootFacts { root, children, step, surplus, .. } = facts;
        let shards = root.shards().map(|shard| root.name(shard));
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
            None => Verdict::Yes("LaidOut", String::new()),
        };
        (verdict, names)
    }

    /// The roots about which there is something to report: what takes its time is nothing yet.
    pub(super) fn lacking(&self) -> Vec<Lacking<'m>> {
        let lacking = |(at, facts): (&&'m str, &RootFacts<'m>)| {
            let uid = facts.root.object.uid.as_deref().unwrap_or_default();
            let (reason, message) = facts.trouble()?;
            let takes_time = match facts.step.holds.first() {
                Some(Hold::Uncounted(_)) => facts.uncounted.is_none(),
                hold => matches!(hold, Some(Hold::Opening(_) | Hold::Claimed(_))),
            };
            (!takes_time).then_some(Lacking {
                about: About::Config(READY),
                key: at,
                uid,
                reason,
                message,
            })
        };
        self.0.iter().filter_map(lacking).collect()
    }
}

impl RootFacts<'_> {
    /// The reason why the shards are not as the root says, and the message.
    fn trouble(&self) -> Option<(&'static str, String)> {
        let uncounted = self.uncounted.clone().map(|why| (UNCOUNTED, why));
        match self.step.holds.first() {
            Some(Hold::Uncounted(_)) if uncounted.is_some() => uncounted,
            Some(hold) => Some((reason(hold), message(hold))),
            None => uncounted,
        }
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
fn surplus(key: &str, root: &Root, chosen: &[ChosenPod<'_>]) -> Vec<String> {
    let of_namespace = chosen.iter().filter(|one| namespace(one.key) == namespace(key));
    let lone = of_namespace.filter(|one| matches!(one.config, Err(NotChosen::None { .. })));
    lone.map(|one| name(one.key)).filter(|pod| root.is_beyond(pod)).map(str::to_owned).collect()
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
    // One that nobody owns is written again.
    let owned = config.child.as_ref().filter(|child| matches!(child.root, RootOf::Owner(_)));
    Child {
        spec: owned.and_then(|child| child.spec.clone()),
        lot: config.child.as_ref().and_then(|child| child.lot.clone()),
        is_own: is_own(config, root),
        is_ready: pods.iter().any(|one| one.pod.is_ready),
        opening: pods.iter().filter(is_opening).map(|one| named(&one)).collect(),
        pods: pods.iter().map(|one| named(&one)).collect(),
        is_claimed: leases.is_claimed(object),
        is_going: config.is_going,
    }
}

fn reason(hold: &Hold) -> &'static str {
    match hold {
        Hold::Foreign(_) => "Foreign",
        Hold::Uncounted(_) => UNCOUNTED,
        Hold::Pods(_) => "PodsWouldMove",
        Hold::NotReady(_) => "NotReady",
        Hold::Opening(_) => "Opening",
        Hold::Claimed(_) => "Claimed",
        Hold::Idle(_) => "NoReadyPod",
    }
}

fn message(hold: &Hold) -> String {
    match hold {
        Hold::Idle(names) => format!(
            "no pod of {} is ready, so nobody handles its objects: scale the StatefulSet, or see why its \
             pods are not ready",
            named(names)
        ),
        Hold::Uncounted(names) => format!(
            "the objects are not counted yet, by whose number {} gets a part of what others have",
            named(names)
        ),
        Hold::Foreign(names) => format!(
            "ShardingConfig {} has the name of a child and is not its own, so nothing is written: delete \
             it, or give the root another prefix",
            named(names)
        ),
        Hold::Pods(pods) => format!(
            "pod {} would be of another shard while it runs, so nothing is written: change the root \
             back, or scale the StatefulSet to 0 first",
            named(pods)
        ),
        Hold::NotReady(names) => format!(
            "no pod of {} is ready, so it is not given what others have: scale the StatefulSet, or see \
             why its pods are not ready",
            named(names)
        ),
        Hold::Opening(pods) => format!(
            "pod {} has not claimed yet what it was given: see `ctrlmesh handover`",
            named(pods)
        ),
        Hold::Claimed(names) => format!(
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
