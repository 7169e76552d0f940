//! The changes to a request on its way upstream.

use std::borrow::Cow;

use super::{Narrow, Way};
use crate::{
    policy::{Hashes, Lock, LockIn, Refusal, Refused, Scope, Sharding, Share},
    wire::{ListOptions, RequestInfo, Selector},
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
    /// The part of the boundaries that may be sent with these options, if the API server understands
    /// it. Hashes are left out if the client has a `shardSelector` of its own.
    pub fn of(share: &Share, options: &ListOptions<'_>) -> Self {
        let hashes = share.hashes().filter(|hashes| hashes.may_be_pushed(options));
        Self { hashes, namespace: share.only_namespace().map(Into::into) }
    }
}

impl Sharding {
    /// The changes to the path and the query, before anything is pushed. Fails with [`Refused`] if
    /// the client's own selectors cannot be parsed: they could not be narrowed.
    pub fn rewrite<'w>(
        &self,
        way: &'w Way,
        info: &RequestInfo<'_>,
    ) -> Result<Rewrite<'w>, Refused> {
        let mut rewrite = Rewrite::default();
        if let Some(narrow) = way.narrow() {
            rewrite.narrow(narrow, &info.options)?;
            if narrow.asks_for_bookmarks(info) {
                rewrite.set("allowWatchBookmarks", "true");
            }
        }
        if let (Some(lock), Some(place)) = (self.lock(), way.lock()) {
            match place {
                LockIn::Path | LockIn::PathAndBody => rewrite.path = renamed_path(lock, info),
                LockIn::FieldSelector => {
                    if let Some(text) = renamed_field(lock, &info.options)? {
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
    fn narrow(&mut self, narrow: &'w Narrow, options: &ListOptions<'_>) -> Result<(), Refused> {
        if let Some(scope) = &narrow.scope
            && let Some(text) = narrowed(options, scope, &narrow.share)?
        {
            self.set("labelSelector", text);
        }
        // Rows of a Table are judged by their objects, so those must be included.
        if narrow.share.is_each() && options.leaves_out_objects {
            self.set("includeObject", "Metadata");
        }
        Ok(())
    }

    /// Adds the part of the boundaries that the API server understands.
    pub fn push(&mut self, pushed: &Pushed, options: &ListOptions<'_>) {
        if let Some(hashes) = &pushed.hashes {
            self.set("shardSelector", hashes.to_string());
        }
        if let Some(namespace) = &pushed.namespace {
            let term = format!("metadata.namespace={namespace}");
            self.set("fieldSelector", options.fields_and(&term));
        }
    }

    /// The path and query to send upstream, or `None` if they are unchanged.
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
    options: &ListOptions<'_>,
    scope: &'s Scope,
    share: &Share,
) -> Result<Option<Cow<'s, str>>, Refused> {
    // Refused even if nothing is added, so that refusals do not depend on the boundary.
    let own = own_selector(options)?;
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
pub(in crate::policy) fn own_selector<'o>(
    options: &'o ListOptions<'_>,
) -> Result<Option<&'o Selector>, Refused> {
    let own = options.labels.as_ref().map(Result::as_ref).transpose();
    own.map_err(|error| Refusal::BadSelector.because(error))
}

fn renamed_field(lock: &Lock, options: &ListOptions<'_>) -> Result<Option<String>, Refused> {
    let own = options.fields.as_ref().map(Result::as_ref).transpose();
    let own = own.map_err(|error| Refusal::BadSelector.because(error))?;
    Ok(own.and_then(|fields| fields.replace("metadata.name", |name| lock.rename(name))))
}

/// The path with its last segment, the name, replaced. Names of locks need no escaping.
fn renamed_path(lock: &Lock, info: &RequestInfo<'_>) -> Option<String> {
    let renamed = lock.rename(info.resource()?.name.as_deref()?)?;
    let (before, _) = info.path.trim_end_matches('/').rsplit_once('/')?;
    Some(format!("{before}/{renamed}"))
}
