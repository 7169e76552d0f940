//! The decision about one request.

use std::{borrow::Cow, sync::Arc};

use super::{GroupResource, Hashes, Lock, LockIn, Policy, Refusal, Refused, Scope};
use crate::wire::{
    frames::{Object, Verdict},
    query::Query,
    request::{RequestInfo, Resource, Verb},
    selector::{FieldSelector, Selector},
};

/// A selector of nothing: the API server itself answers, with a real position and bookmarks.
const CONTRADICTION: &str = "ctrlmesh.kusionstack.io/none,!ctrlmesh.kusionstack.io/none";

/// The decision about a request before it goes upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The number of objects it can concern.
    pub extent: Extent,
    /// The scope that narrows the collection.
    pub scope: Option<Arc<Scope>>,
    /// The part of the scope that no selector expresses.
    pub judged: Judged,
    /// The place where the request may name the lock.
    pub lock: Option<LockIn>,
}

/// The number of objects that a request can concern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// One object, perhaps not created yet.
    #[default]
    One,
    /// The objects of one name in all namespaces: a collection, unless the resource is
    /// cluster-scoped. The path does not show which: see [`Decision::settle`].
    OneName,
    /// A collection.
    Many,
}

/// The part of the boundaries that is also sent upstream. It excludes no object of the shard, and
/// each object is still judged when it arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// As `shardSelector` (KEP-5866).
    pub hashes: Option<Hashes>,
    /// As a field selector for `metadata.namespace`.
    pub namespace: Option<Box<str>>,
}

/// The changes to a request on its way upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite<'d> {
    path: Option<String>,
    /// Query parameters and their new values.
    query: Vec<(&'static str, Cow<'d, str>)>,
}

/// The judgement of a collection's objects by the boundaries of its scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Judged {
    /// All selected objects are in the shard.
    #[default]
    All,
    /// No object can be in the shard: the request names another shard's namespace.
    Nothing,
    /// Each object is judged by itself.
    Each {
        /// The scope that has the boundaries.
        scope: Arc<Scope>,
        /// Whether the objects are Namespaces, judged as the namespaces that they name.
        are_namespaces: bool,
    },
}

impl Extent {
    /// The extent: a list or watch of one name in one namespace counts as a get.
    fn of(info: &RequestInfo<'_>, resource: &Resource<'_>) -> Self {
        let is_one_name = match info.verb {
            _ if resource.subresource.is_some() => return Self::One,
            Verb::List | Verb::Watch => resource.name.is_some(),
            Verb::DeleteCollection => false,
            _ => return Self::One,
        };
        match () {
            () if !is_one_name => Self::Many,
            // A path with the verb in it names the namespace too, if the resource has one.
            () if info.namespace().is_some() || resource.verb_in_path => Self::One,
            () => Self::OneName,
        }
    }
}

impl Decision {
    /// Settles [`Extent::OneName`] once it is known whether the resource is namespaced. Until then,
    /// one name over all namespaces counts as a collection.
    pub fn settle(&mut self, is_namespaced: bool) {
        if self.extent != Extent::OneName {
            return;
        }
        self.extent = Extent::Many;
        if !is_namespaced {
            *self = Self { lock: self.lock, ..Self::default() };
        }
    }
}

impl Pushed {
    /// The part of the boundaries that may be sent with this query, if the API server understands
    /// it. Hashes are left out if the client has a `shardSelector` of its own.
    #[must_use]
    pub fn of(judged: &Judged, query: Query<'_>) -> Self {
        let hashes = judged.hashes().filter(|hashes| hashes.may_be_pushed(query));
        Self { hashes, namespace: judged.only_namespace().map(Into::into) }
    }
}

impl Judged {
    fn new(scope: &Arc<Scope>, resource: &Resource<'_>, namespace: Option<&str>) -> Self {
        let each = || Self::Each {
            scope: Arc::clone(scope),
            are_namespaces: resource.group.is_empty() && resource.resource == "namespaces",
        };
        let boundaries = scope.boundaries();
        let Some(namespace) = namespace else {
            return if boundaries.is_empty() { Self::All } else { each() };
        };
        let mut all = Self::All;
        for boundary in boundaries {
            match boundary.judge_namespace(namespace) {
                Some(true) => {}
                Some(false) => return Self::Nothing,
                None => all = each(),
            }
        }
        all
    }

    /// Judges one object.
    #[must_use]
    pub fn judge(&self, object: &Object<'_>) -> Verdict {
        match self {
            Self::All => Verdict::Keep,
            Self::Nothing => Verdict::Drop,
            Self::Each { scope, are_namespaces } => {
                let verdicts = scope.boundaries().iter().map(|b| b.judge(object, *are_namespaces));
                verdicts.fold(Verdict::Keep, |all, one| match (all, one) {
                    (Verdict::Unknown, _) | (_, Verdict::Unknown) => Verdict::Unknown,
                    (Verdict::Keep, one) => one,
                    (Verdict::Drop, _) => Verdict::Drop,
                })
            }
        }
    }
}

impl Policy {
    /// Decides by the request line alone.
    #[must_use]
    pub fn decide(&self, info: &RequestInfo<'_>) -> Decision {
        let Some(resource) = info.resource() else {
            return Decision::default();
        };
        let extent = Extent::of(info, resource);
        // A get passes: a controller that does not find what it names would create it anew.
        let is_narrowed = extent != Extent::One;
        let named = || GroupResource::new(&resource.group, &resource.resource);
        let scope = is_narrowed.then(|| self.scope(&named()).cloned()).flatten();
        let namespace = resource.namespace.as_deref();
        Decision {
            extent,
            judged: scope
                .as_ref()
                .map_or(Judged::All, |scope| Judged::new(scope, resource, namespace)),
            scope,
            lock: self.lock.as_ref().and_then(|lock| lock.find(info)),
        }
    }

    /// The changes to the path and the query, before anything is pushed.
    ///
    /// # Errors
    /// [`Refused`] if the client's own selectors cannot be parsed: they could not be narrowed.
    pub fn rewrite<'d>(
        &self,
        decision: &'d Decision,
        info: &RequestInfo<'_>,
    ) -> Result<Rewrite<'d>, Refused> {
        let mut rewrite = Rewrite::default();
        if let Some(scope) = &decision.scope
            && let Some(text) = narrowed(info.query, scope, &decision.judged)?
        {
            rewrite.set("labelSelector", text);
        }
        if let Judged::Each { .. } = decision.judged {
            // Rows of a Table are judged by their objects, so those must be included.
            if info.query.first("includeObject").is_some_and(|include| include == "None") {
                rewrite.set("includeObject", "Metadata");
            }
        }
        if let (Some(lock), Some(place)) = (&self.lock, decision.lock) {
            match place {
                LockIn::Path => rewrite.path = renamed_path(lock, info),
                LockIn::FieldSelector => {
                    if let Some(text) = renamed_field(lock, info.query)? {
                        rewrite.set("fieldSelector", text);
                    }
                }
                LockIn::Body => {}
            }
        }
        Ok(rewrite)
    }
}

impl<'d> Rewrite<'d> {
    /// Adds the part of the boundaries that the API server understands.
    pub fn push(&mut self, pushed: &Pushed, query: Query<'_>) {
        if let Some(hashes) = &pushed.hashes {
            self.set("shardSelector", hashes.to_string());
        }
        if let Some(namespace) = &pushed.namespace {
            let own = query.first("fieldSelector").filter(|own| !own.is_empty());
            let own = own.map_or_else(String::new, |own| format!("{own},"));
            self.set("fieldSelector", format!("{own}metadata.namespace={namespace}"));
        }
    }

    /// The path and query to send upstream, or `None` if they are unchanged.
    #[must_use]
    pub fn target(&self, info: &RequestInfo<'_>) -> Option<String> {
        if self.path.is_none() && self.query.is_empty() {
            return None;
        }
        let changes: Vec<_> = self.query.iter().map(|(key, text)| (*key, Some(&**text))).collect();
        let query = info.query.rewrite(&changes);
        let path = self.path.as_deref().unwrap_or(info.path);
        Some(if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") })
    }

    fn set(&mut self, key: &'static str, text: impl Into<Cow<'d, str>>) {
        self.query.push((key, text.into()));
    }
}

/// The client's label selector AND the shard's, or `None` if the client's is sent unchanged.
/// Neither can undo the other: a contradiction selects nothing.
fn narrowed<'s>(
    query: Query<'_>,
    scope: &'s Scope,
    judged: &Judged,
) -> Result<Option<Cow<'s, str>>, Refused> {
    // Parsed even if nothing is added, so that refusals do not depend on the boundary.
    let own = own_selector(query)?;
    if *judged == Judged::Nothing {
        return Ok(Some(Cow::Borrowed(CONTRADICTION)));
    }
    if scope.selector().is_everything() {
        return Ok(None);
    }
    Ok(Some(match own {
        None => Cow::Borrowed(scope.text()),
        Some(own) => Cow::Owned(own.and(scope.selector()).to_string()),
    }))
}

/// The client's own label selector.
pub(super) fn own_selector(query: Query<'_>) -> Result<Option<Selector>, Refused> {
    let own = query.first("labelSelector");
    own.map(|text| Selector::parse(&text).map_err(|e| Refusal::BadSelector.because(e))).transpose()
}

fn renamed_field(lock: &Lock, query: Query<'_>) -> Result<Option<String>, Refused> {
    let Some(text) = query.first("fieldSelector") else {
        return Ok(None);
    };
    let fields = FieldSelector::parse(&text).map_err(|e| Refusal::BadSelector.because(e))?;
    Ok(fields.replace("metadata.name", |name| lock.rename(name)))
}

/// The path with its last segment, the name, replaced. Names of locks need no escaping.
fn renamed_path(lock: &Lock, info: &RequestInfo<'_>) -> Option<String> {
    let renamed = lock.rename(info.resource()?.name.as_deref()?)?;
    let (before, _) = info.path.trim_end_matches('/').rsplit_once('/')?;
    Some(format!("{before}/{renamed}"))
}

#[cfg(test)]
mod tests;
