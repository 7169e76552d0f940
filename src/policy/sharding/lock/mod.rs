//! Leader election: every shard elects its own leader, so every shard gets its own lock in place of
//! each lock of the controller.
//!
//! Hides the names of the shard's locks, and in which namespace each is. Knows of a request only where
//! one names a lock.

mod entry;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use self::entry::{BadLock, LockName};
use self::entry::{Lock, MAX_LOCKS};
use ctrlmesh_wire::request::{RequestInfo, Resource, Verb};

/// The locks of a controller and the shard's own, which replace them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locks {
    /// The namespace of the shard's pods, where its Leases are.
    own: Box<str>,
    all: Box<[Lock]>,
}

/// The place where a request names a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockIn {
    /// The path names the lock.
    Path,
    /// The path names the lock, and perhaps the body too.
    PathAndBody,
    /// The body perhaps names the lock: a create names its object only there.
    Body,
    /// The query perhaps names the lock by `fieldSelector=metadata.name=`.
    FieldSelector,
}

/// The shard's own lock: the object that is in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnLock<'l> {
    /// The lock that it replaces.
    pub asked: &'l LockName,
    /// Its namespace.
    pub namespace: Cow<'l, str>,
    /// Its name.
    pub name: String,
}

impl OwnLock<'_> {
    /// The path of the request, with this lock in place of the namespace and the object that it names.
    /// A create names no object in its path.
    pub fn path(&self, info: &RequestInfo<'_>) -> Option<String> {
        let resource = info.resource()?;
        // A name that the query requires is in no path.
        let has_name = resource.verb_in_path
            || !matches!(info.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
        let mut rest = info.path.trim_end_matches('/');
        if has_name && resource.name.is_some() {
            (rest, _) = rest.rsplit_once('/')?;
        }
        let (rest, kind) = rest.rsplit_once('/')?;
        let (before, _) = rest.rsplit_once('/')?;
        let path = format!("{before}/{}/{kind}", self.namespace);
        Some(match has_name && resource.name.is_some() {
            true => format!("{path}/{}", self.name),
            false => path,
        })
    }
}

impl LockIn {
    /// Whether the body may name the lock.
    pub const fn is_in_body(self) -> bool {
        matches!(self, Self::Body | Self::PathAndBody)
    }
}

impl Locks {
    /// The locks of the shard `shard`, whose pods are in the namespace `own`.
    pub fn new(
        names: impl IntoIterator<Item = LockName>,
        shard: &str,
        own: &str,
    ) -> Result<Self, BadLock> {
        let mut all: Vec<Lock> = Vec::new();
        for name in names {
            let lock = Lock::new(name, shard, own)?;
            if let Some((other, both)) =
                all.iter().find_map(|other| Some((other, lock.meets(other)?)))
            {
                return Err(BadLock::Same(other.asked.clone(), lock.asked, both));
            }
            all.push(lock);
        }
        if all.len() > MAX_LOCKS {
            return Err(BadLock::TooMany(all.len()));
        }
        Ok(Self { own: own.into(), all: all.into() })
    }

    /// Whether the controller has none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The name of the first lock, without what stands for the rest of a beginning.
    pub fn first(&self) -> Option<&str> {
        self.names().next().map(|lock| lock.stem().trim_end_matches(['-', '.']))
    }

    /// The locks as the config names them.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.all.iter().map(|lock| &lock.asked)
    }

    /// The shard's Leases, as `namespace/name`: with `*` where the config names a beginning.
    pub fn own_names(&self) -> impl Iterator<Item = String> {
        self.all.iter().map(|lock| format!("{}/{}", self.own, lock.own_name()))
    }

    /// Whether a lock can be an object of this resource.
    pub fn is_kind(group: &str, resource: &str) -> bool {
        is_lease(group, resource) || matches!((group, resource), ("", "configmaps" | "endpoints"))
    }

    /// The shard's own lock in place of the object of this name, or of that lock itself: clients use
    /// names of answers. `None` if the object is no lock.
    ///
    /// A Lease is in the namespace of the shard's pods, where the mesh gives rights. Other objects stay
    /// where they are: the mesh gives no rights to them. client-go asks for the new name in the
    /// namespace that it was told, so each name counts in both namespaces.
    pub fn own_lock<'l>(
        &'l self,
        resource: &Resource<'_>,
        namespace: &str,
        name: &str,
    ) -> Option<OwnLock<'l>> {
        let stays = !is_lease(&resource.group, &resource.resource);
        let others = self.all.iter().filter(|_| namespace == &*self.own && !stays);
        let named = |lock: &'l Lock| Some((&lock.asked, lock.renamed(name, stays)?));
        let (asked, name) = self.of(namespace).chain(others).find_map(named)?;
        let namespace = match stays {
            true => Cow::Owned(namespace.to_owned()),
            false => Cow::Borrowed(&*self.own),
        };
        Some(OwnLock { asked, namespace, name })
    }

    /// The shard's own lock, if the path or the field selector of a request names it.
    pub fn named_by(&self, info: &RequestInfo<'_>) -> Option<OwnLock<'_>> {
        let resource = info.resource()?;
        let by_fields = || info.options.fields.as_ref()?.as_ref().ok()?.requires("metadata.name");
        let name = resource.name.as_deref().or_else(by_fields)?;
        self.own_lock(resource, info.namespace()?, name)
    }

    /// The locks that the controller has in a namespace.
    fn of<'l>(&'l self, namespace: &str) -> impl Iterator<Item = &'l Lock> {
        self.all.iter().filter(move |lock| lock.asked.namespace() == namespace)
    }

    /// The place where this request may name a lock, or `None` if it is about something else.
    pub fn find(&self, info: &RequestInfo<'_>) -> Option<LockIn> {
        let resource = info.resource()?;
        if self.is_empty()
            || !Self::is_kind(&resource.group, &resource.resource)
            || resource.subresource.is_some()
        {
            return None;
        }
        let namespace = info.namespace()?;
        let is_named = || self.named_by(info).is_some();
        let has_locks = namespace == &*self.own || self.of(namespace).next().is_some();
        match info.verb {
            Verb::Get | Verb::Delete => is_named().then_some(LockIn::Path),
            Verb::Update | Verb::Patch => is_named().then_some(LockIn::PathAndBody),
            Verb::Watch if resource.verb_in_path && resource.name.is_some() => {
                is_named().then_some(LockIn::Path)
            }
            Verb::Create => has_locks.then_some(LockIn::Body),
            Verb::List | Verb::Watch | Verb::DeleteCollection => {
                has_locks.then_some(LockIn::FieldSelector)
            }
            _ => None,
        }
    }
}

fn is_lease(group: &str, resource: &str) -> bool {
    (group, resource) == ("coordination.k8s.io", "leases")
}
