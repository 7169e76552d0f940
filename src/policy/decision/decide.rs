//! The decision about a request, by its line and one fact that no line shows.

use std::sync::Arc;

use http::Method;

use crate::{
    resource::GroupResource,
    sharding::{Filter, LockIn, Scope, Sharding, SharedNamespaces},
};
use ctrlmesh_wire::request::{RequestInfo, Resource, Verb};

/// The decision about a request: `ctrlmesh explain` prints it, and the proxy obeys it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestAction {
    /// The request passes unchanged. So does a get of one object: a controller that does not find
    /// the object would create it again.
    #[default]
    Pass,
    /// A get of the lock.
    Lock(LockIn),
    /// A list.
    List(Restriction),
    /// A watch.
    Watch(Restriction),
    /// The head alone of what a list or watch would answer (HEAD): there is no body to judge.
    Head(Restriction),
    /// A deletecollection.
    DeleteCollection(Restriction),
    /// A write of one object.
    Write(Write),
}

/// The narrowing of a collection to the shard's part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// The number of objects it can concern.
    pub extent: Extent,
    /// The scope that narrows it. `None` if the client may see all of it.
    pub scope: Option<Arc<Scope>>,
    /// The part of the objects that the scope's selector selects. A deletecollection has those that the
    /// shard owns, others also those that all shards are shown.
    pub filter: Filter,
    /// The place where it may name the lock.
    pub lock: Option<LockIn>,
}

impl Restriction {
    /// Whether bookmarks are asked for that the client of a watch did not ask for: without them the
    /// position of a limited watch on a quiet resource would be compacted, and its objects could not
    /// be listed as of it.
    pub fn asks_for_bookmarks(&self, info: &RequestInfo<'_>) -> bool {
        info.verb == Verb::Watch && self.scope.is_some() && !info.options.allows_bookmarks
    }
}

/// A write of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// The scope of its resource. `None` if no limit names that.
    pub scope: Option<Arc<Scope>>,
    /// The place where it may name the lock.
    pub lock: Option<LockIn>,
}

/// The number of objects that a list, watch or deletecollection can concern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// One object: a get by another spelling.
    #[default]
    One,
    /// The objects of one name in all namespaces: a collection, unless the resource is
    /// cluster-scoped. The path does not show which: see [`Sharding::depends_on_namespaced`].
    OneName,
    /// A collection.
    Many,
}

impl Sharding {
    /// Whether the decision about a request depends on whether its resource is namespaced, which no line shows:
    /// one name over all namespaces is a collection of a namespaced resource, and one object of another.
    pub fn depends_on_namespaced(&self, info: &RequestInfo<'_>) -> bool {
        let is_one_name = |resource| Extent::of(info, resource, None) == Extent::OneName;
        matches!(info.verb, Verb::List | Verb::Watch)
            && info.resource().is_some_and(is_one_name)
            && self.action(info, None).scope().is_some()
    }

    /// The decision about a request. `is_namespaced` says whether its resource is, where the decision
    /// [depends on it](Self::depends_on_namespaced); with `None` one name over all namespaces is a collection.
    pub fn action(&self, info: &RequestInfo<'_>, is_namespaced: Option<bool>) -> RequestAction {
        let Some(resource) = info.resource() else { return RequestAction::Pass };
        let lock = self.locks().find(info);
        let restriction = || self.restriction(info, resource, is_namespaced, lock);
        match info.verb {
            Verb::List | Verb::Watch if info.method == Method::HEAD => {
                RequestAction::Head(restriction())
            }
            Verb::List => RequestAction::List(restriction()),
            Verb::Watch => RequestAction::Watch(restriction()),
            Verb::DeleteCollection => RequestAction::DeleteCollection(restriction()),
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => {
                let scope = self.scope(&GroupResource::of(resource)).cloned();
                RequestAction::Write(Write { scope, lock })
            }
            _ => lock.map_or(RequestAction::Pass, RequestAction::Lock),
        }
    }

    fn restriction(
        &self,
        info: &RequestInfo<'_>,
        resource: &Resource<'_>,
        is_namespaced: Option<bool>,
        lock: Option<LockIn>,
    ) -> Restriction {
        let extent = Extent::of(info, resource, is_namespaced);
        let namespace = resource.namespace.as_deref();
        let stored = extent.is_collection().then(|| GroupResource::of(resource));
        // The lock is the shard's, even if another shard has the other objects of the resource.
        let stored = stored.filter(|_| lock.is_none() || self.locks().named_by(info).is_none());
        let scope = stored.as_ref().and_then(|stored| self.scope(stored).cloned());
        let limited = scope.as_ref().zip(stored.as_ref());
        let filter = limited.map(|(scope, stored)| {
            // The owner alone deletes.
            let shared = match info.verb {
                Verb::DeleteCollection => SharedNamespaces::default(),
                _ => self.shared_namespaces(stored),
            };
            Filter::of(scope, stored, namespace, shared)
        });
        Restriction { extent, filter: filter.unwrap_or_default(), scope, lock }
    }
}

impl RequestAction {
    /// The scope under which the request is. `None` if no limit names its resource, or it reads one object.
    pub fn scope(&self) -> Option<&Scope> {
        match self {
            Self::Write(Write { scope, .. }) => scope.as_deref(),
            _ => self.restriction()?.scope.as_deref(),
        }
    }

    /// The narrowing of a collection. `None` for other requests.
    pub fn restriction(&self) -> Option<&Restriction> {
        match self {
            Self::List(restriction)
            | Self::Watch(restriction)
            | Self::Head(restriction)
            | Self::DeleteCollection(restriction) => Some(restriction),
            Self::Pass | Self::Lock(_) | Self::Write(_) => None,
        }
    }

    /// The narrowing that is also sent upstream where the API server proves that it understands it:
    /// that of a limited list or watch, by the method that a probe of ours may use, too.
    pub fn pushed_narrow(&self, info: &RequestInfo<'_>) -> Option<&Restriction> {
        match self {
            Self::List(restriction) | Self::Watch(restriction) if info.method == Method::GET => {
                Some(restriction).filter(|restriction| restriction.scope.is_some())
            }
            _ => None,
        }
    }

    /// The place where the request may name the lock. `None` if it cannot.
    pub fn lock(&self) -> Option<LockIn> {
        match self {
            Self::Pass => None,
            Self::Lock(place) => Some(*place),
            Self::Write(Write { lock, .. }) => *lock,
            Self::List(_) | Self::Watch(_) | Self::Head(_) | Self::DeleteCollection(_) => {
                self.restriction()?.lock
            }
        }
    }
}

impl Extent {
    /// Whether it is a collection, which a scope narrows; one object passes.
    pub fn is_collection(self) -> bool {
        self != Self::One
    }

    /// The extent: a list or watch of one name in one namespace counts as a get.
    fn of(info: &RequestInfo<'_>, resource: &Resource<'_>, is_namespaced: Option<bool>) -> Self {
        if resource.subresource.is_some() {
            return Self::One;
        }
        let is_one_name = info.verb != Verb::DeleteCollection && resource.name.is_some();
        match () {
            () if !is_one_name => Self::Many,
            // A path with the verb in it names the namespace too, if the resource has one.
            () if info.namespace().is_some() || resource.verb_in_path => Self::One,
            () => match is_namespaced {
                None => Self::OneName,
                Some(true) => Self::Many,
                Some(false) => Self::One,
            },
        }
    }
}
