//! The manager's metrics, declared once. A golden file holds their table.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Buckets in seconds: a review is a function, and its caller gives up after five seconds.
const REVIEW_BUCKETS: [f64; 8] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.5, 5.0];

/// The results of an attempt.
const OK: &str = "ok";
const FAILED: &str = "failed";

/// The result for an object that was to get the labels of its namespace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stamped {
    Ok,
    Failed,
    /// It has a label with another value, which is someone else's.
    Foreign,
}

/// Names and values of labels whose values are known when we are compiled.
pub(super) type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The metrics of a replica.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) reviews: Family<Labels<1>, Counter>,
    pub(super) review_duration: Histogram,
    pub(super) config_reviews: Family<Labels<1>, Counter>,
    pub(super) config_review_duration: Histogram,
    pub(super) leaves: Family<Labels<1>, Counter>,
    pub(super) writes: Family<Labels<2>, Counter>,
    pub(super) counts: Family<Labels<1>, Counter>,
    pub(super) stamps: Family<Labels<1>, Counter>,
    pub(super) is_leader: Gauge,
    pub(super) injected_pods: Gauge,
    pub(super) pods_left_out: Gauge,
    pub(super) pods_without_next_root: Gauge,
    pub(super) overlapping_configs: Gauge,
    pub(super) uncovered_rings: Gauge,
    pub(super) not_after: Family<Labels<1>, Gauge<f64, AtomicU64>>,
    pub(super) connections: Gauge,
    pub(super) panics: Counter,
}

impl Metrics {
    /// The metrics and the registry that prints them.
    pub(super) fn new() -> (Self, Registry) {
        let metrics = Self {
            reviews: Family::default(),
            review_duration: Histogram::new(REVIEW_BUCKETS),
            config_reviews: Family::default(),
            config_review_duration: Histogram::new(REVIEW_BUCKETS),
            leaves: Family::default(),
            writes: Family::default(),
            counts: Family::default(),
            stamps: Family::default(),
            is_leader: Gauge::default(),
            injected_pods: Gauge::default(),
            pods_left_out: Gauge::default(),
            pods_without_next_root: Gauge::default(),
            overlapping_configs: Gauge::default(),
            uncovered_rings: Gauge::default(),
            not_after: Family::default(),
            connections: Gauge::default(),
            panics: Counter::default(),
        };
        let mut all = Registry::with_prefix("ctrlmesh");
        all.register("panics", "Tasks that panicked", metrics.panics.clone());
        let mine = all.sub_registry_with_prefix("manager");
        mine.register("reviews", "Reviews of pods, by verdict", metrics.reviews.clone());
        mine.register_with_unit(
            "review_duration",
            "Time from the whole review to its answer",
            Unit::Seconds,
            metrics.review_duration.clone(),
        );
        let configs = "Reviews of ShardingConfigs, by verdict";
        mine.register("config_reviews", configs, metrics.config_reviews.clone());
        mine.register_with_unit(
            "config_review_duration",
            "Time from the whole review of a ShardingConfig to its answer",
            Unit::Seconds,
            metrics.config_review_duration.clone(),
        );
        mine.register("leaves", "Requests for a leaf, by result", metrics.leaves.clone());
        mine.register("writes", "Objects written, by kind and result", metrics.writes.clone());
        drop(metrics.counts.get_or_create(&[("result", OK)]));
        mine.register("counts", "Counts of objects, by result", metrics.counts.clone());
        drop(metrics.stamps.get_or_create(&[("result", OK)]));
        let stamps = "Objects that were to get the labels of their namespace, by result";
        mine.register("stamps", stamps, metrics.stamps.clone());
        mine.register("leader", "Whether this replica leads", metrics.is_leader.clone());
        metrics.register_pods(mine);
        let overlaps =
            "ShardingConfigs that own what another of their ring owns, as the leader sees them";
        mine.register("overlapping_configs", overlaps, metrics.overlapping_configs.clone());
        let gaps = "Rings that leave objects to no shard, as the leader sees them";
        mine.register("uncovered_rings", gaps, metrics.uncovered_rings.clone());
        mine.register_with_unit(
            "not_after",
            "Ends of certificates, as seconds since 1970",
            Unit::Seconds,
            metrics.not_after.clone(),
        );
        mine.register("connections", "Connections open now", metrics.connections.clone());
        (metrics, all)
    }

    fn register_pods(&self, mine: &mut Registry) {
        let pods = "Injected pods that have not ended, as the leader sees them";
        mine.register("injected_pods", pods, self.injected_pods.clone());
        let pods = "Pods that a config selects and that have no proxy, as the leader sees them";
        mine.register("pods_left_out", pods, self.pods_left_out.clone());
        mine.register(
            "pods_without_next_root",
            "Injected pods that keep the next root from signing: a container started too early",
            self.pods_without_next_root.clone(),
        );
    }

    /// Counts a count of a resource's objects.
    pub(super) fn counted(&self, is_ok: bool) {
        let result = if is_ok { OK } else { FAILED };
        self.counts.get_or_create_owned(&[("result", result)]).inc();
    }

    /// Counts an object that got the labels of its namespace, or not.
    pub(super) fn stamped(&self, result: Stamped) {
        let result = match result {
            Stamped::Ok => OK,
            Stamped::Failed => FAILED,
            Stamped::Foreign => "foreign",
        };
        self.stamps.get_or_create_owned(&[("result", result)]).inc();
    }

    /// Counts a write of an object of this kind.
    pub(super) fn written(&self, kind: &'static str, is_ok: bool) {
        let result = if is_ok { OK } else { FAILED };
        self.writes.get_or_create_owned(&[("kind", kind), ("result", result)]).inc();
    }
}
