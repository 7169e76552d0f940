//! The condition `LocksRenamed` of a ShardingConfig: whether its shard leads, by what its pods say of
//! their elections.
//!
//! Hides after how long a lock counts as held by no one. Does not know how a pod says it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::reconcile::verdict::Verdict;
use ctrlmesh_api::lease::Elections;
use ctrlmesh_policy::ShardingDraft;

pub(super) const LOCKS_RENAMED: &str = "LocksRenamed";
/// The time without a holder after which a shard counts as without a leader: electors take over a lock
/// that was lost within a quarter of a minute, and pods say for a minute that they held one.
const UNHELD: Duration = Duration::from_secs(30);

/// The elections of the pods of a shard.
#[derive(Default)]
pub(super) struct ShardElections<'a> {
    /// The first pod that cannot lead, and why.
    problem: Option<(&'a str, &'static str, String)>,
    held: BTreeSet<&'a str>,
    has_pods: bool,
    /// Whether a pod does not say, as an older proxy does not.
    has_unsaid: bool,
    /// The first lock that no one holds, and whether no one has for long.
    unheld: Option<(String, bool)>,
}

/// The locks that no one holds, and since when: by namespace, shard and lock.
#[derive(Debug, Default)]
pub(in crate::reconcile) struct Unheld(BTreeMap<[String; 3], Instant>);

impl Unheld {
    /// The same without those that were not seen in the round that begins now.
    pub(super) fn begin(&mut self) -> Self {
        std::mem::take(self)
    }
}

impl<'a> ShardElections<'a> {
    /// Adds a pod; `None` if it does not say.
    pub(super) fn add(&mut self, pod: &'a str, said: Option<&'a Elections>) {
        self.has_pods = true;
        let Some(said) = said else {
            self.has_unsaid = true;
            return;
        };
        self.held.extend(said.held.iter().map(String::as_str));
        if let Some((reason, message)) = said.problem()
            && self.problem.as_ref().is_none_or(|(first, ..)| pod < *first)
        {
            self.problem = Some((pod, reason, message));
        }
    }

    /// Notes which lock no one holds. `before` are those of the round before.
    pub(super) fn see(
        &mut self,
        at: [&str; 2],
        draft: &ShardingDraft,
        before: &Unheld,
        unheld: &mut Unheld,
        now: Instant,
    ) {
        if !self.has_pods || self.has_unsaid {
            return;
        }
        for lock in draft.lock_names().filter(|lock| !self.held.contains(&**lock)) {
            let [namespace, shard] = at.map(str::to_owned);
            let key = [namespace, shard, lock.clone()];
            let since = before.0.get(&key).copied().unwrap_or(now);
            unheld.0.insert(key, since);
            let is_long = since + UNHELD <= now;
            if self.unheld.as_ref().is_none_or(|(_, was_long)| is_long && !was_long) {
                self.unheld = Some((lock, is_long));
            }
        }
    }

    /// Whether the shard leads. `has_locks` says whether its config names any.
    pub(super) fn verdict(&self, has_locks: bool) -> Verdict {
        match (&self.problem, &self.unheld) {
            (Some((pod, reason, message)), _) => {
                Verdict::No(reason, format!("pod {pod}: {message}"))
            }
            (None, _) if !has_locks => Verdict::None,
            (None, Some((lock, true))) => Verdict::No(
                "NotHeld",
                format!(
                    "no pod of the shard has held the lock {lock} for half a minute, so the shard has no \
                     leader: see the controller's log, and name the lock that it uses in spec.controller"
                ),
            ),
            (None, Some((_, false))) => Verdict::Unknown,
            (None, None) if self.has_pods && !self.has_unsaid => {
                Verdict::Yes("Held", String::new())
            }
            (None, None) => Verdict::Unknown,
        }
    }
}
