//! The kinds whose objects are stamped, as KusionStack's ConfigMap names them.
//!
//! Hides the spelling of the ConfigMap, and which resources of the API server these are.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use kube::{Client, discovery::ApiResource};
use serde::Deserialize;
use tokio::time::timeout;

use ctrlmesh_base::cluster::chain;

/// The key of the ConfigMap.
const KEY: &str = "resource-config";
/// The name for all kinds.
const ALL: &str = "*";
/// The verbs that a resource must serve.
const VERBS: [&str; 3] = ["list", "watch", "patch"];
/// The time for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// A group and its version, as `apiVersion` spells them.
pub(super) type Group = String;

/// The names of kinds in groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds(BTreeMap<Group, BTreeSet<String>>);

/// The reason why a ConfigMap cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadKinds {
    #[error("data has no key {KEY}: give `groupVersionKinds: {{apps/v1: [Deployment]}}` there")]
    Missing,
    #[error("data.{KEY}: it needs `groupVersionKinds: {{apps/v1: [Deployment]}}`")]
    Yaml(#[source] serde_yaml::Error),
    #[error(
        "data.{KEY}: groupVersionKinds: {0:?} is no group and version: give GROUP/VERSION, or v1"
    )]
    Group(String),
    #[error("data.{KEY}: groupVersionKinds[{0:?}] names no kind: give kinds, or \"*\"")]
    Empty(String),
}

/// A resource whose objects are stamped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamped {
    pub(super) resource: ApiResource,
    /// Whether these are namespaces, which have the labels of themselves.
    pub(super) are_namespaces: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spelled {
    #[serde(default)]
    group_version_kinds: BTreeMap<String, Vec<String>>,
}

impl Kinds {
    /// The kinds that the data of a ConfigMap name. Fails with [`BadKinds`].
    pub(super) fn of(data: &BTreeMap<String, String>) -> Result<Self, BadKinds> {
        let text = data.get(KEY).ok_or(BadKinds::Missing)?;
        let text = if text.trim().is_empty() { "{}" } else { text };
        let Spelled { group_version_kinds } = serde_yaml::from_str(text).map_err(BadKinds::Yaml)?;
        let mut kinds = BTreeMap::new();
        for (group, names) in group_version_kinds {
            let (of, version) = group.split_once('/').unwrap_or(("core", &group));
            let is_one = |text: &str| !text.is_empty() && !text.contains(['/', ' ', '?', '#', '%']);
            if !is_one(of) || !is_one(version) || !version.starts_with('v') {
                return Err(BadKinds::Group(group));
            }
            if names.is_empty() || names.iter().any(String::is_empty) {
                return Err(BadKinds::Empty(group));
            }
            kinds.insert(group, names.into_iter().collect());
        }
        Ok(Self(kinds))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Asks the API server for the resources of each group. The resources of a group without an answer stay as
    /// they are. Returns the problems with some kinds, if there are any.
    pub(super) async fn look(
        &self,
        client: &Client,
        served: &mut BTreeMap<Group, Vec<Stamped>>,
    ) -> Option<String> {
        served.retain(|group, _| self.0.contains_key(group));
        let mut problems = Vec::new();
        for (group, names) in &self.0 {
            let found = async {
                match group.contains('/') {
                    true => client.list_api_group_resources(group).await,
                    false => client.list_core_api_resources(group).await,
                }
            };
            let found = match timeout(ANSWER, found).await {
                Ok(Ok(found)) => found,
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                    APIResourceList { group_version: group.clone(), ..APIResourceList::default() }
                }
                Ok(Err(error)) => {
                    problems.push(format!("{group}: {}", chain(&error)));
                    continue;
                }
                Err(_) => {
                    problems.push(format!("{group}: no answer in {} s", ANSWER.as_secs()));
                    continue;
                }
            };
            let (stamped, missing) = stamped(group, names, &found);
            problems.extend(missing);
            served.insert(group.clone(), stamped);
        }
        (!problems.is_empty()).then(|| problems.join("; "))
    }
}

/// The resources of a group that are stamped, and the fault with the others that are named.
fn stamped(
    group: &str,
    names: &BTreeSet<String>,
    found: &APIResourceList,
) -> (Vec<Stamped>, Vec<String>) {
    let (mut stamped, mut problems) = (Vec::new(), Vec::new());
    // A subresource has the name of its resource before a slash.
    let resources = || found.resources.iter().filter(|one| !one.name.contains('/'));
    for one in resources() {
        let is_named = names.contains(&one.kind);
        if !is_named && !names.contains(ALL) {
            continue;
        }
        let are_namespaces = group == "v1" && one.kind == "Namespace";
        let lacks = VERBS.iter().any(|verb| !one.verbs.iter().any(|has| has == verb));
        match (one.namespaced || are_namespaces, lacks) {
            (true, false) => {
                stamped.push(Stamped { resource: resource(group, one), are_namespaces });
            }
            (false, _) if is_named => problems.push(format!(
                "{group} {}: it is in no namespace, and has no such labels",
                one.kind
            )),
            (true, true) if is_named => {
                problems.push(format!("{group} {}: it cannot be listed and patched", one.kind));
            }
            _ => {}
        }
    }
    let is_unknown = |name: &&String| *name != ALL && !resources().any(|one| one.kind == **name);
    for name in names.iter().filter(is_unknown) {
        problems.push(format!("{group} {name}: the API server serves no such kind"));
    }
    (stamped, problems)
}

fn resource(group_version: &str, one: &APIResource) -> ApiResource {
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: group_version.to_owned(),
        kind: one.kind.clone(),
        plural: one.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Kinds, BadKinds> {
        Kinds::of(&BTreeMap::from([(KEY.to_owned(), text.to_owned())]))
    }

    fn names(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn i15_the_config_map_of_kusionstack_names_kinds_as_it_did() {
        let text = "groupVersionKinds:\n  v1:\n  - Pod\n  - Secret\n  apps/v1:\n  - '*'\n";
        let kinds = of(text).unwrap().0;
        let kinds: Vec<_> = kinds.iter().map(|(group, names)| (&**group, names.clone())).collect();
        assert_eq!(kinds, [("apps/v1", names(&["*"])), ("v1", names(&["Pod", "Secret"]))]);
        for text in ["", " \n", "{}", "groupVersionKinds: {}"] {
            assert!(of(text).unwrap().is_empty(), "{text:?}");
        }
    }

    #[test]
    fn bad_i15_a_config_map_of_kinds_says_what_would_be_right() {
        let said = |text: &str| chain(&of(text).unwrap_err());
        let missing = chain(&Kinds::of(&BTreeMap::new()).unwrap_err());
        assert!(missing.starts_with("data has no key resource-config: give "), "{missing}");
        for text in ["- v1", "groupVersionKinds: [v1]", "groupVersionKind: {}", "a: b: c", "{"] {
            let said = said(text);
            let expected = "data.resource-config: it needs `groupVersionKinds: {apps/v1: [Depl";
            assert!(said.starts_with(expected), "{text}: {said}");
        }
        for group in ["", "apps", "/v1", "apps/", "a/b/v1", "apps/1", "a b/v1", "a?/v1"] {
            let said = said(&format!("groupVersionKinds: {{{group:?}: [Pod]}}"));
            assert!(said.contains(&format!("{group:?} is no group and version")), "{said}");
        }
        for kinds in ["[]", "['']"] {
            let said = said(&format!("groupVersionKinds: {{apps/v1: {kinds}}}"));
            assert!(
                said.ends_with(
                    "groupVersionKinds[\"apps/v1\"] names no kind: give kinds, or \"*\""
                )
            );
        }
    }

    #[test]
    fn i15_kinds_are_those_that_can_be_stamped() {
        let one = |name: &str, kind: &str, namespaced: bool, verbs: &[&str]| APIResource {
            name: name.to_owned(),
            kind: kind.to_owned(),
            namespaced,
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..APIResource::default()
        };
        let resources = vec![
            one("pods", "Pod", true, &["list", "watch", "patch", "get"]),
            one("pods/status", "Pod", true, &["get", "patch"]),
            one("bindings", "Binding", true, &["create"]),
            one("nodes", "Node", false, &VERBS),
            one("namespaces", "Namespace", false, &VERBS),
        ];
        let found = APIResourceList { resources, ..APIResourceList::default() };
        let of = |all: &[&str]| {
            let (stamped, problems) = stamped("v1", &names(all), &found);
            let plurals = stamped.into_iter().map(|one| (one.resource.plural, one.are_namespaces));
            (plurals.collect::<Vec<_>>(), problems)
        };
        let both = vec![("pods".to_owned(), false), ("namespaces".to_owned(), true)];
        assert_eq!(of(&["*"]), (both, vec![]));
        let (some, problems) = of(&["Pod", "Node", "Binding", "Widget"]);
        assert_eq!(some.len(), 1);
        assert_eq!(
            problems,
            [
                "v1 Binding: it cannot be listed and patched",
                "v1 Node: it is in no namespace, and has no such labels",
                "v1 Widget: the API server serves no such kind",
            ]
        );
    }
}
