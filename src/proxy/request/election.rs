//! What a request shows of the elections of the pod's controller.
//!
//! Hides which requests are about a lock, and which other writes may be those of a lock. Does not know how the
//! result is used.

use std::{cell::Cell, rc::Rc};

use http::{Request, StatusCode};

use crate::{policy_store::Elections, upstream::ClientBody};
use ctrlmesh_api::lease::PodLease;
use ctrlmesh_policy::{LockName, Locks, Sharding};
use ctrlmesh_wire::{RequestInfo, Verb, request::Resource};

/// The annotation of a ConfigMap or Endpoints that is a lock (client-go's
/// `LeaderElectionRecordAnnotationKey`).
const LEADER: &[u8] = b"control-plane.alpha.kubernetes.io/leader";

/// What a request is to the elections.
pub(super) enum Election {
    /// A request about a lock that the config names.
    Lock { asked: LockName, is_write: bool },
    /// A write of another object, which is a lock if the cell says so.
    Other { object: String, is_lock: Option<Rc<Cell<bool>>> },
}

impl Election {
    /// What this request is to them. `None` if it cannot be about a lock, or its body alone says so.
    pub(super) fn of(
        info: &RequestInfo<'_>,
        sharding: &Sharding,
        request: &mut Request<ClientBody>,
    ) -> Option<Self> {
        let resource = info.resource()?;
        if !Locks::is_kind(&resource.group, &resource.resource) || resource.subresource.is_some() {
            return None;
        }
        let is_write = matches!(info.verb, Verb::Update | Verb::Patch);
        if let Some(own) = sharding.locks().named_by(info) {
            return Some(Self::Lock { asked: own.asked.clone(), is_write });
        }
        let object = name(resource).filter(|_| is_write)?;
        let is_lock = (resource.resource != "leases").then(|| request.body_mut().seek(LEADER));
        Some(Self::Other { object, is_lock })
    }

    /// Records the answer.
    pub(super) fn answered(self, elections: &Elections, code: StatusCode) {
        match self {
            Self::Lock { asked, is_write } => elections.answered(&asked, is_write, code),
            Self::Other { object, is_lock } => {
                if is_lock.is_none_or(|is_lock| is_lock.get()) {
                    elections.wrote_another(object);
                }
            }
        }
    }
}

/// The object that is written, unless it is the Lease of a pod of the mesh.
fn name(resource: &Resource<'_>) -> Option<String> {
    let (namespace, name) = resource.namespace.as_deref().zip(resource.name.as_deref())?;
    let is_of_pod = resource.resource == "leases" && PodLease::pod_of(name).is_some();
    (!is_of_pod).then(|| format!("{} {namespace}/{name}", resource.resource))
}
