//! The changes to a request on its way upstream.

use std::borrow::Cow;

use super::{Narrow, Way};
use crate::{
    policy::{Hashes, Lock, LockIn, Refusal, Refused, Scope, Sharding, Share},
    wire::{
        query::Query,
        request::RequestInfo,
        selector::{FieldSelector, Selector},
    },
};

/// A selector of nothing: the API server itself answers, with a real position and bookmarks.
const CONTRADICTION: &str = "ctrlmesh.kusionstack.io/none,!ctrlmesh.kusionstack.io/none";

/// The part of the boundaries that is also sent upstream. It excludes no object of the shard, and
/// each object is still judged when it arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// The hashes to send as `shardSelector` (KEP-5866).
    pub hashes: Option<Hashes>,
    /// The namespace to send as a field selector for `metadata.namespace`.
    pub namespace: Option<Box<str>>,
}

/// The changes to a request on its way upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite<'w> {
    path: Option<String>,
    /// Query parameters and their new values.
    query: Vec<(&'static str, Cow<'w, str>)>,
}

impl Pushed {
    /// The part of the boundaries that may be sent with this query, if the API server understands
    /// it. Hashes are left out if the client has a `shardSelector` of its own.
    #[must_use]
    pub fn of(share: &Share, query: Query<'_>) -> Self {
        let hashes = share.hashes().filter(|hashes| hashes.may_be_pushed(query));
        Self { hashes, namespace: share.only_namespace().map(Into::into) }
    }
}

impl Sharding {
    /// The changes to the path and the query, before anything is pushed.
    ///
    /// # Errors
    /// [`Refused`] if the client's own selectors cannot be parsed: they could not be narrowed.
    pub fn rewrite<'w>(
        &self,
        way: &'w Way,
        info: &RequestInfo<'_>,
    ) -> Result<Rewrite<'w>, Refused> {
        let mut rewrite = Rewrite::default();
        if let Some(narrow) = way.narrow() {
            rewrite.narrow(narrow, info.query)?;
        }
        if let (Some(lock), Some(place)) = (self.lock(), way.lock()) {
            match place {
                LockIn::Path | LockIn::PathAndBody => rewrite.path = renamed_path(lock, info),
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

impl<'w> Rewrite<'w> {
    fn narrow(&mut self, narrow: &'w Narrow, query: Query<'_>) -> Result<(), Refused> {
        if let Some(scope) = &narrow.scope
            && let Some(text) = narrowed(query, scope, &narrow.share)?
        {
            self.set("labelSelector", text);
        }
        // Rows of a Table are judged by their objects, so those must be included.
        let has_no_objects = || query.first("includeObject").is_some_and(|given| given == "None");
        if narrow.share.is_each() && has_no_objects() {
            self.set("includeObject", "Metadata");
        }
        Ok(())
    }

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

    fn set(&mut self, key: &'static str, text: impl Into<Cow<'w, str>>) {
        self.query.push((key, text.into()));
    }
}

/// The client's label selector AND the shard's, or `None` if the client's is sent unchanged.
/// Neither can undo the other: a contradiction selects nothing.
fn narrowed<'s>(
    query: Query<'_>,
    scope: &'s Scope,
    share: &Share,
) -> Result<Option<Cow<'s, str>>, Refused> {
    // Parsed even if nothing is added, so that refusals do not depend on the boundary.
    let own = own_selector(query)?;
    if *share == Share::None {
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
pub(in crate::policy) fn own_selector(query: Query<'_>) -> Result<Option<Selector>, Refused> {
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
