//! The Kridge dialect's `ShardingConfig`: KusionStack's, before it was renamed.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, Controller, LabelSelector, Resources, Webhook};

/// One shard. The manager writes a ShardingConfig of `ctrlmesh.kusionstack.io` with the same name, which
/// is what the shard's pods go by.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kridge.kusionstack.io",
    version = "v1alpha1",
    kind = "ShardingConfig",
    root = "KridgeShardingConfig",
    plural = "shardingconfigs",
    namespaced,
    status = "KridgeStatus",
    derive = "PartialEq",
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name is too long: it is the value of a label, of at most 63 characters"),
    doc = "One shard: its pods, and the objects that they see.",
    printcolumn = r#"{"name":"Lock", "type":"string", "jsonPath":".spec.controller.leaderElectionName"}"#,
    printcolumn = r#"{"name":"Ready", "type":"string", "jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Age", "type":"date", "jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KridgeShardingConfigSpec {
    /// The pods of this shard, in the namespace of the config.
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "has(self.matchLabels) && self.matchLabels.size() > 0 || \
                 has(self.matchExpressions) && self.matchExpressions.size() > 0",
        "message": "is empty: give labels that select the pods of this shard",
    }]))]
    pub selector: LabelSelector,
    /// The controller behind the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
    /// The controller's admission webhook server, and who answers its reviews.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// The objects that the pods of this shard see. Of a resource that no limit names they see all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub limits: Vec<KridgeLimit>,
}

/// Resources, and which of their objects the shard sees, by themselves or in `objectSelector`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.objectSelector) || !has(self.relateResources) && !has(self.selector)",
    "message": "is next to relateResources or selector: give one spelling of them",
    "fieldPath": ".objectSelector",
}]))]
pub struct KridgeLimit {
    /// The resources, and the labels of their objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_selector: Option<ObjectSelector>,
    /// The resources. Absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relate_resources: Option<Vec<Resources>>,
    /// The labels of the objects. Absent means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Resources, and the labels of their objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectSelector {
    /// The resources. Absent means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relate_resources: Vec<Resources>,
    /// The labels of the objects. Absent means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// The state of a ShardingConfig of Kridge, as the manager finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KridgeStatus {
    /// The conditions. `Ready`: whether the ShardingConfig of `ctrlmesh.kusionstack.io` says the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
    ))]
    pub conditions: Vec<Condition>,
}
