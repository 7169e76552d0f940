//! The requests that the fence leaves alone, and for which no handover waits.

use crate::{GroupResource, sharding::is_shared};
use ctrlmesh_wire::request::{RequestInfo, Resource, Verb};

/// Whether any shard may send a request at any time: it is no write, or writes what all shards share
/// (leases, events, reviews), or nothing that stays (a token, a session in a pod, a request to what runs
/// there, which may last for minutes). The name of a Namespace that is created is not in the line.
pub(super) fn is_exempt(verb: Verb, resource: &Resource<'_>) -> bool {
    let stored = GroupResource::of(resource);
    !is_write(verb)
        || is_shared(stored.group(), stored.resource())
        || is_session(resource)
        || (stored.are_namespaces() && verb == Verb::Create && resource.subresource.is_none())
}

/// Whether a request is a write, by its verb.
fn is_write(verb: Verb) -> bool {
    matches!(
        verb,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection
    )
}

/// Whether a request deletes objects, or a pod by its eviction.
pub fn deletes(info: &RequestInfo<'_>) -> bool {
    let subresource = info.resource().and_then(|resource| resource.subresource.as_deref());
    match info.verb {
        Verb::Delete | Verb::DeleteCollection => true,
        Verb::Create => subresource == Some("eviction"),
        _ => false,
    }
}

/// Whether a request is to a subresource that is no part of an object.
fn is_session(resource: &Resource<'_>) -> bool {
    let Some(subresource) = resource.subresource.as_deref() else { return false };
    matches!(
        (&*resource.group, &*resource.resource, subresource),
        ("", "pods", "exec" | "attach" | "portforward" | "proxy")
            | ("", "services" | "nodes", "proxy")
            | ("", "serviceaccounts", "token")
    )
}
