//! The KusionStack dialect's `ShardingConfig`.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LabelSelector;

/// Which objects the selected pods see, and under which lock they elect their leader.
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
    derive = "PartialEq",
    doc = "One shard: which pods it is made of and which objects they see.",
    printcolumn = r#"{"name":"Lock", "type":"string", "jsonPath":".spec.controller.leaderElectionName"}"#,
    printcolumn = r#"{"name":"Age", "type":"date", "jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShardingConfigSpec {
    /// The pods of this shard, in the namespace of the config. A pod must be selected by exactly
    /// one config.
    pub selector: LabelSelector,
    /// What the proxy knows of the controller itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
    /// Where the controller serves its admission webhooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// What the pods of this shard see. A resource that no limit names is seen whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
}

/// The controller behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Controller {
    /// The name of the Lease, ConfigMap or Endpoints object, in the pod's own namespace, by which
    /// the controller elects its leader. Each shard gets its own, named `<lock>---<shard>`.
    pub leader_election_name: String,
}

/// The controller's webhook server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Webhook {
    /// The directory of the serving certificate in the controller's container.
    pub cert_dir: String,
    /// The port on which the controller serves.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

/// One selector for a set of resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limit {
    /// The resources that the selector applies to. When none is given it applies to every
    /// resource but those that shards must share: leases, events, reviews, custom resource
    /// definitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relate_resources: Vec<Resources>,
    /// What the shard sees of them. Absent means everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
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
