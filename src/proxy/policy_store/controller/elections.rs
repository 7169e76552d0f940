//! The elections of the pod's controller, as its requests show them.
//!
//! Hides after how long a lock counts as not held, and which facts are reported of a lock. Does not know how a
//! request is found to be about a lock.

use std::{
    collections::BTreeMap,
    sync::OnceLock,
    time::{Duration, Instant},
};

use http::StatusCode;
use parking_lot::Mutex;

use ctrlmesh_api::lease::Elections as Said;
use ctrlmesh_policy::{LockName, Locks};

/// The time for which a request counts: electors renew each few seconds.
const RECENT: Duration = Duration::from_secs(60);
/// The writes of an object within that time that show that it is renewed.
const RENEWALS: usize = 2;
/// Most objects that are remembered next to the locks, and most that are told.
const MOST: usize = 64;
const MOST_TOLD: usize = 3;

/// The elections of a pod.
#[derive(Debug, Default)]
pub(crate) struct Elections {
    /// The time of the first request.
    begun: OnceLock<Instant>,
    state: Mutex<ElectionState>,
}

#[derive(Debug, Default)]
struct ElectionState {
    /// By the name that the config gives the lock.
    locks: BTreeMap<String, SeenElections>,
    /// The objects that are written as locks are, and that no config names, by kind and name.
    others: BTreeMap<String, Vec<Instant>>,
}

/// The last requests about a lock.
#[derive(Clone, Copy, Debug)]
struct SeenElections {
    asked: Instant,
    held: Option<Instant>,
    forbidden: Option<Instant>,
}

impl Elections {
    /// Records that the controller sends requests.
    pub(crate) fn begin(&self) {
        self.begun.get_or_init(Instant::now);
    }

    /// Records the answer to a request about a lock. Who writes it holds it.
    pub(crate) fn answered(&self, lock: &LockName, is_write: bool, code: StatusCode) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let new = SeenElections { asked: now, held: None, forbidden: None };
        let seen = state.locks.entry(lock.to_string()).or_insert(new);
        seen.asked = now;
        match code {
            StatusCode::FORBIDDEN => seen.forbidden = Some(now),
            _ if is_write && code.is_success() => (seen.held, seen.forbidden) = (Some(now), None),
            _ => {}
        }
    }

    /// Records the write of an object that may be a lock, and that no config names.
    pub(crate) fn wrote_another(&self, object: String) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.others.retain(|_, writes| writes.iter().any(|at| is_recent(*at, now)));
        if state.others.len() >= MOST && !state.others.contains_key(&object) {
            return;
        }
        let writes = state.others.entry(object).or_default();
        writes.retain(|at| is_recent(*at, now));
        writes.truncate(RENEWALS);
        writes.push(now);
    }

    /// The state for the pod's Lease.
    pub(crate) fn said(&self) -> Said {
        let now = Instant::now();
        let state = self.state.lock();
        let of = |part: fn(&SeenElections) -> Option<Instant>| {
            let recent = state
                .locks
                .iter()
                .filter(move |(_, seen)| part(seen).is_some_and(|at| is_recent(at, now)));
            recent.map(|(lock, _)| lock.clone()).collect()
        };
        let others = state.others.iter().filter(|(_, writes)| {
            writes.iter().filter(|at| is_recent(**at, now)).count() >= RENEWALS
        });
        Said {
            held: of(|seen| seen.held),
            forbidden: of(|seen| seen.forbidden),
            unnamed: others.map(|(name, _)| name.clone()).take(MOST_TOLD).collect(),
            waits_for_restart: false,
        }
    }

    /// The reason why the shard may have no leader, as far as this pod shows it.
    pub(crate) fn problem(&self, locks: &Locks) -> Option<String> {
        if let Some((_, problem)) = self.said().problem() {
            return Some(problem);
        }
        let since = self.begun.get()?;
        let state = self.state.lock();
        let is_asked = |lock: &LockName| state.locks.contains_key(&lock.to_string());
        let mut missing = locks.names().filter(|lock| !is_asked(lock));
        let lock = missing.next().filter(|_| since.elapsed() >= RECENT)?;
        Some(format!(
            "the controller has not asked for the lock {lock} since it started: name the lock that it \
             uses in spec.controller, or leave this one out"
        ))
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(name: &str) -> LockName {
        LockName::new(name, "kube-system").unwrap()
    }

    fn locks(names: &[&str]) -> Locks {
        Locks::new(names.iter().map(|name| lock(name)), "blue", "ns").unwrap()
    }

    #[test]
    fn a_lock_is_held_by_who_writes_it() {
        let elections = Elections::default();
        elections.answered(&lock("op"), false, StatusCode::OK);
        elections.answered(&lock("op"), true, StatusCode::CONFLICT);
        assert_eq!(elections.said(), Said::default(), "it is another pod's");
        elections.answered(&lock("op"), true, StatusCode::OK);
        assert_eq!(elections.said().held, ["kube-system/op"]);
    }

    #[test]
    fn bad_lock_that_may_not_be_written() {
        let elections = Elections::default();
        elections.answered(&lock("op"), true, StatusCode::FORBIDDEN);
        elections.answered(&lock("op"), false, StatusCode::OK);
        let problem = elections.problem(&locks(&["op"])).unwrap();
        assert!(
            problem.contains("may not write the lock kube-system/op: `ctrlmesh doctor`"),
            "{problem}"
        );
        elections.answered(&lock("op"), true, StatusCode::CREATED);
        assert_eq!(elections.problem(&locks(&["op"])), None);
    }

    #[test]
    fn bad_lock_that_no_config_names() {
        let elections = Elections::default();
        elections.wrote_another("leases kube-system/op".to_owned());
        assert_eq!(elections.problem(&Locks::default()), None, "written once, it may be anything");
        elections.wrote_another("leases kube-system/op".to_owned());
        let problem = elections.problem(&Locks::default()).unwrap();
        assert!(problem.contains("leases kube-system/op"), "{problem}");
        for at in 0..1000 {
            elections.wrote_another(format!("leases ns/{at}"));
        }
        assert_eq!(elections.state.lock().others.len(), MOST);
        assert_eq!(elections.said().unnamed.len(), 1);
    }
}
