//! The share of a collection that is in the shard.

use std::sync::Arc;

use super::{ObjectFacts, Scope, SharedNamespaces};
use crate::GroupResource;
use ctrlmesh_wire::{frames::Verdict, object::Object};

/// The part of a collection's selected objects that the shard is shown: by the boundaries of its scope, and
/// what all shards are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// The shard is shown all selected objects.
    #[default]
    KeepAll,
    /// The shard is shown no object: the request names another shard's namespace.
    DropAll,
    /// Each object is judged by itself.
    PerObject {
        /// The scope that has the boundaries.
        scope: Arc<Scope>,
        /// Whether the objects are Namespaces, judged as the namespaces that they name.
        are_namespaces: bool,
        /// The namespaces whose objects the shard is shown without owning them.
        shared: SharedNamespaces,
    },
}

impl Filter {
    /// The share of a collection, which may be of one namespace.
    pub(crate) fn of(
        scope: &Arc<Scope>,
        resource: &GroupResource,
        namespace: Option<&str>,
        shared: SharedNamespaces,
    ) -> Self {
        let is_inside = match namespace {
            Some(namespace) if shared.has(namespace) => Some(true),
            None if shared.is_everything() => Some(true),
            None if scope.is_nothing() && !shared.is_empty() => None,
            _ if scope.is_nothing() => Some(false),
            Some(namespace) => scope.bounds(&ObjectFacts::common_in(namespace)),
            None => scope.boundaries().is_empty().then_some(true),
        };
        match is_inside {
            Some(true) => Self::KeepAll,
            Some(false) => Self::DropAll,
            None => Self::PerObject {
                scope: Arc::clone(scope),
                are_namespaces: resource.are_namespaces(),
                shared,
            },
        }
    }

    /// Whether objects must be judged one by one.
    pub fn is_each(&self) -> bool {
        matches!(self, Self::PerObject { .. })
    }

    /// Judges one selected object.
    pub fn judge(&self, object: &Object<'_>) -> Verdict {
        match self {
            Self::KeepAll => Verdict::Keep,
            Self::DropAll => Verdict::Drop,
            Self::PerObject { scope, are_namespaces, shared } => {
                let facts = ObjectFacts::of(object, *are_namespaces);
                match shared.has(facts.namespace).then_some(true).or_else(|| scope.bounds(&facts)) {
                    Some(true) => Verdict::Keep,
                    Some(false) => Verdict::Drop,
                    None => Verdict::Unknown,
                }
            }
        }
    }
}
