//! The root of a `ShardingConfig`: how the shards of a Deployment or a StatefulSet are drawn.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Limit;

/// The shards of the pods of a StatefulSet or a Deployment. A StatefulSet's pod has its shard by its
/// ordinal, a Deployment's pod by a label that the manager gives it. Together the shards have all objects,
/// and no object is in two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.target) != has(self.targetStatefulSet)",
    "message": "give target, with the kind and name of the workload, or targetStatefulSet; not both",
}]))]
pub struct Root {
    /// Whether the children are deleted. Their pods keep what they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable: Option<bool>,
    /// The beginning of the names of the children, `PREFIX-0-canary` and `PREFIX-1-normal` onwards.
    #[schemars(length(min = 1, max = 52), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub prefix: String,
    /// The workload whose pods are sharded, in the namespace of the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<RootTarget>,
    /// The StatefulSet whose pods are sharded: `target` of that kind, as KusionStack spells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub target_stateful_set: Option<String>,
    /// The shard of the first pods. Absent means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The other shards.
    pub auto: Auto,
    /// Where objects go that are in no namespace. Absent means Shared where there is no `resourceSelector`,
    /// and First elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_scoped: Option<RootClusterScoped>,
    /// The resources whose objects are sharded, each with conditions that hold in all shards. Empty, by
    /// Namespace alone, means all that namespaces have: see `shared` for what all shards are shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub resource_selector: Vec<Limit>,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RootTarget {
    /// Its kind, in the API group apps.
    pub kind: TargetKind,
    /// Its name.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
}

/// The kind of a workload.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum TargetKind {
    /// A Deployment: the manager's leader gives each pod a shard, by a label.
    Deployment,
    /// A StatefulSet: the ordinal of a pod tells its shard.
    StatefulSet,
}

impl TargetKind {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

/// The shard of the first pods. It has the objects that meet all that is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.replicas == 0 || has(self.inNamespaces) && self.inNamespaces.size() > 0 || \
             has(self.inShardHash) && self.inShardHash.size() > 0",
    "message": "has no objects: give inNamespaces, inShardHash, or replicas: 0",
}]))]
pub struct Canary {
    /// The number of its pods. With none there is no canary, and the other shards have its objects.
    #[schemars(range(min = 0, max = 10000), extend("format" = "int32"))]
    pub replicas: u32,
    /// The namespaces of its objects. Empty means any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 1024),
        inner(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))
    )]
    pub in_namespaces: Vec<String>,
    /// The buckets of the names of their namespaces, 0 to 31, as the label `shard-hash` has them.
    /// Empty means any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 2), regex(pattern = "^(0|[1-9][0-9]?)$")))]
    pub in_shard_hash: Vec<String>,
}

/// The shards without the canary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.weight) || self.weight == 'Even' || !has(self.by) || self.by != 'Uid'",
    "message": "must be Even, or absent, by Uid: uids spread the objects evenly",
    "fieldPath": ".weight",
}]))]
pub struct Auto {
    /// The number of shards. Absent means by the replicas of the workload: those next to the canary's, divided
    /// by `everyShardReplicas` and rounded down, from 1 to 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32), extend("format" = "int32"))]
    pub sharding_size: Option<u32>,
    /// The number of pods of each.
    #[schemars(range(min = 1, max = 10000), extend("format" = "int32"))]
    pub every_shard_replicas: u32,
    /// The attribute of an object that tells its shard. Absent means Label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<By>,
    /// The weight of a namespace, of which the shards have equal parts. Absent means Namespaces where there is
    /// no `resourceSelector`, and Even elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Whether namespaces move to another shard as their weights change. Absent means Move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<Balance>,
}

/// The shards that see cluster-scoped objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RootClusterScoped {
    /// The first shard alone.
    #[default]
    First,
    /// All shards. The first owns it. It alone writes custom kinds, such as ClusterIssuers; all shards write
    /// the kinds of Kubernetes' own API groups, such as ClusterRoleBindings. `shared` may say otherwise.
    Shared,
}

/// The weight of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Weight {
    /// None: the shards have equal parts of all buckets, or of all hashes.
    #[default]
    Even,
    /// One, whatever it holds: the shards have equal numbers of namespaces, also where there are few.
    Namespaces,
    /// The number of its objects of the sharded resources, which the manager counts. It needs the right to
    /// list them: the chart's value `counted`.
    Objects,
}

/// Whether namespaces move to another shard as their weights change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Balance {
    /// They do: when the fullest shard weighs more than 1.2 times the mean, and would weigh a tenth less.
    #[default]
    Move,
    /// They stay, but for a change of the shards: for a controller that deletes something elsewhere when
    /// an object leaves its watch.
    Keep,
}

/// The attribute of an object that tells its shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum By {
    /// The bucket of its namespace, one of 32, that KusionStack stamps as the label `shard-hash`. It is
    /// computed, and nothing need be stamped. Numbered names fall into few buckets.
    #[default]
    Label,
    /// The mixed hash of its namespace, which spreads all names evenly.
    Namespace,
    /// The hash of its uid: the objects of a namespace are in several shards.
    Uid,
}
