//! A list or a watch as a thing with a past: what it shows, which position a client may go on from,
//! and under which policy.

use std::{
    borrow::Cow,
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Deserialize;

use super::{
    feed::{Feed, InForce},
    pair::Pair,
    streams::{Asked, Subject},
};
use crate::{
    policy::{
        Decision, Extent, GroupResource, Judged, Refusal, Refused,
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
    /// The request of a watch; `None` if it is too long to be kept.
    pub(super) asked: Option<Asked>,
    /// The path and selectors as a number: equal for a list and the watch that resumes from it.
    pub(super) key: u64,
    /// What it goes on from, and the key of who was shown that.
    resumes: Option<(u64, Resume)>,
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
    ) -> Self {
        let key = collection_key(info);
        let resumes = resumes(info, key);
        let from = match resumes {
            Some((_, Resume::Number(at))) if info.verb == Verb::Watch => Some(at),
            _ => None,
        };
        let resource = info.resource();
        let part = |part: fn(&_) -> &Cow<'_, str>| resource.map_or("", |r| part(r));
        let subject = Subject {
            resource: GroupResource::new(part(|r| &r.group), part(|r| &r.resource)),
            namespace: resource.and_then(|r| r.namespace.as_deref()).map(Into::into),
            is_narrowed: decision.extent != Extent::One,
            lock: decision.lock,
        };
        Self {
            subject,
            position,
            in_force: Arc::clone(in_force),
            judged: decision.judged.clone(),
            bookmarks: Bookmarks::of(info.query, from),
            from,
            asked: None,
            key,
            resumes,
        }
    }

    /// Whether what it shows depends on the policy.
    pub(super) fn has_scope(&self) -> bool {
        self.subject.is_narrowed || self.subject.lock.is_some()
    }

    /// Something of it is about to be shown.
    pub(super) fn keep_position(&mut self, feed: &Feed) {
        if let Some(positions) = feed.positions() {
            let InForce { epoch, policy, .. } = &*self.in_force;
            self.position = positions.keep(&self.subject.resource, *epoch, policy);
        }
    }

    /// Whether the shard sees a part of it. What is not limited goes through even where it cannot be
    /// read.
    pub(super) fn is_limited(&self) -> bool {
        self.subject.is_limited(&self.in_force)
    }

    /// A watch or a further page goes on from a position that the client was shown: only where
    /// that was under the present scope.
    pub(super) fn may_resume(&self, pair: &Pair) -> Result<(), Refused> {
        if !self.has_scope() {
            return Ok(());
        }
        let Some((key, resume)) = self.resumes else { return Ok(()) };
        let is_allowed = self.position.may_resume(resume)
            || pair.grants.borrow().allow(key, resume, &self.position);
        if is_allowed {
            return Ok(());
        }
        let why = "the objects that this shard sees have changed since: list again";
        Err(Refusal::Expired.because(why))
    }
}

impl Bookmarks {
    fn of(query: Query<'_>, from: Option<u64>) -> Self {
        match () {
            () if query.flag("allowWatchBookmarks") != Some(true) => Self::Never,
            () if from.is_some() => Self::Always,
            () => Self::AfterInitial,
        }
    }
}

/// What a watch or a further page goes on from, and by which key that was given. Nothing for what
/// begins with what is there.
fn resumes(info: &RequestInfo<'_>, key: u64) -> Option<(u64, Resume)> {
    let query = info.query;
    if info.verb == Verb::Watch {
        let is_fresh = query.flag("sendInitialEvents").unwrap_or_default();
        let version = query.first("resourceVersion").filter(|_| !is_fresh)?;
        return Resume::at(ResourceVersion::parse(version.as_bytes())).map(|at| (key, at));
    }
    let token = query.first("continue").filter(|token| !token.is_empty())?;
    token_position(&token).map(|at| (token_key(&token), at))
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

fn collection_key(info: &RequestInfo<'_>) -> u64 {
    let selectors = (info.query.first("labelSelector"), info.query.first("fieldSelector"));
    HASHER.hash_one((info.path.trim_end_matches('/'), selectors))
}

/// The same for a further page: the token stands for its collection and position.
pub(super) fn token_key(token: &str) -> u64 {
    HASHER.hash_one(token)
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
