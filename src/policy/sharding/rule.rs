//! Rules that name resources, with wildcards.
//!
//! Hides which resources shards must share. Knows nothing of what a rule is for.

use std::fmt;

use crate::{GroupResource, resource::storing};
use ctrlmesh_wire::dns::{is_label, is_subdomain};

/// A pair of API group and plural resource name, either of which may be a wildcard. Two groups that
/// serve the same storage are one, as in [`GroupResource`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    pub(super) group: Name,
    pub(super) resource: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Name {
    Any,
    Exact(Box<str>),
}

/// Errors in an API group or resource name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadRule {
    #[error(
        "apiGroups: {0:?} is not an API group: give \"\" for the core group, a name such as \"apps\", or \"*\""
    )]
    Group(String),
    #[error(
        "resources: {0:?} is not a resource: give a plural name in lower case without a subresource, such as \"pods\", or \"*\""
    )]
    Resource(String),
}

impl Rule {
    /// Every resource of every group.
    pub fn everything() -> Self {
        Self { group: Name::Any, resource: Name::Any }
    }

    /// A rule as written by a user: `*` is the wildcard.
    pub fn new(group: &str, resource: &str) -> Result<Self, BadRule> {
        if group != "*" && !group.is_empty() && !is_subdomain(group) {
            return Err(BadRule::Group(group.to_owned()));
        }
        if resource != "*" && !is_label(resource) {
            return Err(BadRule::Resource(resource.to_owned()));
        }
        Ok(Self { group: Name::new(storing(group, resource)), resource: Name::new(resource) })
    }

    /// Whether its names match the resource. A rule for all resources also matches those that
    /// shards must share, although it does not limit them.
    pub fn covers(&self, resource: &GroupResource) -> bool {
        let is = |name: &Name, text: &str| matches!(name, Name::Any) || name.as_str() == text;
        is(&self.group, resource.group()) && is(&self.resource, resource.resource())
    }

    /// Whether both rules name the same resource and may mean the same group. A rule for all
    /// resources does not conflict with one for a single resource: both apply.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.resource == other.resource
            && (self.group == other.group || self.group == Name::Any || other.group == Name::Any)
    }
}

impl Name {
    fn new(text: &str) -> Self {
        if text == "*" { Self::Any } else { Self::Exact(text.into()) }
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Any => "*",
            Self::Exact(name) => name,
        }
    }
}

impl Rule {
    /// The resource that it names, or `None` if it matches all of its group.
    pub fn resource(&self) -> Option<&str> {
        match &self.resource {
            Name::Any => None,
            Name::Exact(name) => Some(name),
        }
    }
}

impl fmt::Display for Rule {
    /// Writes `pods`, `deployments.apps`, `*.*`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource.as_str())?;
        match self.group.as_str() {
            "" => Ok(()),
            group => write!(f, ".{group}"),
        }
    }
}

impl Rule {
    /// The rule for one resource.
    pub fn of(resource: &GroupResource) -> Self {
        let exact = |name: &str| Name::Exact(name.into());
        Self { group: exact(resource.group()), resource: exact(resource.resource()) }
    }

    /// The names of the group and the resource; `*` is the wildcard.
    pub fn names(&self) -> (&str, &str) {
        (self.group.as_str(), self.resource.as_str())
    }

    pub(super) fn with_any_group(&self) -> Self {
        Self { group: Name::Any, resource: self.resource.clone() }
    }

    pub(super) fn with_any_resource(&self) -> Self {
        Self { group: self.group.clone(), resource: Name::Any }
    }

    /// Whether a rule for all resources leaves out what this one names.
    pub(super) fn is_shared(&self) -> bool {
        match (&self.group, &self.resource) {
            (Name::Exact(group), Name::Exact(resource)) => is_shared(group, resource),
            _ => false,
        }
    }
}

/// Groups of which shards must share all resources.
const SHARED_GROUPS: [&str; 4] = [
    "coordination.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "apiregistration.k8s.io",
];

/// Whether shards must share the resource, so that a rule for *all* resources leaves it alone:
/// leases, events, reviews, CustomResourceDefinitions. A rule that names one limits it.
pub fn is_shared(group: &str, resource: &str) -> bool {
    match group {
        "" => matches!(resource, "events" | "componentstatuses"),
        "apiextensions.k8s.io" => resource == "customresourcedefinitions",
        group => SHARED_GROUPS.contains(&group),
    }
}

/// The groups whose resource of this name shards must share.
pub(super) fn shared_groups(resource: &str) -> impl Iterator<Item = &'static str> {
    let groups = ["", "apiextensions.k8s.io"].into_iter().chain(SHARED_GROUPS);
    groups.filter(move |group| is_shared(group, resource))
}
