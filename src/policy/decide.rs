//! What becomes of one request.

use std::{borrow::Cow, sync::Arc};

use super::{GroupResource, Hashes, Lock, LockIn, Policy, Refusal, Refused, Scope};
use crate::wire::{
    frames::{Object, Verdict},
    query::Query,
    request::{RequestInfo, Resource, Verb},
    selector::{FieldSelector, Selector},
};

/// Selects nothing. The answer is the API server's own, with a real position and bookmarks.
const CONTRADICTION: &str = "ctrlmesh.kusionstack.io/none,!ctrlmesh.kusionstack.io/none";

/// What must be done to a request before it goes upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// How many objects it can be about.
    pub extent: Extent,
    /// The collection is narrowed to this.
    pub scope: Option<Arc<Scope>>,
    /// What of the scope no selector says.
    pub judged: Judged,
    /// The request may name the lock there.
    pub lock: Option<LockIn>,
}

/// How many objects a request can be about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// One, or none yet.
    #[default]
    One,
    /// Those of one name in all namespaces: a collection, unless the resource is in no namespace.
    /// A path does not tell: see [`Decision::settle`].
    OneName,
    /// A collection.
    Many,
}

/// Of what no selector says, what is sent upstream too. It takes away no object that is in the
/// shard, and each object is judged again when it comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// As `shardSelector` (KEP-5866).
    pub hashes: Option<Hashes>,
    /// As a field selector for `metadata.namespace`.
    pub namespace: Option<Box<str>>,
}

/// What of a request changes on its way upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite<'d> {
    path: Option<String>,
    /// Keys of the query, and what they are set to.
    query: Vec<(&'static str, Cow<'d, str>)>,
}

/// How the objects of a collection are judged by the boundaries of its scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Judged {
    /// All that is selected is in the shard.
    #[default]
    All,
    /// Nothing is: all of it is in a namespace of others.
    Nothing,
    /// Each by itself.
    Each {
        /// The boundaries.
        scope: Arc<Scope>,
        /// The objects are Namespaces, which count as what they name.
        are_namespaces: bool,
    },
}

impl Extent {
    /// A list or watch of one name in one namespace is a get by another spelling.
    fn of(info: &RequestInfo<'_>, resource: &Resource<'_>) -> Self {
        let is_one_name = match info.verb {
            _ if resource.subresource.is_some() => return Self::One,
            Verb::List | Verb::Watch => resource.name.is_some(),
            Verb::DeleteCollection => false,
            _ => return Self::One,
        };
        match () {
            () if !is_one_name => Self::Many,
            // With the verb in its path it names an object of a namespace by both.
            () if info.namespace().is_some() || resource.verb_in_path => Self::One,
            () => Self::OneName,
        }
    }
}

impl Decision {
    /// The same once it is known whether the objects of the resource are in namespaces. Before, one
    /// name over all namespaces is taken for a collection.
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
    /// What of a boundary may be told of a collection with this query, if the API server
    /// understands. A selector of its own that the client gave stays alone.
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

    /// What changes of the path and the query, before anything is pushed.
    ///
    /// # Errors
    /// [`Refused`] when the client's own selectors cannot be read: they could not be narrowed.
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
            // The rows of a Table are judged by the objects that they stand for.
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
    /// Tells the API server what it understands of the boundary.
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

    /// The path and query that go upstream; nothing when they go as they came.
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

/// The client's label selector AND the shard's; nothing where the client's is the whole. Neither
/// can undo the other: a contradiction selects nothing.
fn narrowed<'s>(
    query: Query<'_>,
    scope: &'s Scope,
    judged: &Judged,
) -> Result<Option<Cow<'s, str>>, Refused> {
    // Read even where nothing is added, so that what is refused does not depend on the boundary.
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
