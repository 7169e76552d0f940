//! The changes to a request on its way upstream.

use std::borrow::Cow;

use super::{RequestAction, Restriction};
use crate::{Filter, Hashes, LockIn, Locks, Refusal, Refused, Scope, Sharding};
use ctrlmesh_wire::{FieldSelector, ListOptions, RequestInfo, Selector};

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
    pub fn of(filter: &Filter, options: &ListOptions<'_>) -> Self {
        let hashes = filter.hashes().filter(|hashes| hashes.may_be_pushed(options));
        Self { hashes, namespace: filter.only_namespace().map(Into::into) }
    }
}

impl Sharding {
    /// The changes to the path and the query, before anything is pushed. Fails with [`Refused`] if
    /// the client's own selectors cannot be parsed: they could not be narrowed.
    pub fn rewrite<'w>(
        &self,
        action: &'w RequestAction,
        info: &RequestInfo<'_>,
    ) -> Result<Rewrite<'w>, Refused> {
        let mut rewrite = Rewrite::default();
        if let Some(restriction) = action.restriction() {
            rewrite.restriction(restriction, &info.options)?;
            if restriction.asks_for_bookmarks(info) {
                rewrite.set("allowWatchBookmarks", "true");
            }
        }
        match action.lock() {
            Some(LockIn::Path | LockIn::PathAndBody) => rewrite.path = path(self.locks(), info),
            Some(LockIn::FieldSelector) => rewrite.select_lock(self.locks(), info)?,
            Some(LockIn::Body) | None => {}
        }
        Ok(rewrite)
    }
}

impl<'w> Rewrite<'w> {
    /// A change of the path alone.
    pub(super) fn to(path: Option<String>) -> Self {
        Self { path, ..Self::default() }
    }

    fn restriction(
        &mut self,
        restriction: &'w Restriction,
        options: &ListOptions<'_>,
    ) -> Result<(), Refused> {
        if let Some(scope) = &restriction.scope
            && let Some(text) = narrowed(options, scope, &restriction.filter)?
        {
            self.set("labelSelector", text);
        }
        // Rows of a Table are judged by their objects, so those must be included.
        if restriction.filter.is_each() && options.leaves_out_objects {
            self.set("includeObject", "Metadata");
        }
        Ok(())
    }

    /// Selects the shard's own lock in place of the one that the field selector names.
    fn select_lock(&mut self, locks: &Locks, info: &RequestInfo<'_>) -> Result<(), Refused> {
        let fields = info.options.fields.as_ref().map(Result::as_ref).transpose();
        let fields = fields.map_err(|error| Refusal::BadSelector.because(error))?;
        let (Some(fields), Some(resource), Some(namespace)) =
            (fields, info.resource(), info.namespace())
        else {
            return Ok(());
        };
        let required = locks.named_by(info);
        let moved = required.filter(|own| own.namespace != namespace);
        let mut text = fields.replace("metadata.name", |name| {
            let own = locks.own_lock(resource, namespace, name)?;
            // An excluded name is of the namespace that is asked for.
            let is_meant = moved.is_some() || own.namespace == namespace;
            Some(own.name).filter(|own| is_meant && own != name)
        });
        match moved {
            Some(own) if resource.namespace.is_some() => self.path = own.path(info),
            Some(own) => {
                let renamed = text.as_deref().map(FieldSelector::parse).transpose();
                let renamed = renamed.map_err(|error| Refusal::BadSelector.because(error))?;
                let namespace = |_: &str| Some(own.namespace.to_string());
                text = renamed.as_ref().unwrap_or(fields).replace("metadata.namespace", namespace);
            }
            None => {}
        }
        if let Some(text) = text {
            self.set("fieldSelector", text);
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
    filter: &Filter,
) -> Result<Option<Cow<'s, str>>, Refused> {
    // Refused even if nothing is added, so that refusals do not depend on the boundary.
    let own = own_selector(options)?;
    if *filter == Filter::DropAll {
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
pub(crate) fn own_selector<'o>(
    options: &'o ListOptions<'_>,
) -> Result<Option<&'o Selector>, Refused> {
    let own = options.labels.as_ref().map(Result::as_ref).transpose();
    own.map_err(|error| Refusal::BadSelector.because(error))
}

/// The path with the shard's own lock in it, or `None` if it is in it already.
fn path(locks: &Locks, info: &RequestInfo<'_>) -> Option<String> {
    locks.named_by(info)?.path(info).filter(|path| path != info.path)
}
