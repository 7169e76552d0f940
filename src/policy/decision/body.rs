//! The changes to the body of a write that names a lock.

use super::Rewrite;
use crate::{LockName, Sharding};
use ctrlmesh_wire::{
    RequestInfo, Verb,
    name::{self, BodyKind, Field, NameError},
};

/// A write that names the shard's own lock.
#[derive(Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The body.
    pub body: Vec<u8>,
    /// The lock of the controller that it names.
    pub lock: Option<LockName>,
    /// The path and query to send upstream, or `None` if the body alone names the lock.
    pub target: Option<String>,
}

impl Sharding {
    /// The write, if its body names a lock of the controller. Fails with [`NameError`] if the name in
    /// the body cannot be relied on.
    pub fn rename_in_body(
        &self,
        info: &RequestInfo<'_>,
        kind: BodyKind,
        body: &[u8],
    ) -> Result<Option<Renamed>, NameError> {
        let Some((resource, namespace)) = info.resource().zip(info.namespace()) else {
            return Ok(None);
        };
        let own = |name: &str| self.locks().own_lock(resource, namespace, name);
        let written = match info.verb {
            Verb::Create => name::name_of(kind, body)?,
            _ => resource.name.as_deref().map(str::to_owned),
        };
        let lock = written.as_deref().and_then(own);
        let renamed = name::rename(kind, body, |field, text| match (field, &lock) {
            (Field::Name, _) => Some(own(text)?.name),
            // The API server refuses a namespace that is not the path's.
            (Field::Namespace, Some(lock)) if text == namespace => Some(lock.namespace.to_string()),
            (Field::Namespace, _) => None,
        })?;
        let asked = lock.as_ref().map(|lock| lock.asked.clone());
        // Other writes name it in their paths, which are rewritten already.
        let moved = lock.filter(|lock| info.verb == Verb::Create && lock.namespace != namespace);
        let target = moved.and_then(|lock| Rewrite::to(lock.path(info)).target(info));
        let is_changed = renamed.is_some() || target.is_some();
        let body = renamed.unwrap_or_else(|| body.to_vec());
        Ok(is_changed.then_some(Renamed { body, lock: asked, target }))
    }
}
