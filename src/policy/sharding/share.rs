//! The share of a collection that is in the shard.

use std::sync::Arc;

use super::Scope;
use crate::wire::{frames::Verdict, object::Object, request::Resource};

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
        resource: &Resource<'_>,
        namespace: Option<&str>,
    ) -> Self {
        let each = || Self::Each {
            scope: Arc::clone(scope),
            are_namespaces: resource.group.is_empty() && resource.resource == "namespaces",
        };
        let boundaries = scope.boundaries();
        let Some(namespace) = namespace else {
            return if boundaries.is_empty() { Self::Whole } else { each() };
        };
        let mut share = Self::Whole;
        for boundary in boundaries {
            match boundary.judge_namespace(namespace) {
                Some(true) => {}
                Some(false) => return Self::None,
                None => share = each(),
            }
        }
        share
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
            Self::Each { scope, are_namespaces } => scope.bounds(object, *are_namespaces),
        }
    }
}
