//! The decision about a request, and the policy under which it begins.
//!
//! Hides that the policy may change between the two. Does not know how a decision is carried out.

use std::sync::Arc;

use super::{Pair, answer::Stop};
use crate::{
    policy_store::ActivePolicy,
    upstream::{ClientContext, namespaced},
};
use ctrlmesh_policy::{Locks, Refusal, RequestAction, Write};
use ctrlmesh_wire::{RequestInfo, Verb};

/// The decision about a request, under a policy.
pub(super) struct Decision {
    pub(super) active: Arc<ActivePolicy>,
    pub(super) action: RequestAction,
}

impl Decision {
    /// The decision under a policy.
    pub(super) async fn under(
        active: Arc<ActivePolicy>,
        pair: &Pair,
        info: &RequestInfo<'_>,
        own: ClientContext<'_>,
    ) -> Self {
        let sharding = &active.sharding;
        // Where that is not known, the request is for a collection.
        let is_namespaced = namespaced(&pair.upstream, sharding, info, own).await.unwrap_or(None);
        let action = sharding.action(info, is_namespaced);
        Self { active, action }
    }

    /// Whether the request is a write that passes as it is, and shows nothing of elections.
    pub(super) fn is_apart(&self, info: &RequestInfo<'_>) -> bool {
        let is_kind = info.resource().is_some_and(|of| Locks::is_kind(&of.group, &of.resource));
        !is_kind && matches!(self.action, RequestAction::Write(Write { lock: None, .. }))
    }

    /// Whether the body of a write, and not its line, may name a lock: the shard has its own.
    pub(super) fn may_be_lock(&self, info: &RequestInfo<'_>) -> bool {
        info.verb == Verb::Create && self.action.lock().is_some()
    }
}

/// Decides about a request by the policy in force, before anything is held for it. `None` if there is no policy
/// yet.
pub(super) async fn decide(
    pair: &Pair,
    info: &RequestInfo<'_>,
    own: ClientContext<'_>,
) -> Option<Decision> {
    let active = pair.worker.shared.policy_store.active()?;
    Some(Decision::under(active, pair, info, own).await)
}

pub(super) fn no_policy() -> Stop {
    Refusal::NoPolicy.because("there is no policy for this pod yet").into()
}
