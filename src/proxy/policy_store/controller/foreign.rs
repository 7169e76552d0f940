//! The foreign writes of the pod's controller: those into namespaces of other shards.
//!
//! Hides for how long one is notified, and how many. Does not know how one is judged.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use ctrlmesh_api as api;
use ctrlmesh_api::lease::ForeignWrites as Said;
use ctrlmesh_policy::{Foreign, Verdict};

/// The time for which a write is notified.
const RECENT: Duration = Duration::from_secs(600);
/// Most writes that are told apart, and most that are told of each verdict.
const MOST: usize = 64;
const MOST_TOLD: usize = 16;

/// The foreign writes of a pod that were refused, or have passed with a warning.
#[derive(Debug, Default)]
pub(crate) struct ForeignWrites {
    seen: Mutex<BTreeMap<Foreign, Seen>>,
    /// The signal that one was seen that is not told yet.
    is_new: Arc<Notify>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    verdict: Verdict,
    /// The last one, for people.
    example: String,
}

impl ForeignWrites {
    /// Records a write. Returns whether none like it was seen of late.
    pub(crate) fn add(&self, foreign: Foreign, verdict: Verdict, example: String) -> bool {
        let now = Instant::now();
        let mut seen = self.seen.lock();
        seen.retain(|_, seen| is_recent(seen.at, now));
        if seen.len() >= MOST && !seen.contains_key(&foreign) {
            return false;
        }
        let before = seen.insert(foreign, Seen { at: now, verdict, example });
        let is_new = before.is_none_or(|before| before.verdict != verdict);
        if is_new {
            self.is_new.notify_one();
        }
        is_new
    }

    /// Waits until one is seen that is not told yet.
    pub(crate) async fn is_new(&self) {
        self.is_new.notified().await;
    }

    /// What the pod's Lease tells.
    pub(crate) fn said(&self) -> Said {
        let now = Instant::now();
        let seen = self.seen.lock();
        let recent = || seen.iter().filter(|(_, seen)| is_recent(seen.at, now));
        let of = |verdict: Verdict| {
            let of = recent().filter(move |(_, seen)| seen.verdict == verdict);
            api::Except::joined(of.map(|(foreign, _)| foreign.except()).take(MOST_TOLD))
        };
        let worst = recent().min_by_key(|(_, seen)| seen.verdict != Verdict::Refused);
        Said {
            refused: of(Verdict::Refused),
            warned: of(Verdict::Warned),
            example: worst.map(|(_, seen)| seen.example.clone()).unwrap_or_default(),
        }
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < RECENT
}

#[cfg(test)]
mod tests {
    use super::*;
    use ctrlmesh_policy::GroupResource;

    fn foreign(namespace: &str) -> Foreign {
        let resource = GroupResource::new("", "secrets");
        Foreign { resource, namespace: namespace.into(), verb: "delete" }
    }

    #[test]
    fn bad_foreign_writes_are_told_by_the_entry_that_lets_them_pass() {
        let writes = ForeignWrites::default();
        assert_eq!(writes.said(), Said::default());
        assert!(writes.add(foreign("b"), Verdict::Warned, "one in b".into()));
        assert!(!writes.add(foreign("b"), Verdict::Warned, "another in b".into()));
        assert_eq!(writes.said().example, "another in b");
        assert!(writes.add(foreign("c"), Verdict::Refused, "one in c".into()));
        let said = writes.said();
        assert_eq!(said.example, "one in c", "what is refused counts more");
        let texts = |all: &[api::Except]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let entry = |namespace: &str| {
            format!(
                r#"{{apiGroups: [""], resources: [secrets], namespaces: [{namespace}], verbs: [delete]}}"#
            )
        };
        assert_eq!(texts(&said.refused), [entry("c")]);
        assert_eq!(texts(&said.warned), [entry("b")]);
        assert!(
            writes.add(foreign("b"), Verdict::Refused, "one in b".into()),
            "the mode is another"
        );
    }

    #[test]
    fn bad_client_that_writes_into_every_namespace_fills_no_memory() {
        let writes = ForeignWrites::default();
        for at in 0..1000 {
            writes.add(foreign(&format!("n{at}")), Verdict::Refused, String::new());
        }
        assert_eq!(writes.seen.lock().len(), MOST);
        assert_eq!(
            writes.said().refused.iter().map(|entry| entry.namespaces.len()).sum::<usize>(),
            MOST_TOLD
        );
    }
}
