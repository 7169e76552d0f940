//! A limit of a shard: resources, and the objects of them that the shard sees.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LabelSelector, fence::word};

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

/// Objects whose hash is in one of the ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.of == 'namespace' || !has(self.function) || self.function == 'Fnv1a'",
    "message": "must be Fnv1a, or absent: uids need no mixing",
    "fieldPath": ".function",
}, {
    "rule": "self.ranges.all(a, self.ranges.exists_one(b, (a.to == '' || b.from < a.to) \
             && (b.to == '' || a.from < b.to)))",
    "message": "overlap: the ranges of a shard must be disjoint",
    "fieldPath": ".ranges",
}]))]
pub struct Hash {
    /// The attribute that is hashed.
    pub of: HashOf,
    /// The function that hashes it. Absent means Fnv1a.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<HashFunction>,
    /// The ranges of hashes; they must not overlap. An empty list has no hash. Together, the shards of a
    /// controller must cover all hashes.
    #[schemars(length(max = 32))]
    pub ranges: Vec<HashRange>,
}

/// The function that hashes an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HashFunction {
    /// FNV-1a with 64 bits, which API servers know too (KEP-5866).
    #[default]
    Fnv1a,
    /// The same, mixed by MurmurHash3's finaliser: names that differ in their last characters only,
    /// such as numbered ones, are spread evenly over all ranges.
    Fnv1aMixed,
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
    #[schemars(length(min = 1))]
    pub api_groups: Vec<String>,
    /// Plural names in lower case, for example `configmaps`.
    #[schemars(length(min = 1))]
    pub resources: Vec<String>,
}

impl fmt::Display for Resources {
    /// Writes YAML in one line: `{apiGroups: [""], resources: [secrets]}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[String]| all.iter().map(|one| word(one)).collect::<Vec<_>>().join(", ");
        let (groups, resources) = (list(&self.api_groups), list(&self.resources));
        write!(f, "{{apiGroups: [{groups}], resources: [{resources}]}}")
    }
}
