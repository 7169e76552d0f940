//! The KusionStack dialect's `ShardingConfig`.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Fence, LabelSelector, Limit, Root, Shared};

/// The objects that the selected pods see, and the lock by which they elect their leader.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "ctrlmesh.kusionstack.io",
    version = "v1alpha1",
    kind = "ShardingConfig",
    plural = "shardingconfigs",
    shortname = "shard",
    namespaced,
    status = "ShardingConfigStatus",
    derive = "PartialEq",
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name is too long: it is the value of a label, of at most 63 characters"),
    doc = "One shard: its pods, and the objects that they see.",
    printcolumn = r#"{"name":"Pods", "type":"integer", "jsonPath":".status.pods.selected"}"#,
    printcolumn = r#"{"name":"Handover", "type":"string", "jsonPath":".status.conditions[?(@.type==\"HandoverActive\")].status"}"#,
    printcolumn = r#"{"name":"Owns", "type":"string", "jsonPath":".status.owns"}"#,
    printcolumn = r#"{"name":"Ready", "type":"string", "jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Age", "type":"date", "jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Resources", "type":"string", "jsonPath":".status.resources", "priority": 1}"#,
    printcolumn = r#"{"name":"Lock", "type":"string", "jsonPath":".spec.controller.leaderElectionName", "priority": 1}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.root) || has(self.selector) && \
             ((has(self.selector.matchLabels) && self.selector.matchLabels.size() > 0) || \
              (has(self.selector.matchExpressions) && self.selector.matchExpressions.size() > 0))",
    "message": "is missing or empty: give labels that select the pods of this shard, or a root",
    "fieldPath": ".selector",
}, {
    "rule": "!has(self.root) || !has(self.limits) || self.limits.size() == 0",
    "message": "must be empty next to a root: give root.resourceSelector",
    "fieldPath": ".limits",
}]))]
pub struct ShardingConfigSpec {
    /// The pods of this shard, in the namespace of the config. A pod must be selected by exactly
    /// one config. Required but in a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Makes this config a root: it selects no pods itself, and the manager writes the configs of the
    /// shards, its children.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Root>,
    /// The controller behind the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
    /// The controller's admission webhook server, and who answers its reviews.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// The ring: the shards of one controller, the configs of a namespace with the same one, among
    /// which no object may have two owners. Absent means the name of the first lock; without one there
    /// is no ring. Each pod of a ring says in its Lease `ctrlmesh-UID` what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub ring: Option<String>,
    /// The way in which the pods of this shard take what other shards of the ring had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<Handover>,
    /// The treatment of writes into namespaces that the shard does not own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// The objects that the pods of all shards see, besides those of their limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub shared: Vec<Shared>,
    /// The objects that the pods of this shard see. Of a resource that no limit names they see all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub limits: Vec<Limit>,
}

/// The state of a ShardingConfig, as the manager finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardingConfigStatus {
    /// The conditions. `WebhookRedirected`: whether the reviews of `spec.webhook` come to the
    /// proxies of all selected pods. Of the ring, `HandoverActive`: whether all configs wait and all pods
    /// say in a Lease what they have, so that no object has two owners; `NoOverlap`: whether no
    /// other config wants some of the same objects, and all limit the same resources; `NoGaps`: whether
    /// each object of the resources that all configs limit is in a shard; `LeasesRenewed`: whether all pods of
    /// this shard renew their Leases; `LocksRenamed`: whether the shard leads: its pods hold its locks,
    /// and renew no lock that it does not name; `WritesRefused`: whether its pods have written into namespaces
    /// of other shards within ten minutes, and were refused; `RelatedResourcesLimited`: whether its limits name all
    /// that its controller watches and that belongs to limited objects. `Injected`: whether all selected pods have a proxy. `Ready`:
    /// whether there are injected pods and all are ready; of a root, whether its children are as it says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
    ))]
    pub conditions: Vec<Condition>,
    /// The pods of the shard. A root has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodsStatus>,
    /// A summary of the shard's objects: names, labels or hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owns: Option<String>,
    /// The resources that it limits, in a few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<String>,
    /// The state of a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootStatus>,
}

/// The injected pods of a shard that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodsStatus {
    /// The number of those that it selects.
    #[schemars(extend("format" = "int32"))]
    pub selected: u32,
    /// The number of those that are ready.
    #[schemars(extend("format" = "int32"))]
    pub ready: u32,
    /// The numbers of the spec by which they claim in their Leases, in order. A pod without a Lease is
    /// not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["generation"],
    ))]
    pub generations: Vec<PodsOfGeneration>,
}

/// The pods that go by one number of the spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PodsOfGeneration {
    /// The number of the spec, `metadata.generation`.
    pub generation: i64,
    /// The number of pods.
    #[schemars(extend("format" = "int32"))]
    pub pods: u32,
}

/// The state of a root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RootStatus {
    /// The names of its children, in the order of the shards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child_sharding_configs: Vec<String>,
}

/// A condition, as Kubernetes has them (`metav1.Condition`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The aspect of the object that it describes.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The generation of the object that it describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The time since when it has this status, by RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// The reason for its status, in one word.
    pub reason: String,
    /// The reason for people.
    pub message: String,
}

/// The controller behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.leaderElectionName) || has(self.locks)",
    "message": "give leaderElectionName, or locks",
}]))]
pub struct Controller {
    /// The Lease, ConfigMap or Endpoints object by which the controller elects its leader. It is in the pod's own
    /// namespace. Each shard gets its own, named `<lock>---<shard>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub leader_election_name: Option<String>,
    /// Further locks of the controller. Each shard gets its own Lease of each, in the pod's namespace.
    /// Proxies read them when they start: restart the pods after a change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    pub locks: Vec<LockRef>,
}

/// A lock by which a controller elects a leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LockRef {
    /// The name that the controller uses. With `*` at its end, all locks whose names begin so.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9][-.a-z0-9]*[*]?$"))]
    pub name: String,
    /// The namespace in which the controller asks for it. Absent means the pod's own. The shard's Lease
    /// is in the pod's own namespace, named `<lock>.<namespace>---<shard>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
}

impl Controller {
    /// The name of its first lock.
    pub fn first_lock(&self) -> Option<&str> {
        let locks = self.locks.first().map(|lock| lock.name.trim_end_matches(['*', '-', '.']));
        self.leader_election_name.as_deref().or(locks)
    }
}

/// The way in which a shard takes what other shards of its ring had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Handover {
    /// Whether it waits until they have given it up. Absent means Wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<HandoverMode>,
}

/// Whether a shard waits until others have given up what it gains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HandoverMode {
    /// It does: no object is in two shards.
    #[default]
    Wait,
    /// It takes all at once, and its pods have no Leases.
    // Not `Off`: that is false to kubectl, which reads YAML 1.1.
    Immediate,
}

/// The controller's webhook server. The shards of a controller are the configs of a namespace with
/// the same first lock, or all without one, that have a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.certName) == has(self.keyName)",
    "message": "certName and keyName belong together: give both, or neither",
}]))]
pub struct Webhook {
    /// The directory of the serving certificate in the controller's container.
    #[schemars(length(max = 4096), regex(pattern = "^/"))]
    pub cert_dir: String,
    /// The port on which the controller serves. The proxy has 5441 to 5447.
    // The API server knows no format of 16 bits, and warns of one.
    #[schemars(range(min = 1, max = 65535), extend(
        "format" = "int32",
        "x-kubernetes-validations" = [{
            "rule": "self < 5441 || self > 5447",
            "message": "is a port of the proxy: let the controller serve on one that is not 5441 \
                        to 5447",
        }],
    ))]
    pub port: u16,
    /// The Secret of the namespace that holds the certificate, for a controller that reads it from
    /// the API server. Absent means the volume at `certDir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub cert_secret: Option<String>,
    /// The file of the certificate. Absent means the first pair of files that is there: tls.crt and
    /// tls.key, cert.pem and key.pem, apiserver.crt and apiserver.key, cert and key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub cert_name: Option<String>,
    /// The file of the certificate's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key_name: Option<String>,
    /// The answerer of a review.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
    /// The answer if no shard owns the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unowned: Option<Unowned>,
    /// The answer if no pod of the owner can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_down: Option<OwnerDown>,
}

/// The answerer of a review: a pod of the shard that owns the object (`Owner`, the default), or the
/// pod that got it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    derive_more::Display,
)]
pub enum Route {
    /// A pod of the shard that owns the object.
    #[default]
    Owner,
    /// The pod that got the review.
    Any,
}

/// The answer to a review of an object that no shard owns: of the pod that got it (`Any`, the
/// default), or always the same.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    derive_more::Display,
)]
pub enum Unowned {
    /// The pod that got the review answers.
    #[default]
    Any,
    /// The request is allowed.
    Allow,
    /// The request is denied.
    Deny,
}

/// The answer to a review if no pod of the owner can answer it: none (`Fail`, the default), or that
/// of the pod that got it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    derive_more::Display,
)]
pub enum OwnerDown {
    /// The call fails, and the webhook's failurePolicy decides.
    #[default]
    Fail,
    /// The pod that got the review answers.
    Any,
}
