//! The metrics, declared once. A golden file holds their table.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, LazyLock, atomic::AtomicU64},
    time::Duration,
};

use arc_swap::ArcSwap;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use ctrlmesh_policy::GroupResource;

/// Buckets in seconds: from a cache hit on the same node to a request that sits out a full minute.
const REQUEST_BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0];
/// Buckets in seconds: from two round trips to a request that is waited for, or a pod.
const HANDOVER_BUCKETS: [f64; 11] = [0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 2.0, 10.0, 60.0, 600.0];
const CONNECT_BUCKETS: [f64; 7] = [0.001, 0.0025, 0.005, 0.01, 0.05, 0.5, 5.0];

/// Declares each metric once: the field, its unit, its help, and how it begins.
macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $name:ident $(in $unit:ident)?: $type:ty $(= $new:expr)?;)*) => {
        #[derive(Debug)]
        pub(super) struct Metrics {
            $($(#[doc = $help])+ pub(super) $name: $type,)*
            /// The resources that policies have named so far.
            named: ArcSwap<BTreeSet<Arc<str>>>,
            /// The clients that had to list again so far.
            clients: ArcSwap<BTreeSet<Arc<str>>>,
        }

        impl Metrics {
            /// The metrics and the registry that prints them.
            pub(super) fn new() -> (Self, Registry) {
                let metrics = Self {
                    $($name: metrics!(@new $($new)?),)*
                    named: ArcSwap::default(),
                    clients: ArcSwap::default(),
                };
                let mut all = Registry::with_prefix("ctrlmesh");
                $(
                    let help = concat!($($help),+).trim();
                    metrics!(@register all, stringify!($name), help, metrics.$name $(, $unit)?);
                )*
                (metrics, all)
            }
        }
    };
    (@new) => { Default::default() };
    (@new $new:expr) => { $new };
    (@register $all:ident, $name:expr, $help:ident, $metric:expr) => {
        $all.register($name, $help, $metric.clone())
    };
    (@register $all:ident, $name:expr, $help:ident, $metric:expr, $unit:ident) => {
        $all.register_with_unit($name, $help, Unit::$unit, $metric.clone())
    };
}

metrics! {
    /// Requests by the proxy's decision
    requests: Family<RequestLabels, Counter>;
    /// Time until the response was complete; of streams, until its headers
    request_duration in Seconds: Family<Labels<2>, Histogram, fn() -> Histogram>
        = Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS));
    /// Requests of the proxy's own on a client's behalf, by purpose
    own_requests: Family<Labels<2>, Counter>;
    /// Responses of the proxy in place of the upstream's
    refusals: Family<Labels<1>, Counter>;
    /// Client connections open now
    connections: Family<Labels<1>, Gauge>;
    /// Connections that did not end by a peer's orderly close
    closed_connections: Family<Labels<1>, Counter>;
    /// Long-lived responses open now
    streams: Family<Labels<1>, Gauge>;
    /// Watches that a policy change affected, by the way they were brought over
    stream_changes: Family<Labels<1>, Counter>;
    /// Lists and watches that got a 410 because the boundary had moved, by client
    expired_clients: Family<ClientLabels, Counter>;
    /// Narrowed lists and watches, by the part of the boundary that was sent to the API server
    pushdown: Family<Labels<1>, Counter>;
    /// Writes into namespaces that the shard does not own, by verdict
    fence: Family<FenceLabels, Counter>;
    /// Number of resources that the controller watches, that no limit names, and that belong to limited objects
    related_resources: Gauge;
    /// Objects of lists and watches that were judged one by one
    filtered_items: Family<FilterLabels, Counter>;
    /// Memory for objects that are not complete or not judged yet
    filter_memory in Bytes: Gauge;
    /// Memory that is kept free for bodies of requests that the API server does not take
    upload_memory in Bytes: Gauge;
    /// Number of the policy in force
    policy_epoch: Gauge<u64, AtomicU64>;
    /// Policies that were rejected while the last good one stayed in force
    policy_rejected: Counter;
    /// Time since the policy came into force
    policy_age in Seconds: Gauge<f64, AtomicU64>;
    /// Time from a change of the shard's boundary until all of it was in force
    handover in Seconds: Histogram = Histogram::new(HANDOVER_BUCKETS);
    /// Number of things that the shard waits for, by kind
    handover_waiting: Family<Labels<1>, Gauge> = Awaited::none();
    /// Time since the pod's Lease was written; 0 where it has none
    lease_age in Seconds: Gauge<f64, AtomicU64>;
    /// End of the certificate that clients see, as seconds since 1970
    leaf_not_after in Seconds: Gauge<f64, AtomicU64>;
    /// Requests to the manager for a certificate, by result
    enrolments: Family<Labels<1>, Counter>;
    /// Time to a verified connection to the upstream
    upstream_connect_duration in Seconds: Histogram = Histogram::new(CONNECT_BUCKETS);
    /// Admission reviews, by the way they were answered
    webhook_reviews: Family<Labels<1>, Counter>;
    /// Time until the response to an admission review was complete
    webhook_review_duration in Seconds: Family<Labels<1>, Histogram, fn() -> Histogram>
        = Family::new_with_constructor(|| Histogram::new(REQUEST_BUCKETS));
    /// Memory for reviews whose owner is not known yet
    webhook_held in Bytes: Gauge;
    /// Pods of the controller's shards that may answer reviews
    webhook_peers: Gauge;
    /// Reviews that could not be sent to another pod, by reason
    webhook_peer_failures: Family<Labels<1>, Counter>;
    /// Whether the webhook server of this pod's controller listens
    webhook_listening: Gauge;
    /// End of the certificate of the webhook server, as seconds since 1970
    webhook_certificate_not_after in Seconds: Gauge<f64, AtomicU64>;
    /// Tasks that panicked
    panics: Counter;
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

/// The kind of a thing that a handover waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Requests of the boundary before.
    Requests,
    /// A write or a list of Leases.
    Lease,
    /// Pods of other shards.
    Pods,
    /// Configs that want the same objects, by the resources.
    Configs,
}

impl Awaited {
    pub(super) const ALL: [Self; 4] = [Self::Requests, Self::Lease, Self::Pods, Self::Configs];

    /// The value of the label `for`.
    pub(super) const fn into_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Lease => "lease",
            Self::Pods => "pods",
            Self::Configs => "configs",
        }
    }

    fn none() -> Family<Labels<1>, Gauge> {
        let waiting = Family::<Labels<1>, Gauge>::default();
        for one in Self::ALL {
            waiting.get_or_create(&[("for", one.into_str())]).set(0);
        }
        waiting
    }
}

/// The kind of a listener, and of all that came through it: a metric label and log field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Leg(&'static str);

impl Leg {
    /// The leg from the controller to the API server.
    pub(super) const OUTBOUND: Self = Self("outbound");
    /// The leg from the API server to the controller's webhook server.
    pub(super) const INBOUND: Self = Self("inbound");
    /// The leg from another pod's proxy to the controller's webhook server.
    pub(super) const PEER: Self = Self("peer");

    /// The leg's name.
    pub(super) const fn into_str(self) -> &'static str {
        self.0
    }
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FenceLabels {
    resource: ResourceLabel,
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ClientLabels {
    client: LabelText,
}

impl Metrics {
    /// Counts a client that has to list again, by its `User-Agent`.
    pub(super) fn count_expired(&self, agent: Option<&str>) {
        let client = match agent.map(product) {
            None => LabelText::BuiltIn("none"),
            Some(None) => LabelText::BuiltIn(OTHER),
            Some(Some(product)) => self.client_label(product),
        };
        self.expired_clients.get_or_create_owned(&ClientLabels { client }).inc();
    }

    /// How often clients had to list again, by the product of their `User-Agent`.
    pub(super) fn expired_clients(&self) -> BTreeMap<String, u64> {
        let clients = self.clients.load();
        let built_in = ["none", OTHER].map(|name| (name, LabelText::BuiltIn(name)));
        let named = clients.iter().map(|name| (&**name, LabelText::Named(Arc::clone(name))));
        let counted = named.chain(built_in).filter_map(|(name, client)| {
            let counter = self.expired_clients.get(&ClientLabels { client })?;
            Some((name.to_owned(), counter.get()))
        });
        counted.collect()
    }

    /// The label value for a client. Clients choose their names; the first have their own, so that the
    /// number of time series stays bounded.
    fn client_label(&self, product: &str) -> LabelText {
        let has_room = |known: &BTreeSet<Arc<str>>| known.len() < MAX_CLIENTS;
        self.clients.rcu(|known| {
            let mut known = BTreeSet::clone(known);
            if has_room(&known) {
                known.insert(product.into());
            }
            known
        });
        let known = self.clients.load().get(product).map(Arc::clone);
        known.map_or(LabelText::BuiltIn(OTHER), LabelText::Named)
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

    /// Counts a write into a namespace that the shard does not own.
    pub(super) fn count_fence(&self, resource: &str, verdict: &'static str) {
        let labels = FenceLabels { resource: self.resource_label(resource), verdict };
        self.fence.get_or_create_owned(&labels).inc();
    }

    /// Names resources: gives those that a policy names label values of their own, which they keep:
    /// a series that was counted once stays.
    pub(super) fn name_resources<'a>(&self, names: impl Iterator<Item = &'a str>) {
        // One policy is put in force at a time.
        let mut named = BTreeSet::clone(&self.named.load());
        for name in names.filter(|name| !RESOURCES.contains(name)) {
            if named.len() < MAX_NAMED {
                named.insert(name.into());
            }
        }
        self.named.store(Arc::new(named));
    }

    /// The label value for a resource. A client can invent names; all but those of Kubernetes and
    /// of policies are `other`, so that the number of time series stays bounded.
    pub(super) fn resource_label(&self, resource: &str) -> ResourceLabel {
        if let Some(name) = RESOURCES.get(resource) {
            return ResourceLabel(LabelText::BuiltIn(name));
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
        self.0.encode(encoder)
    }
}

impl EncodeLabelValue for LabelText {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(name) => EncodeLabelValue::encode(name, encoder),
            Self::Named(name) => EncodeLabelValue::encode(&&**name, encoder),
        }
    }
}

/// The most resources that have a label value of their own because a policy names them.
const MAX_NAMED: usize = 256;
/// The most clients that have a label value of their own.
const MAX_CLIENTS: usize = 32;
/// The longest name of one, in bytes.
const MAX_PRODUCT: usize = 40;
/// The label value of all resources and clients without one of their own.
const OTHER: &str = "other";

/// The first product of a `User-Agent` (RFC 9110 section 10.1.5), without its version. `None` if it has
/// no plain name.
fn product(agent: &str) -> Option<&str> {
    let product = agent.split(['/', ' ']).next().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=MAX_PRODUCT).contains(&product.len()) && product.bytes().all(is_plain);
    is_name.then_some(product)
}

/// The resources of Kubernetes that have a label value of their own.
static RESOURCES: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let names = "
        bindings certificatesigningrequests clusterrolebindings clusterroles componentstatuses
        configmaps controllerrevisions cronjobs customresourcedefinitions daemonsets deployments
        endpoints endpointslices events horizontalpodautoscalers ingressclasses ingresses jobs
        leases limitranges mutatingwebhookconfigurations namespaces networkpolicies nodes
        persistentvolumeclaims persistentvolumes poddisruptionbudgets pods podtemplates
        priorityclasses replicasets replicationcontrollers resourcequotas rolebindings roles
        runtimeclasses secrets serviceaccounts services statefulsets storageclasses
        subjectaccessreviews tokenreviews validatingwebhookconfigurations";
    names.split_whitespace().collect()
});

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
    fn resources_of_kubernetes_have_a_label_of_their_own() {
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

    #[test]
    fn clients_are_counted_by_their_product_and_are_bounded() {
        assert_eq!(product("kopf/1.37.2"), Some("kopf"));
        assert_eq!(product("manager/v0.0.0 (linux/amd64) kubernetes/$Format"), Some("manager"));
        for odd in ["", "/1", "(x)", "a\tb/1", &"x".repeat(41)] {
            assert_eq!(product(odd), None, "{odd:?}");
        }
        let (metrics, _) = Metrics::new();
        for at in 0..MAX_CLIENTS {
            let name = format!("client-{at}");
            assert_eq!(metrics.client_label(&name), LabelText::Named(name.as_str().into()));
        }
        assert_eq!(metrics.client_label("one-more"), LabelText::BuiltIn(OTHER));
        assert_eq!(metrics.client_label("client-3"), LabelText::Named("client-3".into()));
        for agent in [Some("client-3/1.0"), Some("client-3/2.0"), Some("one-more/1"), None] {
            metrics.count_expired(agent);
        }
        let counted: Vec<_> = metrics.expired_clients().into_iter().collect();
        let expected = [("client-3", 2), ("none", 1), ("other", 1)];
        assert_eq!(counted, expected.map(|(name, count)| (name.into(), count)));
    }
}
