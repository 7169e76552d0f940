//! Lists and watches: their scope and policy, and the positions from which clients may resume.

use std::{
    borrow::Cow,
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Deserialize;

use super::{
    live::Subject,
    policy_store::ActivePolicy,
    upstream::{SavedRequest, Server},
};
use crate::positions::{Grants, Position, Positions, Resume};
use ctrlmesh_policy::{Filter, GroupResource, Refusal, Refused, Restriction, Sharding};
use ctrlmesh_wire::{ListOptions, RequestInfo, Verb};

/// A list or watch, as far as positions and changes of policy concern it.
pub(super) struct Collection {
    pub(super) subject: Subject,
    pub(super) position: Arc<Position>,
    pub(super) active: Arc<ActivePolicy>,
    /// The part of its selected objects that is in the shard.
    pub(super) filter: Filter,
    pub(super) bookmarks: Bookmarks,
    /// Whether the client asked for no bookmarks, and they are ours alone.
    pub(super) hides_bookmarks: bool,
    /// The position from which a watch resumes.
    pub(super) from: Option<u64>,
    /// The request of a watch; `None` if it is too long to be kept.
    pub(super) asked: Option<SavedRequest>,
    /// A hash of path and selectors: equal for a list and the watch that resumes from it.
    pub(super) key: u64,
    /// The position it resumes from, after the key of the grant that gave it.
    resumes: Option<(u64, Resume)>,
    /// The shardings under which the client of a watch may have what it has, if not under the present
    /// one.
    pub(super) former: Vec<Arc<Sharding>>,
}

/// The time from which the events of a watch are in order. From then on, bookmarks of our own may stand between
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bookmarks {
    /// There are no bookmarks, so the position may have expired.
    Never,
    /// Bookmarks come after the initial events, which are in no order.
    AfterInitial,
    /// Bookmarks may come from the first event on.
    Always,
}

impl Collection {
    pub(super) fn new(
        info: &RequestInfo<'_>,
        restriction: &Restriction,
        position: Arc<Position>,
        active: &Arc<ActivePolicy>,
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
            is_narrowed: restriction.extent.is_collection(),
            lock: restriction.lock,
        };
        let asks = info.options.allows_bookmarks;
        let hides_bookmarks = restriction.asks_for_bookmarks(info);
        Self {
            subject,
            position,
            active: Arc::clone(active),
            filter: restriction.filter.clone(),
            bookmarks: match from {
                _ if !asks && !hides_bookmarks => Bookmarks::Never,
                Some(_) => Bookmarks::Always,
                None => Bookmarks::AfterInitial,
            },
            hides_bookmarks,
            from,
            asked: None,
            key,
            resumes,
            former: Vec::new(),
        }
    }

    /// Whether its content depends on the policy.
    pub(super) fn has_scope(&self) -> bool {
        self.subject.is_narrowed || self.subject.lock.is_some()
    }

    /// Keeps its position from now on: some of it is about to be shown.
    pub(super) fn keep_position(&mut self, server: &Server) {
        if let Some(positions) = server.positions.get() {
            let ActivePolicy { epoch, sharding, .. } = &*self.active;
            self.position = positions.keep(&self.subject.resource, *epoch, sharding);
        }
    }

    /// Whether the shard sees only a part of it. If not, it passes even if it cannot be parsed.
    pub(super) fn is_limited(&self) -> bool {
        self.subject.is_limited(&self.active)
    }

    /// Whether a watch or a continued list may resume. It may if its position was shown under the present scope,
    /// or if it has no position.
    pub(super) fn may_resume(&self, grants: &mut Grants) -> bool {
        let resumes = self.resumes.filter(|_| self.has_scope());
        resumes.is_none_or(|(key, resume)| {
            grants.resume(key, resume, self.active.epoch, &self.position)
        })
    }

    /// Whether the scopes may be known under which its position was shown.
    pub(super) fn may_return(&self, positions: &Positions) -> bool {
        let is_kept = self.from.is_some() && self.asked.is_some();
        is_kept && self.subject.is_narrowed && positions.has_former(&self.subject.resource)
    }

    /// Notes the scopes under which its position may have been shown. Fails with `Expired` if they are
    /// not known.
    pub(super) fn comes_back(
        &mut self,
        grants: &mut Grants,
        positions: &Positions,
    ) -> Result<(), Refused> {
        let Self { subject, position, active, from, .. } = &*self;
        let former =
            from.and_then(|at| positions.former(&subject.resource, position, at, &active.sharding));
        self.former = former.ok_or_else(expired)?;
        grants.join(self.key, self.active.epoch, &self.position);
        Ok(())
    }
}

/// The refusal of a watch that cannot be brought over.
pub(super) fn expired() -> Refused {
    let why = "the objects that this shard sees have changed since: list again";
    Refusal::Expired.because(why)
}

/// The position a watch or a continued list resumes from, after the key of the grant that gave it.
/// `None` if the request starts from the current state.
fn resumes(info: &RequestInfo<'_>, key: u64) -> Option<(u64, Resume)> {
    let options = &info.options;
    if info.verb == Verb::Watch {
        let at = Resume::at(options.resource_version).filter(|_| !options.sends_initial_events);
        return at.map(|at| (key, at));
    }
    let token = options.continue_token.as_deref()?;
    token_position(token).map(|at| (token_key(token), at))
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

fn collection_key(info: &RequestInfo<'_>) -> u64 {
    let ListOptions { label_text, field_text, .. } = &info.options;
    HASHER.hash_one((info.path.trim_end_matches('/'), label_text, field_text))
}

/// The key of a continued list: the token stands for its collection and position.
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
