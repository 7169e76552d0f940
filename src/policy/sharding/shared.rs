//! The objects that all shards are shown, by the names of their resources and namespaces.
//!
//! Hides how entries name objects, and which entry counts. Does not know who owns an object.

use std::{collections::BTreeSet, fmt, sync::Arc};

use super::{BadRule, Rule};
use crate::GroupResource;
use ctrlmesh_api as api;
use ctrlmesh_api::SharedWrite;
use ctrlmesh_wire::dns::is_label;

/// Objects by the exact names of their resources and namespaces, or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    rules: Vec<Rule>,
    namespaces: Arc<Names>,
}

/// Errors in the names of objects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadNamed {
    #[error(transparent)]
    Rule(#[from] BadRule),
    #[error("{0} is empty: {1}")]
    Empty(&'static str, &'static str),
    #[error(
        "namespaces: {0:?} is not a namespace: give at most 63 of a-z, 0-9 and -, beginning and ending with \
         a letter or digit, \"\" for cluster-scoped objects, or \"*\""
    )]
    Namespace(String),
}

/// Names of namespaces; `""` stands for none. `None` means any or none.
type Names = Option<BTreeSet<Box<str>>>;

/// The objects that all shards are shown, by the entries of a config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared(Arc<[Entry]>);

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    named: Named,
    given: api::Shared,
}

/// The namespaces in which all shards are shown the objects of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedNamespaces(Vec<Arc<Names>>);

impl Named {
    /// Reads the names of groups, resources and namespaces. Fails with [`BadNamed`].
    pub(crate) fn new(
        api_groups: &[String],
        resources: &[String],
        namespaces: &[String],
    ) -> Result<Self, BadNamed> {
        let empty = |field, remedy| Err(BadNamed::Empty(field, remedy));
        if api_groups.is_empty() {
            return empty("apiGroups", "name a group, \"\" for the core group, or \"*\"");
        }
        if resources.is_empty() {
            return empty(
                "resources",
                "name a resource in plural, for example \"secrets\", or \"*\"",
            );
        }
        if namespaces.is_empty() {
            return empty(
                "namespaces",
                "name the namespaces, \"\" for cluster-scoped objects, or \"*\"",
            );
        }
        let mut rules = Vec::new();
        for group in api_groups {
            for resource in resources {
                rules.push(Rule::new(group, resource)?);
            }
        }
        let namespaces = namespaces.iter().map(|name| match name.as_str() {
            "*" => Ok(None),
            "" => Ok(Some(name.as_str().into())),
            name if name.len() <= 63 && is_label(name) => Ok(Some(name.into())),
            name => Err(BadNamed::Namespace(name.to_owned())),
        });
        // One `*` among names means any.
        let namespaces = namespaces.collect::<Result<Vec<_>, _>>()?.into_iter().collect::<Names>();
        Ok(Self { rules, namespaces: namespaces.into() })
    }

    /// Whether it names all objects of all resources.
    pub(crate) fn is_everything(&self) -> bool {
        self.rules.contains(&Rule::everything()) && self.namespaces.is_none()
    }

    /// Whether it names the objects of a resource in a namespace; `""` stands for none.
    pub(crate) fn has(&self, resource: &GroupResource, namespace: &str) -> bool {
        self.covers(resource) && has(&self.namespaces, namespace)
    }

    fn covers(&self, resource: &GroupResource) -> bool {
        self.rules.iter().any(|rule| rule.covers(resource))
    }
}

fn has(names: &Names, namespace: &str) -> bool {
    names.as_ref().is_none_or(|names| names.contains(namespace))
}

impl Shared {
    /// Reads the entries of a config. Fails with the number of the first bad one, and its error.
    pub(crate) fn new(given: &[api::Shared]) -> Result<Self, (usize, BadNamed)> {
        let entries = given.iter().enumerate().map(|(at, given)| {
            let api::Shared { api_groups, resources, namespaces, .. } = given;
            let named = Named::new(api_groups, resources, namespaces).map_err(|bad| (at, bad))?;
            Ok(Entry { named, given: given.clone() })
        });
        entries.collect::<Result<Vec<_>, _>>().map(|entries| Self(entries.into()))
    }

    /// The entries, as they were given.
    pub(crate) fn given(&self) -> impl Iterator<Item = &api::Shared> {
        self.0.iter().map(|entry| &entry.given)
    }

    /// The namespaces in which all shards are shown the objects of a resource.
    pub fn namespaces(&self, resource: &GroupResource) -> SharedNamespaces {
        let entries = self.0.iter().filter(|entry| entry.named.covers(resource));
        SharedNamespaces(entries.map(|entry| Arc::clone(&entry.named.namespaces)).collect())
    }

    /// The shards that may create and change the objects of a resource in a namespace; `""` stands for none.
    /// `None` if they are not shared.
    pub(crate) fn write(&self, resource: &GroupResource, namespace: &str) -> Option<SharedWrite> {
        let entry = self.0.iter().find(|entry| entry.named.has(resource, namespace))?;
        Some(entry.given.write.unwrap_or_default())
    }
}

impl SharedNamespaces {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these are all namespaces, and all objects without a namespace.
    pub(super) fn is_everything(&self) -> bool {
        self.0.iter().any(|names| names.is_none())
    }

    /// Whether it has a namespace; `""` stands for none.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.0.iter().any(|names| has(names, namespace))
    }

    /// The names, if they are not all.
    pub(super) fn names(&self) -> Option<BTreeSet<&str>> {
        let mut all = BTreeSet::new();
        for names in &self.0 {
            all.extend((**names).as_ref()?.iter().map(AsRef::as_ref));
        }
        Some(all)
    }
}

impl fmt::Display for SharedNamespaces {
    /// Writes `; shown to all shards: namespace in (a,b)`, and nothing if there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        f.write_str("; shown to all shards: ")?;
        let Some(mut names) = self.names() else { return f.write_str("everything") };
        let has_outside = names.remove("");
        let names: Vec<_> = names.into_iter().collect();
        match (names.is_empty(), has_outside) {
            (true, _) => f.write_str("cluster-scoped objects"),
            (false, false) => write!(f, "namespace in ({})", names.join(",")),
            (false, true) => {
                write!(f, "namespace in ({}), and cluster-scoped objects", names.join(","))
            }
        }
    }
}
