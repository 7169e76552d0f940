//! The fence of a shard: the treatment of writes into namespaces of other shards.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The treatment of writes into namespaces that the shard does not own. A resource that is limited by
/// namespace is judged by its limit, any other namespaced resource by the namespaces of all limits
/// together, and cluster-scoped objects only where `shared` names them. Leases, events and reviews are not
/// judged. In the namespace of the shard's own pods all shards may create and change Secrets, ConfigMaps,
/// ServiceAccounts and Services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fence {
    /// Whether such writes are refused. Absent means Enforce in a root, and Warn in another config,
    /// unless the mesh was installed with other defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FenceMode>,
    /// The writes that pass nevertheless.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub except: Vec<Except>,
}

/// Whether a write into a namespace of another shard is refused.
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
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[strum(parse_err_ty = BadFenceMode, parse_err_fn = BadFenceMode::new)]
pub enum FenceMode {
    /// It is refused, with 403 `NotInShard`.
    Enforce,
    /// It passes, is counted, and named in the condition `WritesRefused`.
    #[default]
    Warn,
    /// It passes, and is not judged.
    // Not `Off`: that is false to kubectl, which reads YAML 1.1.
    Disabled,
}

/// A text that is no mode of the fence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not Enforce, Warn or Disabled")]
pub struct BadFenceMode(String);

impl BadFenceMode {
    fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl FenceMode {
    /// The mode as it is written.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Writes that pass the fence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Except {
    /// API groups; the core group is `""`, and `*` stands for all.
    #[schemars(length(min = 1))]
    pub api_groups: Vec<String>,
    /// Plural names in lower case, which include their subresources. `*` stands for all.
    #[schemars(length(min = 1))]
    pub resources: Vec<String>,
    /// The namespaces that are written into; `""` stands for none, and `*` for any or none.
    #[schemars(length(min = 1), inner(length(max = 63)))]
    pub namespaces: Vec<String>,
    /// The verbs: `create`, `update`, `patch`, `delete`, `deletecollection`. Empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<String>,
}

impl Except {
    /// The fewest entries that say the same as these, where they name the same resources.
    pub fn joined(entries: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut verbs: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for Self { api_groups, resources, namespaces, verbs: of } in entries {
            for namespace in namespaces {
                let at = (api_groups.clone(), resources.clone(), namespace);
                verbs.entry(at).or_default().extend(of.iter().cloned());
            }
        }
        let mut namespaces: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for ((api_groups, resources, namespace), verbs) in verbs {
            namespaces.entry((api_groups, resources, verbs)).or_default().push(namespace);
        }
        let entries = namespaces.into_iter().map(|((api_groups, resources, verbs), namespaces)| {
            Self { api_groups, resources, namespaces, verbs: verbs.into_iter().collect() }
        });
        entries.collect()
    }
}

impl fmt::Display for Except {
    /// Writes YAML in one line: `{apiGroups: [""], resources: [secrets], namespaces: [a], verbs: [delete]}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_groups, resources, namespaces, verbs } = self;
        let list = |all: &[String]| all.iter().map(|one| word(one)).collect::<Vec<_>>().join(", ");
        write!(f, "{{apiGroups: [{}], resources: [{}]", list(api_groups), list(resources))?;
        write!(f, ", namespaces: [{}]", list(namespaces))?;
        if !verbs.is_empty() {
            write!(f, ", verbs: [{}]", list(verbs))?;
        }
        f.write_str("}")
    }
}

/// A text as YAML 1.1 and 1.2 read it as a string: in quotes, unless it cannot be anything else.
pub(super) fn word(text: &str) -> String {
    let is_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_plain = text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(is_name)
        && !matches!(text, "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n");
    if is_plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(resource: &str, namespace: &str, verb: &str) -> Except {
        let list = |text: &str| vec![text.to_owned()];
        Except {
            api_groups: list(""),
            resources: list(resource),
            namespaces: list(namespace),
            verbs: list(verb),
        }
    }

    #[test]
    fn what_is_written_is_yaml_that_means_the_same() {
        for namespace in
            ["team-a", "123", "1e3", "0x1f", "true", "y", "a\"b: c", "a, b", "*", "", "#", "é"]
        {
            let one = entry("secrets", namespace, "delete");
            assert_eq!(serde_yaml::from_str::<Except>(&one.to_string()).unwrap(), one, "{one}");
        }
        assert_eq!(
            entry("secrets", "team-a", "delete").to_string(),
            r#"{apiGroups: [""], resources: [secrets], namespaces: [team-a], verbs: [delete]}"#
        );
    }

    #[test]
    fn entries_are_joined_and_none_says_more_than_they_did() {
        let joined = Except::joined([
            entry("secrets", "a", "create"),
            entry("secrets", "b", "create"),
            entry("secrets", "a", "delete"),
            entry("secrets", "c", "create"),
            entry("pods", "c", "create"),
        ]);
        let texts: Vec<_> = joined.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                r#"{apiGroups: [""], resources: [pods], namespaces: [c], verbs: [create]}"#,
                r#"{apiGroups: [""], resources: [secrets], namespaces: [b, c], verbs: [create]}"#,
                r#"{apiGroups: [""], resources: [secrets], namespaces: [a], verbs: [create, delete]}"#,
            ]
        );
    }

    #[test]
    fn bad_fence_mode_says_which_there_are() {
        assert_eq!("Enforce".parse(), Ok(FenceMode::Enforce));
        let said = "Off".parse::<FenceMode>().unwrap_err().to_string();
        assert_eq!(said, r#""Off" is not Enforce, Warn or Disabled"#);
    }
}
