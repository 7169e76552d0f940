//! The metrics, declared once. A golden file holds their table.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use arc_swap::ArcSwap;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use strum::IntoStaticStr;

use crate::policy::GroupResource;

/// Buckets in seconds: from a cache hit on the same node to a request that sits out a full minute.
const REQUEST_BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0];
const CONNECT_BUCKETS: [f64; 7] = [0.001, 0.0025, 0.005, 0.01, 0.05, 0.5, 5.0];

/// All metrics.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) requests: Family<RequestLabels, Counter>,
    pub(super) own_requests: Family<Labels<2>, Counter>,
    pub(super) request_duration: Family<Labels<2>, Histogram, fn() -> Histogram>,
    pub(super) refusals: Family<Labels<1>, Counter>,
    pub(super) connections: Family<Labels<1>, Gauge>,
    pub(super) closed_connections: Family<Labels<1>, Counter>,
    pub(super) streams: Family<Labels<1>, Gauge>,
    pub(super) stream_changes: Family<Labels<1>, Counter>,
    pub(super) pushdown: Family<Labels<1>, Counter>,
    pub(super) filtered_items: Family<FilterLabels, Counter>,
    pub(super) filter_memory: Gauge,
    pub(super) upload_memory: Gauge,
    pub(super) policy_epoch: Gauge<u64, AtomicU64>,
    pub(super) policy_rejected: Counter,
    pub(super) policy_age: Gauge<f64, AtomicU64>,
    pub(super) leaf_not_after: Gauge<f64, AtomicU64>,
    pub(super) upstream_connect: Histogram,
    pub(super) panics: Counter,
    /// The resources that policies have named so far.
    named: ArcSwap<BTreeSet<Arc<str>>>,
}

/// Names and values of labels whose values are known when we are compiled.
pub(super) type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The metrics, and the series of requests that one thread has counted: it finds them without
/// hashing their labels.
#[derive(Debug)]
pub(super) struct RequestCounts {
    pub(super) metrics: Arc<Metrics>,
    counted: RefCell<BTreeMap<RequestLabels, (Counter, Histogram)>>,
}

/// The kind of a listener, and of all that came through it: a metric label and log field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Leg {
    /// The leg from the controller to the API server.
    Outbound,
}

impl EncodeLabelValue for Leg {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.into_str().encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) leg: Leg,
    pub(super) verb: &'static str,
    pub(super) resource: ResourceLabel,
    pub(super) code_class: &'static str,
    pub(super) decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FilterLabels {
    pub(super) resource: ResourceLabel,
    pub(super) kept: &'static str,
}

impl Metrics {
    /// The metrics and the registry that prints them.
    pub(super) fn new() -> (Self, Registry) {
        let metrics = Self {
            requests: Family::default(),
            own_requests: Family::default(),
            request_duration: Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS)),
            refusals: Family::default(),
            connections: Family::default(),
            closed_connections: Family::default(),
            streams: Family::default(),
            stream_changes: Family::default(),
            pushdown: Family::default(),
            filtered_items: Family::default(),
            filter_memory: Gauge::default(),
            upload_memory: Gauge::default(),
            policy_epoch: Gauge::default(),
            policy_rejected: Counter::default(),
            policy_age: Gauge::default(),
            leaf_not_after: Gauge::default(),
            upstream_connect: Histogram::new(CONNECT_BUCKETS),
            panics: Counter::default(),
            named: ArcSwap::default(),
        };
        let registry = metrics.register();
        (metrics, registry)
    }

    /// Counts objects of `resource` that were judged.
    pub(super) fn filtered(&self, resource: &GroupResource, kept: u64, dropped: u64) {
        for (kept, count) in [("true", kept), ("false", dropped)] {
            if count > 0 {
                let resource = self.resource_label(resource.resource());
                let labels = FilterLabels { resource, kept };
                self.filtered_items.get_or_create_owned(&labels).inc_by(count);
            }
        }
    }

    /// Names resources: gives those that a policy names label values of their own, which they keep:
    /// a series that was counted once stays.
    pub(super) fn name_resources<'a>(&self, names: impl Iterator<Item = &'a str>) {
        // One policy is put in force at a time.
        let mut named = BTreeSet::clone(&self.named.load());
        for name in names.filter(|name| RESOURCES.binary_search(name).is_err()) {
            if named.len() < MAX_NAMED {
                named.insert(name.into());
            }
        }
        self.named.store(Arc::new(named));
    }

    /// The label value for a resource. A client can invent names; all but those of Kubernetes and
    /// of policies are `other`, so that the number of time series stays bounded.
    pub(super) fn resource_label(&self, resource: &str) -> ResourceLabel {
        if let Ok(at) = RESOURCES.binary_search(&resource) {
            return ResourceLabel(LabelText::BuiltIn(RESOURCES.get(at).copied().unwrap_or(OTHER)));
        }
        ResourceLabel(match self.named.load().get(resource) {
            Some(name) => LabelText::Named(Arc::clone(name)),
            None => LabelText::BuiltIn(OTHER),
        })
    }

    /// Counts a list or watch that was narrowed.
    pub(super) fn count_pushdown(&self, how: &'static str) {
        self.pushdown.get_or_create_owned(&[("how", how)]).inc();
    }

    /// Counts a live watch that a change of policy reached, by how.
    pub(super) fn count_stream_change(&self, how: &'static str) {
        self.stream_changes.get_or_create_owned(&[("how", how)]).inc();
    }

    fn register(&self) -> Registry {
        let mut all = Registry::with_prefix("ctrlmesh");
        all.register("requests", "Requests by the proxy's decision", self.requests.clone());
        all.register_with_unit(
            "request_duration",
            "Time until the response was complete; of streams, until its headers",
            Unit::Seconds,
            self.request_duration.clone(),
        );
        all.register(
            "own_requests",
            "Requests of the proxy's own on a client's behalf, by purpose",
            self.own_requests.clone(),
        );
        all.register(
            "refusals",
            "Responses of the proxy in place of the upstream's",
            self.refusals.clone(),
        );
        all.register("connections", "Client connections open now", self.connections.clone());
        all.register(
            "closed_connections",
            "Connections that did not end by a peer's orderly close",
            self.closed_connections.clone(),
        );
        self.register_streams(&mut all);
        all.register("policy_epoch", "Number of the policy in force", self.policy_epoch.clone());
        all.register(
            "policy_rejected",
            "Policies that were rejected while the last good one stayed in force",
            self.policy_rejected.clone(),
        );
        all.register_with_unit(
            "policy_age",
            "Time since the policy came into force",
            Unit::Seconds,
            self.policy_age.clone(),
        );
        all.register_with_unit(
            "leaf_not_after",
            "End of the certificate that clients see, as seconds since 1970",
            Unit::Seconds,
            self.leaf_not_after.clone(),
        );
        all.register_with_unit(
            "upstream_connect_duration",
            "Time to a verified connection to the upstream",
            Unit::Seconds,
            self.upstream_connect.clone(),
        );
        all.register("panics", "Tasks that panicked", self.panics.clone());
        all
    }

    /// Registers the metrics of lists and watches.
    fn register_streams(&self, all: &mut Registry) {
        all.register("streams", "Long-lived responses open now", self.streams.clone());
        all.register(
            "stream_changes",
            "Watches that a policy change affected, by the way they were brought over",
            self.stream_changes.clone(),
        );
        all.register(
            "pushdown",
            "Narrowed lists and watches, by the part of the boundary that was sent to the API server",
            self.pushdown.clone(),
        );
        all.register(
            "filtered_items",
            "Objects of lists and watches that were judged one by one",
            self.filtered_items.clone(),
        );
        all.register_with_unit(
            "filter_memory",
            "Memory for objects that are not complete or not judged yet",
            Unit::Bytes,
            self.filter_memory.clone(),
        );
        all.register_with_unit(
            "upload_memory",
            "Memory that is kept free for bodies of requests that the API server does not take",
            Unit::Bytes,
            self.upload_memory.clone(),
        );
    }
}

impl RequestCounts {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, counted: RefCell::default() }
    }

    /// Counts a request and its duration.
    pub(super) fn add(&self, labels: RequestLabels, took: Duration) {
        let mut counted = self.counted.borrow_mut();
        let (count, duration) = counted.entry(labels).or_insert_with_key(|labels| {
            let of_verb = [("leg", labels.leg.into_str()), ("verb", labels.verb)];
            (
                self.metrics.requests.get_or_create_owned(labels),
                self.metrics.request_duration.get_or_create_owned(&of_verb),
            )
        });
        count.inc();
        duration.observe(took.as_secs_f64());
    }
}

/// The resource of a request or an object, as a label: one of a bounded number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ResourceLabel(LabelText);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum LabelText {
    BuiltIn(&'static str),
    Named(Arc<str>),
}

impl ResourceLabel {
    /// The label of a request that is about no resource.
    pub(super) const NONE: Self = Self(LabelText::BuiltIn("none"));
}

impl EncodeLabelValue for ResourceLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        match &self.0 {
            LabelText::BuiltIn(name) => EncodeLabelValue::encode(name, encoder),
            LabelText::Named(name) => EncodeLabelValue::encode(&&**name, encoder),
        }
    }
}

/// The most resources that have a label value of their own because a policy names them.
const MAX_NAMED: usize = 256;
/// The label value of all resources without one of their own.
const OTHER: &str = "other";

/// The resources of Kubernetes that have a label value of their own.
const RESOURCES: [&str; 44] = [
    "bindings",
    "certificatesigningrequests",
    "clusterrolebindings",
    "clusterroles",
    "componentstatuses",
    "configmaps",
    "controllerrevisions",
    "cronjobs",
    "customresourcedefinitions",
    "daemonsets",
    "deployments",
    "endpoints",
    "endpointslices",
    "events",
    "horizontalpodautoscalers",
    "ingressclasses",
    "ingresses",
    "jobs",
    "leases",
    "limitranges",
    "mutatingwebhookconfigurations",
    "namespaces",
    "networkpolicies",
    "nodes",
    "persistentvolumeclaims",
    "persistentvolumes",
    "poddisruptionbudgets",
    "pods",
    "podtemplates",
    "priorityclasses",
    "replicasets",
    "replicationcontrollers",
    "resourcequotas",
    "rolebindings",
    "roles",
    "runtimeclasses",
    "secrets",
    "serviceaccounts",
    "services",
    "statefulsets",
    "storageclasses",
    "subjectaccessreviews",
    "tokenreviews",
    "validatingwebhookconfigurations",
];

/// The label value for a status code.
pub(super) fn code_class(code: Option<u16>) -> &'static str {
    match code.map(|code| code / 100) {
        Some(1) => "1xx",
        Some(2) => "2xx",
        Some(3) => "3xx",
        Some(4) => "4xx",
        Some(5) => "5xx",
        _ => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_found_by_search() {
        assert!(RESOURCES.is_sorted());
        let (metrics, _) = Metrics::new();
        assert_eq!(metrics.resource_label("pods").0, LabelText::BuiltIn("pods"));
        assert_eq!(metrics.resource_label("widgets").0, LabelText::BuiltIn(OTHER));
    }

    #[test]
    fn resources_of_policies_have_a_label_of_their_own_up_to_a_bound() {
        let (metrics, _) = Metrics::new();
        metrics.name_resources(["widgets", "pods"].into_iter());
        metrics.name_resources(["gadgets"].into_iter());
        for name in ["widgets", "gadgets"] {
            assert_eq!(metrics.resource_label(name).0, LabelText::Named(name.into()));
        }
        let many: Vec<_> = (0..MAX_NAMED).map(|at| format!("many{at}")).collect();
        metrics.name_resources(many.iter().map(String::as_str));
        let named =
            many.iter().filter(|name| metrics.resource_label(name).0 != LabelText::BuiltIn(OTHER));
        assert_eq!(named.count(), MAX_NAMED - 2);
        assert_eq!(metrics.resource_label("widgets").0, LabelText::Named("widgets".into()));
    }
}
