//! The look at a resource that a client begins to watch and no limit names: whether its objects belong to
//! limited ones, of which the shard sees its own alone.
//!
//! Hides the request to the API server, in the client's name, and how owners are read. Does not know how the
//! result is reported.

use std::{collections::BTreeMap, time::Duration};

use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use tokio::time::timeout;

use super::Pair;
use crate::{
    outcome::Why,
    policy_store::ActivePolicy,
    upstream::{ClientContext, METADATA, NoAnswer, group_path},
};
use ctrlmesh_policy::{GroupResource, RequestAction, Sharding, is_shared};
use ctrlmesh_wire::{
    RequestInfo,
    frames::{Item, ListItems},
    media::Encoding,
    object::{Object, Owners, Wanted},
};

/// Most objects that are looked at, and the time that the API server has.
const PAGE: &str = "limit=500&timeoutSeconds=5";
/// Timeout of a request, in HTTP/2.
const LIMIT: Duration = Duration::from_secs(5);
/// Most kinds of owners that are looked up.
const MOST_KINDS: usize = 8;

/// Kinds of owners by their `apiVersion` and `kind`, each with an object that it owns, for people.
type Kinds = BTreeMap<(String, String), String>;

/// Looks at the objects of the collection that a client begins to watch, once under the same limits.
pub(super) async fn look(
    pair: &Pair,
    info: &RequestInfo<'_>,
    action: &RequestAction,
    own: ClientContext<'_>,
    active: &ActivePolicy,
) {
    let sharding = &active.sharding;
    let Some(resource) = unlimited(info, action, sharding) else { return };
    let related = &pair.worker.shared.policy_store.controller().related;
    if own.is_anonymous() || !related.begin(&resource, sharding) {
        return;
    }
    match owned(pair, info, own, sharding).await {
        Ok(None) => {}
        Ok(Some(because)) => {
            if related.found(&resource, because.clone()) {
                tracing::warn!(%resource, because, "watched and not limited, though it belongs to what is");
            }
        }
        Err(NoAnswer::Ever) => {}
        Err(NoAnswer::Now) => related.unanswered(&resource),
    }
}

/// The resource of a watch of a collection, if no limit names it and one could.
fn unlimited(
    info: &RequestInfo<'_>,
    action: &RequestAction,
    sharding: &Sharding,
) -> Option<GroupResource> {
    let RequestAction::Watch(narrow) = action else { return None };
    let is_whole = narrow.scope.is_none() && narrow.extent.is_collection() && narrow.lock.is_none();
    let resource = info.resource().filter(|of| is_whole && !of.verb_in_path)?;
    let stored = GroupResource::of(resource);
    let is_limitable = !stored.are_namespaces() && !is_shared(stored.group(), stored.resource());
    let is_limited = sharding.rules().next().is_some();
    (is_limitable && is_limited && sharding.scope(&stored).is_none()).then_some(stored)
}

/// An object of the collection that belongs to a limited one, for people. `None` if none of the first does.
async fn owned(
    pair: &Pair,
    info: &RequestInfo<'_>,
    own: ClientContext<'_>,
    sharding: &Sharding,
) -> Result<Option<String>, NoAnswer> {
    let kinds = kinds(pair, info, own, sharding);
    // A request of HTTP/1.1 that is cancelled closes the connection, on which the client's own comes next.
    let kinds = match pair.upstream.is_h2() {
        true => timeout(LIMIT, kinds).await.unwrap_or(Err(NoAnswer::Now)),
        false => kinds.await,
    };
    for (kind, example) in kinds? {
        if is_limited(pair, kind, own, sharding).await? {
            return Ok(Some(example));
        }
    }
    Ok(None)
}

/// The kinds of owners on a page of the collection's metadata, whose groups have a limit. Memory holds one object
/// of it.
async fn kinds(
    pair: &Pair,
    info: &RequestInfo<'_>,
    own: ClientContext<'_>,
    sharding: &Sharding,
) -> Result<Kinds, NoAnswer> {
    let Some(resource) = info.resource() else { return Ok(Kinds::new()) };
    let target = format!("{}?{PAGE}", info.path);
    let request = own.request(&pair.upstream, Method::GET, &target, Some(METADATA), None);
    let request = request.map_err(|_| NoAnswer::Ever)?;
    let reply = own.send(&pair.upstream, Why::Related, request).await.map_err(|_| NoAnswer::Now)?;
    match reply.status() {
        StatusCode::OK => {}
        code if code.is_server_error() => return Err(NoAnswer::Now),
        // Another client may be known, or have fewer requests.
        StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS => return Err(NoAnswer::Now),
        _ => return Err(NoAnswer::Ever),
    }
    let wanted = Wanted { owners: true, ..Wanted::default() };
    let mut items = ListItems::wanting(Encoding::Json, wanted).ok_or(NoAnswer::Ever)?;
    let mut kinds = Kinds::new();
    let mut body = reply.into_body();
    while let Some(frame) = body.frame().await {
        let Ok(chunk) = frame.map_err(|_| NoAnswer::Now)?.into_data() else { continue };
        let mut take = |Item { object, .. }: Item<'_>| {
            // Cluster-scoped objects has an owner in none, which all shards may have.
            let owners = object.owners.filter(|_| !object.namespace.is_empty());
            for owner in owners.iter().flat_map(Owners::iter) {
                let is_new =
                    kinds.len() < MOST_KINDS && has_limit(sharding, group(owner.api_version));
                if is_new {
                    let key = (owner.api_version.to_owned(), owner.kind.to_owned());
                    let Object { namespace, name, .. } = object;
                    kinds.entry(key).or_insert_with(|| {
                        let resource = &resource.resource;
                        format!(
                            "{resource} {namespace}/{name} belongs to {} {}",
                            owner.kind, owner.name
                        )
                    });
                }
            }
        };
        items.feed(&chunk, &mut take).map_err(|_| NoAnswer::Ever)?;
    }
    items.finish().map_err(|_| NoAnswer::Now)?;
    Ok(kinds)
}

/// The group in an `apiVersion`.
fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Whether a limit names resources of a group.
fn has_limit(sharding: &Sharding, group: &str) -> bool {
    let is_named = |name: &str| name == "*" || name == group;
    sharding.rules().any(|(rule, _)| is_named(rule.names().0))
}

/// Whether a limit names the resource of a kind.
async fn is_limited(
    pair: &Pair,
    (api_version, kind): (String, String),
    own: ClientContext<'_>,
    sharding: &Sharding,
) -> Result<bool, NoAnswer> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
    let accept = HeaderValue::from_static("application/json");
    let path = group_path(group, version);
    let reply = own.get(&pair.upstream, Why::Discovery, &path, accept, LIMIT).await?;
    // A kind that is not served any more has no plural.
    let list: APIResourceList = serde_json::from_slice(reply.body()).unwrap_or_default();
    let is_it = |one: &APIResource| one.kind == kind && !one.name.contains('/');
    let plural = list.resources.into_iter().find(is_it);
    Ok(plural.is_some_and(|one| sharding.scope(&GroupResource::new(group, &one.name)).is_some()))
}

/// Notes a write of a resource that is watched and not limited: the controller keeps such objects.
pub(super) fn note_write(pair: &Pair, info: &RequestInfo<'_>, active: &ActivePolicy) {
    let sharding = &active.sharding;
    let Some(resource) = info.resource() else { return };
    let Some(namespace) = resource.namespace.as_deref() else { return };
    let is_read = info.method == Method::GET || info.method == Method::HEAD;
    if is_read || namespace == sharding.namespace() {
        return;
    }
    let stored = GroupResource::of(resource);
    let related = &pair.worker.shared.policy_store.controller().related;
    if sharding.scope(&stored).is_none() && related.may_be(&stored) {
        let verb = info.verb.as_str();
        related.found(&stored, format!("it sends {verb} {stored} in namespace {namespace}"));
    }
}
