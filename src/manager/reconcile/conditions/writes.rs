//! The condition `WritesRefused` of a ShardingConfig: whether its pods have written into namespaces of
//! other shards of late, and were refused.
//!
//! Hides how the words of several pods are told as one. Does not know how a pod says it.

use std::collections::BTreeMap;

use crate::reconcile::verdict::Verdict;
use ctrlmesh_api::{Except, lease::ForeignWrites};

pub(super) const WRITES_REFUSED: &str = "WritesRefused";

/// The foreign writes of the pods of a shard.
#[derive(Default)]
pub(super) struct ShardWrites<'a> {
    /// By pod.
    said: BTreeMap<&'a str, &'a ForeignWrites>,
    /// Whether a pod does not say, as an older proxy does not.
    has_unsaid: bool,
}

impl<'a> ShardWrites<'a> {
    /// Adds a pod; `None` if it does not say.
    pub(super) fn add(&mut self, pod: &'a str, said: Option<&'a ForeignWrites>) {
        match said {
            Some(said) => drop(self.said.insert(pod, said)),
            None => self.has_unsaid = true,
        }
    }

    /// Whether writes were refused.
    pub(super) fn verdict(&self) -> Verdict {
        let have_written = || self.said.iter().filter(|(_, said)| said.problem().is_some());
        // The first by name, so that the message changes no more often than it must.
        let refused = have_written().find(|(_, said)| !said.refused.is_empty());
        let Some((pod, first)) = refused.or_else(|| have_written().next()) else {
            return match self.has_unsaid || self.said.is_empty() {
                true => Verdict::Unknown,
                false => Verdict::No("NoForeignWrites", String::new()),
            };
        };
        let all = |of: fn(&ForeignWrites) -> &Vec<Except>| {
            Except::joined(have_written().flat_map(|(_, said)| of(said)).cloned())
        };
        let together = ForeignWrites {
            refused: all(|said| &said.refused),
            warned: all(|said| &said.warned),
            example: first.example.clone(),
        };
        match together.problem() {
            None => Verdict::Unknown,
            Some((reason, message)) => {
                let message = format!("pod {pod}: {message}");
                match refused {
                    Some(_) => Verdict::Yes(reason, message),
                    None => Verdict::No(reason, message),
                }
            }
        }
    }
}
