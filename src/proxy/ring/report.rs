//! The handover as `/readyz` and the metrics show it.
//!
//! Hides the words, and when a wait is long enough to be reported. Does not know what ends it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    metrics::{Awaited, Metrics},
    policy_store::SourceState,
};
use ctrlmesh_api::lease::PodLease;
use ctrlmesh_policy::{
    ByResource, Rule, Scope,
    ring::{Handover, Phase},
};

/// The time that a handover may take before `/readyz` says why.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most pods and resources that are named.
const MOST_NAMED: usize = 3;

/// The present handover of a pod.
pub(super) struct Report {
    metrics: Arc<Metrics>,
    phase: Option<Phase>,
    /// The time since when it is in this phase.
    since: Instant,
    /// The boundary that was wanted last, and since when it is not in force as a whole.
    wanted: Option<Arc<ByResource<Arc<Scope>>>>,
    moves_since: Option<Instant>,
}

/// The situation of a pod.
pub(super) struct Situation<'a> {
    /// The machine. `None` if the pod is in no ring, or leaves its own.
    pub(super) ring: Option<&'a Handover<Arc<Scope>>>,
    /// The number of requests under former policies.
    pub(super) requests: usize,
    /// The failure of the last call about Leases.
    pub(super) trouble: Option<&'a str>,
    /// Whether a policy is in force.
    pub(super) has_policy: bool,
    /// Whether all that the machine shows is.
    pub(super) is_in_force: bool,
}

impl Report {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        let since = Instant::now();
        Self { metrics, phase: None, since, wanted: None, moves_since: None }
    }

    /// Notes the boundary that is wanted now. A handover begins where it is another.
    pub(super) fn want(&mut self, wanted: &Arc<ByResource<Arc<Scope>>>) {
        if self.wanted.as_ref() != Some(wanted) {
            self.wanted = Some(Arc::clone(wanted));
            self.moves_since.get_or_insert_with(Instant::now);
        }
    }

    /// Notes that the pod is in no ring: nothing is handed over.
    pub(super) fn leave(&mut self) {
        (self.wanted, self.moves_since) = (None, None);
    }

    /// Shows where the pod stands: at once before the first policy, else after a while. Returns the
    /// state for `/readyz`.
    pub(super) fn see(&mut self, now: &Situation<'_>) -> SourceState {
        let phase = now.ring.map(Handover::phase);
        if phase != self.phase {
            tracing::debug!(?phase, "ring");
            (self.phase, self.since) = (phase, Instant::now());
        }
        let (Some(ring), Some(phase)) = (now.ring, phase) else {
            self.count(&[]);
            return SourceState::Current;
        };
        if phase == Phase::Open
            && now.is_in_force
            && let Some(since) = self.moves_since.take()
        {
            self.metrics.handover.observe(since.elapsed().as_secs_f64());
        }
        let in_the_way = if phase == Phase::Waiting { ring.in_the_way() } else { Vec::new() };
        let overlaps = ring.overlaps();
        let (_, lost) = ring.under_way();
        let requests = now.requests + lost;
        let (awaited, count) = match phase {
            Phase::Open => (Awaited::Lease, 0),
            Phase::Closing => (Awaited::Requests, requests.max(1)),
            Phase::Waiting if !in_the_way.is_empty() => (Awaited::Pods, in_the_way.len()),
            Phase::Waiting | Phase::Claiming => (Awaited::Lease, 1),
        };
        self.count(&[(awaited, count), (Awaited::Configs, overlaps.len())]);
        let is_long = self.since.elapsed() >= PATIENCE || !now.has_policy;
        if phase != Phase::Open && is_long {
            return SourceState::Awaited(match (now.trouble, awaited) {
                (Some(trouble), _) => {
                    format!("the pod's Lease is not kept, and the ring waits for it: {trouble}")
                }
                (None, Awaited::Requests) if requests == 0 => {
                    "watches of the boundary before are brought over, or their clients are not back"
                        .to_owned()
                }
                (None, Awaited::Requests) => {
                    format!("{requests} requests of the boundary before are under way")
                }
                (None, Awaited::Pods) => pods(&in_the_way),
                (None, _) => "the Leases of the ring are written and read".to_owned(),
            });
        }
        if overlaps.is_empty() { SourceState::Current } else { overlap(&overlaps) }
    }

    /// The time at which a wait is long.
    pub(super) fn next(&self) -> Instant {
        self.since + PATIENCE
    }

    fn count(&self, waits: &[(Awaited, usize)]) {
        for one in Awaited::ALL {
            let count =
                waits.iter().find(|(awaited, _)| *awaited == one).map_or(0, |(_, count)| *count);
            let gauge = self.metrics.handover_waiting.get_or_create(&[("for", one.into_str())]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

fn overlap(overlaps: &[(Rule, &str)]) -> SourceState {
    let named = overlaps.iter().map(|(rule, shard)| format!("{rule} of {shard}"));
    SourceState::Awaited(format!(
        "another ShardingConfig of the ring wants some of the same objects, and has them ({}): draw \
         the two apart",
        first_of(named)
    ))
}

fn pods(in_the_way: &[(&str, Option<&str>)]) -> String {
    let pods = in_the_way.iter().map(|(pod, shard)| {
        format!("{} of {}", PodLease::name_of(pod), shard.unwrap_or("no shard"))
    });
    let more = in_the_way.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(", {more} more") } else { String::new() };
    format!(
        "other pods have what this shard gains, by their Leases: {}{more}; delete the Lease of a pod \
         that is gone",
        first_of(pods)
    )
}

fn first_of(all: impl Iterator<Item = String>) -> String {
    all.take(MOST_NAMED).collect::<Vec<_>>().join(", ")
}
