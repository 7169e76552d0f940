//! The KusionStack dialect's `ShardingConfig`.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LabelSelector;

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
    doc = "One shard: its pods, and the objects that they see.",
    printcolumn = r#"{"name":"Lock", "type":"string", "jsonPath":".spec.controller.leaderElectionName"}"#,
    printcolumn = r#"{"name":"Age", "type":"date", "jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShardingConfigSpec {
    /// The pods of this shard, in the namespace of the config. A pod must be selected by exactly
    /// one config.
    pub selector: LabelSelector,
    /// The controller behind the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
    /// The controller's admission webhook server, and who answers its reviews.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// The ring: the shards of one controller, the configs of a namespace with the same one, among
    /// which no object may have two owners. Absent means `leaderElectionName`; without that there is
    /// no ring. Each pod of a ring says in its Lease `ctrlmesh-UID` what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub ring: Option<String>,
    /// The way in which the pods of this shard take what other shards of the ring had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<Handover>,
    /// The objects that the pods of this shard see. Of a resource that no limit names they see all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub limits: Vec<Limit>,
}

/// The state of a ShardingConfig, as the manager finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardingConfigStatus {
    /// The conditions. `WebhookRedirected`: whether the reviews of `spec.webhook` come to the
    /// proxies of all selected pods. Of the ring, `InForce`: whether all configs wait and all pods
    /// say in a Lease what they have, so that no object has two owners; `Overlap`: whether another
    /// config wants some of the same objects, or does not limit the same resources; `Covered`: whether
    /// each object of the resources that all configs limit is in a shard; `Silent`: whether a pod of
    /// this shard does not renew its Lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
    ))]
    pub conditions: Vec<Condition>,
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
pub struct Controller {
    /// The name of the Lease, ConfigMap or Endpoints object, in the pod's own namespace, by which
    /// the controller elects its leader. Each shard gets its own, named `<lock>---<shard>`.
    pub leader_election_name: String,
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
/// the same `leaderElectionName`, or all without one, that have a webhook.
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

/// The objects that the shard sees of a set of resources. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.clusterScoped) || \
             !(has(self.namespaces) || has(self.hash) && self.hash.of == 'namespace')",
    "message": "must say whether the shard has objects that are in no namespace: \
                Include in one shard, Exclude in the others",
    "fieldPath": ".clusterScoped",
}]))]
pub struct Limit {
    /// The resources that the limit applies to. Empty means every resource except those that shards
    /// must share: leases, events, reviews, custom resource definitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relate_resources: Vec<Resources>,
    /// The labels of the objects. Absent means any. The labels that KusionStack stamps are computed from
    /// the name of the object's namespace: `namespace`, `shard-hash`, `sharding-hash` and `control` of
    /// `ctrlmesh.kusionstack.io` and `kridge.kusionstack.io`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The namespaces of the objects; a Namespace object counts as the namespace that it names.
    /// Absent means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Namespaces>,
    /// The hashes of the objects. Absent means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Hash>,
    /// Whether the shard sees objects that are in no namespace. Required with `namespaces` and with
    /// the hash of a namespace, which do not decide about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_scoped: Option<ClusterScoped>,
}

/// A set of namespaces. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.names) && self.names.size() > 0 || has(self.pattern) || has(self.selector)",
    "message": "is empty: give names, a pattern, or a selector",
}, {
    // An invalid pattern is an error, which the API server reports.
    "rule": "!has(self.pattern) || (''.matches(self.pattern) ? true : true)",
    "fieldPath": ".pattern",
}]))]
pub struct Namespaces {
    /// The names of the namespaces. Empty means any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")))]
    pub names: Vec<String>,
    /// A regular expression that matches a part of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub pattern: Option<String>,
    /// The current labels of the namespaces: when a namespace is relabelled, its objects move
    /// between shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Objects whose hash, FNV-1a with 64 bits, is in one of the ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.ranges.all(a, self.ranges.exists_one(b, (a.to == '' || b.from < a.to) \
             && (b.to == '' || a.from < b.to)))",
    "message": "overlap: the ranges of a shard must be disjoint",
    "fieldPath": ".ranges",
}]))]
pub struct Hash {
    /// The attribute that is hashed.
    pub of: HashOf,
    /// The ranges of hashes; they must not overlap. Together, the shards of a controller must cover
    /// all hashes.
    #[schemars(length(min = 1, max = 32))]
    pub ranges: Vec<HashRange>,
}

/// The attribute of an object that is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum HashOf {
    /// The object's uid.
    Uid,
    /// The name of the object's namespace.
    Namespace,
}

/// A range of hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.to == '' || self.from < self.to",
    "message": "contains no hash: `to` is exclusive and must be larger than `from`",
}]))]
pub struct HashRange {
    /// The first hash in the range: `0x` and sixteen digits.
    #[schemars(length(max = 18), regex(pattern = "^0x[0-9a-f]{16}$"))]
    pub from: String,
    /// The first hash behind the range, or `""` for the end of all hashes.
    #[schemars(length(max = 18), regex(pattern = "^(0x[0-9a-f]{16})?$"))]
    pub to: String,
}

/// Whether a shard sees objects that are in no namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClusterScoped {
    /// The shard sees them.
    Include,
    /// The shard does not see them.
    Exclude,
}

/// Resources by group and plural name. `*` stands for all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// API groups; the core group is `""`.
    pub api_groups: Vec<String>,
    /// Plural names in lower case, for example `configmaps`.
    pub resources: Vec<String>,
}
