//! The condition `RelatedResourcesLimited` of a ShardingConfig: whether its limits name all that its controller
//! watches and that belongs to limited objects.
//!
//! Hides how the words of several pods are told as one. Does not know how a pod says it.

use std::collections::{BTreeMap, BTreeSet};

use crate::reconcile::verdict::Verdict;
use ctrlmesh_api::lease::RelatedResources;

pub(super) const RELATED_RESOURCES_LIMITED: &str = "RelatedResourcesLimited";

/// The related resources of the pods of a shard.
#[derive(Default)]
pub(super) struct ShardRelated<'a> {
    /// By pod.
    said: BTreeMap<&'a str, &'a RelatedResources>,
    /// Whether a pod does not say, as an older proxy does not.
    has_unsaid: bool,
}

impl<'a> ShardRelated<'a> {
    /// Adds a pod; `None` if it does not say.
    pub(super) fn add(&mut self, pod: &'a str, said: Option<&'a RelatedResources>) {
        match said {
            Some(said) => drop(self.said.insert(pod, said)),
            None => self.has_unsaid = true,
        }
    }

    /// Whether all of them are limited.
    pub(super) fn verdict(&self) -> Verdict {
        let mut all = BTreeMap::new();
        let mut pods = BTreeSet::new();
        for (pod, said) in &self.said {
            for one in &said.resources {
                // The first pod's example, so that the message changes no more often than it must.
                all.entry((&one.group, &one.resource)).or_insert_with(|| one.clone());
                pods.insert(pod);
            }
        }
        let together = RelatedResources { resources: all.into_values().collect() };
        match (pods.first(), together.problem()) {
            (Some(pod), Some(problem)) => {
                Verdict::No("NotLimited", format!("pod {pod}: {problem}"))
            }
            _ if self.has_unsaid || self.said.is_empty() => Verdict::Unknown,
            _ => Verdict::Yes("Limited", String::new()),
        }
    }
}
