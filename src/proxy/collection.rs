//! A list or a watch as a thing with a past: what it shows, which position a client may go on from,
//! and under which policy.

use std::{
    borrow::Cow,
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::Uri;
use serde::Deserialize;

use super::{
    feed::InForce,
    pair::Pair,
    streams::{Asked, Subject},
};
use crate::{
    policy::{
        Decision, GroupResource, Judged, Refusal, Refused,
        positions::{Position, Resume},
    },
    wire::{Query, RequestInfo, Verb, rv::ResourceVersion},
};

/// A list or watch, as far as positions and changes of policy concern it.
pub(super) struct Collection {
    pub(super) subject: Subject,
    pub(super) position: Arc<Position>,
    pub(super) in_force: Arc<InForce>,
    /// What of it no selector says.
    pub(super) judged: Judged,
    pub(super) bookmarks: Bookmarks,
    /// The position from which a watch goes on.
    pub(super) from: Option<u64>,
    /// What a watch asked for.
    pub(super) asked: Option<Asked>,
    /// The path and selectors as a number: equal for a list and the watch that resumes from it.
    pub(super) key: u64,
}

/// When a watch may be told a position that belongs to no event of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bookmarks {
    /// Its client asked for none.
    Never,
    /// Once its initial events have ended, which come in no order.
    AfterInitial,
    /// From its first event on.
    Always,
}

impl Collection {
    pub(super) fn new(
        info: &RequestInfo<'_>,
        decision: &Decision,
        position: Arc<Position>,
        in_force: &Arc<InForce>,
        uri: &Uri,
    ) -> Self {
        let resource = info.resource();
        let part = |part: fn(&_) -> &Cow<'_, str>| resource.map_or("", |r| part(r));
        let subject = Subject {
            resource: GroupResource::new(part(|r| &r.group), part(|r| &r.resource)),
            namespace: resource.and_then(|r| r.namespace.as_deref()).map(Into::into),
            is_narrowed: resource.is_some_and(|r| r.name.is_none()),
            lock: decision.lock,
        };
        Self {
            subject,
            position,
            in_force: Arc::clone(in_force),
            judged: decision.judged.clone(),
            bookmarks: Bookmarks::of(uri),
            from: from(info.verb, uri),
            asked: None,
            key: collection_key(uri),
        }
    }

    /// A watch or a further page goes on from a position that the client was shown: only where
    /// that was under the present scope.
    pub(super) fn may_resume(
        &self,
        pair: &Pair,
        info: &RequestInfo<'_>,
        uri: &Uri,
    ) -> Result<(), Refused> {
        if !self.subject.is_narrowed && self.subject.lock.is_none() {
            return Ok(());
        }
        let query = Query::parse(uri.query()).unwrap_or_default();
        let (key, resume) = match info.verb {
            Verb::Watch if is_true(query.first("sendInitialEvents").as_deref()) => return Ok(()),
            Verb::Watch => (self.key, resume_at(&query.first("resourceVersion"))),
            _ => match query.first("continue") {
                None => return Ok(()),
                Some(token) if token.is_empty() => return Ok(()),
                Some(token) => (token_key(&token), token_position(&token)),
            },
        };
        let allowed = match resume {
            None => true,
            Some(resume) => {
                self.position.may_resume(resume)
                    || pair.grants.borrow().allow(key, resume, &self.position)
            }
        };
        if allowed {
            return Ok(());
        }
        let why = "the objects that this shard sees have changed since: list again";
        Err(Refusal::Expired.because(why))
    }
}

impl Bookmarks {
    fn of(uri: &Uri) -> Self {
        let query = Query::parse(uri.query()).unwrap_or_default();
        match () {
            () if !is_true(query.first("allowWatchBookmarks").as_deref()) => Self::Never,
            () if from(Verb::Watch, uri).is_some() => Self::Always,
            () => Self::AfterInitial,
        }
    }
}

/// Nothing for a list, and for a watch that begins with what is there.
fn from(verb: Verb, uri: &Uri) -> Option<u64> {
    let query = Query::parse(uri.query()).unwrap_or_default();
    let is_fresh = is_true(query.first("sendInitialEvents").as_deref());
    match resume_at(&query.first("resourceVersion")) {
        Some(Resume::Number(at)) if verb == Verb::Watch && !is_fresh => Some(at),
        _ => None,
    }
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

fn collection_key(uri: &Uri) -> u64 {
    let query = Query::parse(uri.query()).unwrap_or_default();
    let selectors = (query.first("labelSelector"), query.first("fieldSelector"));
    HASHER.hash_one((uri.path().trim_end_matches('/'), selectors))
}

/// The same for a further page: the token stands for its collection and position.
pub(super) fn token_key(token: &str) -> u64 {
    HASHER.hash_one(token)
}

/// Booleans in a query: everything but `0` and `false` is true, as in
/// `apimachinery/pkg/conversion`.
fn is_true(value: Option<&str>) -> bool {
    value.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

fn resume_at(version: &Option<Cow<'_, str>>) -> Option<Resume> {
    let text = version.as_deref().unwrap_or_default();
    Resume::at(ResourceVersion::parse(text.as_bytes()))
}

/// The position in a continue token (`apiserver/pkg/storage/continue.go`): base64 of JSON.
pub(super) fn token_position(token: &str) -> Option<Resume> {
    #[derive(Deserialize)]
    struct Token {
        rv: i64,
    }
    let json = BASE64_URL_SAFE_NO_PAD.decode(token).unwrap_or_default();
    match serde_json::from_slice(&json) {
        Ok(Token { rv }) if rv > 0 => u64::try_from(rv).ok().map(Resume::Number),
        _ => Some(Resume::Opaque),
    }
}
