//! The share of a collection that is in the shard.

use std::sync::Arc;

use super::{ObjectFacts, Scope};
use crate::{
    policy::GroupResource,
    wire::{frames::Verdict, object::Object},
};

/// The part of a collection's selected objects that is in the shard, by the boundaries of its
/// scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// All selected objects are in the shard.
    #[default]
    Whole,
    /// No object can be in the shard: the request names another shard's namespace.
    None,
    /// Each object is judged by itself.
    Each {
        /// The scope that has the boundaries.
        scope: Arc<Scope>,
        /// Whether the objects are Namespaces, judged as the namespaces that they name.
        are_namespaces: bool,
    },
}

impl Share {
    /// The share of a collection, which may be of one namespace.
    pub(in crate::policy) fn of(
        scope: &Arc<Scope>,
        resource: &GroupResource,
        namespace: Option<&str>,
    ) -> Self {
        let is_inside = match namespace {
            _ if scope.is_nothing() => Some(false),
            Some(namespace) => scope.bounds(&ObjectFacts::common_in(namespace)),
            None => scope.boundaries().is_empty().then_some(true),
        };
        match is_inside {
            Some(true) => Self::Whole,
            Some(false) => Self::None,
            None => {
                Self::Each { scope: Arc::clone(scope), are_namespaces: resource.are_namespaces() }
            }
        }
    }

    /// Whether objects must be judged one by one.
    pub fn is_each(&self) -> bool {
        matches!(self, Self::Each { .. })
    }

    /// Judges one selected object.
    pub fn judge(&self, object: &Object<'_>) -> Verdict {
        match self {
            Self::Whole => Verdict::Keep,
            Self::None => Verdict::Drop,
            Self::Each { scope, are_namespaces } => {
                match scope.bounds(&ObjectFacts::of(object, *are_namespaces)) {
                    Some(true) => Verdict::Keep,
                    Some(false) => Verdict::Drop,
                    None => Verdict::Unknown,
                }
            }
        }
    }
}
