//! Objects that all shards of a controller are shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Objects that the shard is shown whether it owns them or not: what the objects of several shards refer
/// to, such as Secrets, licences and classes. Each has the owner that the limits give it, which alone
/// deletes it. A limit's `selector` holds for them too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shared {
    /// API groups; the core group is `""`, and `*` stands for all.
    #[schemars(length(min = 1))]
    pub api_groups: Vec<String>,
    /// Plural names in lower case, which include their subresources. `*` stands for all.
    #[schemars(length(min = 1))]
    pub resources: Vec<String>,
    /// The namespaces of the objects; `""` stands for none, and `*` for any or none. A Namespace counts as
    /// the one that it names.
    #[schemars(length(min = 1), inner(length(max = 63)))]
    pub namespaces: Vec<String>,
    /// The shards that may create and change them, if `fence.mode` is Enforce. Of several entries for one
    /// object the first counts. Absent means Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<SharedWrite>,
}

/// The shards that may create and change what all are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SharedWrite {
    /// The owner alone. The controller of another shard that reconciles such an object is refused, and
    /// tries again for ever.
    #[default]
    Owner,
    /// All shards. The owner alone deletes, also here.
    All,
}
