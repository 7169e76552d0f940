//! The injected pods of a shard: how many there are, by what they say, and the condition `Ready`.
//!
//! Hides how they are summed up. Does not know how a config selects its pods, or how a pod's Lease is
//! found.

use std::collections::BTreeMap;

use super::reviews::ReviewedPods;
use crate::reconcile::{
    observed::PodFacts,
    verdict::{Missed, Verdict},
};
use ctrlmesh_api::{PodsOfGeneration, PodsStatus};
use ctrlmesh_policy::ShardingDraft;

/// The injected pods that a config selects.
#[derive(Clone, Debug, Default)]
pub(in crate::reconcile) struct SelectedPods<'a> {
    selected: u32,
    unready: Missed<'a>,
    ready: u32,
    /// The number of pods whose Leases claim by this number of the spec.
    generations: BTreeMap<i64, u32>,
    pub(super) reviewed: ReviewedPods<'a>,
}

impl<'a> SelectedPods<'a> {
    /// Adds a pod, whose Lease claims by this number of the spec. `None` if it has no Lease of the config.
    pub(in crate::reconcile) fn add(
        &mut self,
        name: &'a str,
        pod: &PodFacts,
        draft: &ShardingDraft,
        generation: Option<i64>,
    ) {
        self.selected += 1;
        match pod.is_ready {
            true => self.ready += 1,
            false => self.unready.add(name),
        }
        if let Some(generation) = generation {
            *self.generations.entry(generation).or_default() += 1;
        }
        if let Some(webhook) = &draft.webhook {
            self.reviewed.add(name, pod, webhook.port);
        }
    }

    pub(super) fn status(&self) -> PodsStatus {
        let of = |(generation, pods): (&i64, &u32)| PodsOfGeneration {
            generation: *generation,
            pods: *pods,
        };
        PodsStatus {
            selected: self.selected,
            ready: self.ready,
            generations: self.generations.iter().map(of).collect(),
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        if let Some(pods) = self.unready.named("pod") {
            return Verdict::No("PodsNotReady", format!("{pods} is not ready"));
        }
        match self.selected {
            0 => Verdict::No("NoPods", "spec.selector selects no injected pod".to_owned()),
            _ => Verdict::Yes("PodsReady", String::new()),
        }
    }
}
