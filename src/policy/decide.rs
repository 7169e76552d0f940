//! What becomes of one request.

use std::{borrow::Cow, sync::Arc};

use super::{Lock, LockIn, Policy, Refusal, Refused, Scope};
use crate::wire::{
    query::Query,
    request::{RequestInfo, Resource, Verb},
    selector::{FieldSelector, Selector},
};

/// What must be done to a request before it goes upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The collection is narrowed to this.
    pub scope: Option<Arc<Scope>>,
    /// The request may name the lock there.
    pub lock: Option<LockIn>,
}

impl Policy {
    /// Decides by the request line alone.
    #[must_use]
    pub fn decide(&self, info: &RequestInfo<'_>) -> Decision {
        let Some(resource) = info.resource() else {
            return Decision::default();
        };
        Decision {
            scope: self.scope_of(info.verb, resource).cloned(),
            lock: self.lock.as_ref().and_then(|lock| lock.find(info.verb, resource)),
        }
    }

    /// Collections are narrowed. A list or watch of one name is a get by another spelling, and a
    /// get passes: a controller that does not find what it names would create it anew.
    fn scope_of(&self, verb: Verb, resource: &Resource<'_>) -> Option<&Arc<Scope>> {
        let is_narrowed = match verb {
            Verb::List | Verb::Watch => resource.name.is_none(),
            Verb::DeleteCollection => true,
            _ => false,
        };
        if !is_narrowed || resource.subresource.is_some() {
            return None;
        }
        self.scopes.find(&resource.group, &resource.resource)
    }

    /// The path and query that go upstream; nothing when they go as they came.
    ///
    /// # Errors
    /// [`Refused`] when the client's own selectors cannot be read: they could not be narrowed.
    pub fn rewrite(
        &self,
        decision: &Decision,
        info: &RequestInfo<'_>,
        path: &str,
        query: Option<&str>,
    ) -> Result<Option<String>, Refused> {
        let mut new_path = None;
        let mut changes: Vec<(&str, Option<Cow<'_, str>>)> = Vec::new();
        let parsed = Query::parse(query).map_err(|e| Refusal::BadRequestLine.because(e))?;
        if let Some(scope) = &decision.scope {
            let text = narrowed(parsed, scope)?;
            changes.push(("labelSelector", Some(text)));
        }
        if let (Some(lock), Some(place)) = (&self.lock, decision.lock) {
            match place {
                LockIn::Path => new_path = renamed_path(lock, path, info),
                LockIn::FieldSelector => {
                    if let Some(text) = renamed_field(lock, parsed)? {
                        changes.push(("fieldSelector", Some(Cow::Owned(text))));
                    }
                }
                LockIn::Body => {}
            }
        }
        if new_path.is_none() && changes.is_empty() {
            return Ok(None);
        }
        let changes: Vec<_> = changes.iter().map(|(key, value)| (*key, value.as_deref())).collect();
        let query = parsed.rewrite(&changes);
        let path = new_path.as_deref().unwrap_or(path);
        Ok(Some(if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }))
    }
}

/// The client's label selector AND the shard's. Neither can undo the other: a contradiction
/// selects nothing.
fn narrowed<'s>(query: Query<'_>, scope: &'s Scope) -> Result<Cow<'s, str>, Refused> {
    match query.first("labelSelector") {
        None => Ok(Cow::Borrowed(scope.text())),
        Some(text) => {
            let own = Selector::parse(&text).map_err(|e| Refusal::BadSelector.because(e))?;
            Ok(Cow::Owned(own.and(scope.selector()).to_string()))
        }
    }
}

fn renamed_field(lock: &Lock, query: Query<'_>) -> Result<Option<String>, Refused> {
    let Some(text) = query.first("fieldSelector") else {
        return Ok(None);
    };
    let fields = FieldSelector::parse(&text).map_err(|e| Refusal::BadSelector.because(e))?;
    Ok(fields.replace("metadata.name", |name| lock.rename(name)))
}

/// The path with its last segment, the name, replaced. Names of locks need no escaping.
fn renamed_path(lock: &Lock, path: &str, info: &RequestInfo<'_>) -> Option<String> {
    let renamed = lock.rename(info.resource()?.name.as_deref()?)?;
    let (before, _) = path.trim_end_matches('/').rsplit_once('/')?;
    Some(format!("{before}/{renamed}"))
}

#[cfg(test)]
mod tests;
