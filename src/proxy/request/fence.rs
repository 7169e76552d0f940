//! The judgement of a write, before anything of it is sent.
//!
//! Hides which facts are reported of a foreign write, and whose it is. Does not know how a write is judged.

use super::{Pair, decision::Decision, related};
use crate::policy_store::{Move, PolicyStore};
use ctrlmesh_api::FenceMode;
use ctrlmesh_policy::{Fence, Foreign, Refusal, Refused, Verdict, deletes};
use ctrlmesh_wire::{
    RequestInfo, Verb,
    name::{self, BodyKind},
};

/// Judges a write by its line. Also returns whether a handover waits for its end.
pub(super) fn judge(pair: &Pair, info: &RequestInfo<'_>, decision: &Decision) -> (Verdict, bool) {
    let Decision { active, action } = decision;
    let verdict = pair.worker.shared.policy_store.fence().judge(&active.sharding, info, action);
    (verdict, verdict.is_waited_for(action.scope().is_some()))
}

/// Settles a write whose body may name a lock, once it is known that it names none.
pub(super) fn settle_later(
    pair: &Pair,
    info: &RequestInfo<'_>,
    decision: &Decision,
) -> Result<(), Refused> {
    let (verdict, _) = judge(pair, info, decision);
    settle(pair, info, decision, verdict)
}

/// Records the verdict on a write. Fails with the answer, if it is refused.
pub(super) fn settle(
    pair: &Pair,
    info: &RequestInfo<'_>,
    decision: &Decision,
    verdict: Verdict,
) -> Result<(), Refused> {
    if !matches!(verdict, Verdict::Exempt | Verdict::Excepted) {
        related::note_write(pair, info, &decision.active);
    }
    let refused = match verdict {
        Verdict::Exempt | Verdict::Unjudged => None,
        Verdict::Inside => early(pair, info, decision),
        Verdict::Excepted => {
            count(pair, info, verdict.label());
            None
        }
        Verdict::Warned | Verdict::Refused => {
            let fence = pair.worker.shared.policy_store.fence();
            foreign(pair, info, decision, &fence, verdict)
        }
    };
    refused.map_or(Ok(()), Err)
}

/// The refusal of a delete in a namespace that has just come to the shard. Children are shown before their
/// parents: a controller that deletes what lacks a parent would delete them.
fn early(pair: &Pair, info: &RequestInfo<'_>, decision: &Decision) -> Option<Refused> {
    let is_early = deletes(info) && has_just_come(pair, info, decision);
    is_early.then(|| not_shown(pair, info, decision))
}

/// Whether the body of a create must name its object: the namespace has just come to the shard, and a
/// controller that has not read the children yet would make each a second time, by a generated name.
pub(super) fn needs_a_name(pair: &Pair, info: &RequestInfo<'_>, decision: &Decision) -> bool {
    let has_no_name = || info.resource().is_some_and(|resource| resource.name.is_none());
    info.verb == Verb::Create && has_no_name() && has_just_come(pair, info, decision)
}

/// Settles a create that [`needs_a_name`], by its body. A name that cannot be relied on is none. A body in
/// an encoding without objects passes: the API server refuses it.
pub(super) fn settle_name(
    pair: &Pair,
    info: &RequestInfo<'_>,
    decision: &Decision,
    kind: Option<BodyKind>,
    body: &[u8],
) -> Result<(), Refused> {
    let Some(kind) = kind else { return Ok(()) };
    let name = name::name_of(kind, body).ok().flatten();
    match name.is_some_and(|name| !name.is_empty()) {
        true => Ok(()),
        false => Err(not_shown(pair, info, decision)),
    }
}

/// Whether a request is inside a namespace that has just come to the shard: no client may have been shown it
/// whole.
fn has_just_come(pair: &Pair, info: &RequestInfo<'_>, decision: &Decision) -> bool {
    let Decision { active, action } = decision;
    let mut moves = active.moves.iter().filter(|moved| !moved.is_over()).peekable();
    if moves.peek().is_none() {
        return false;
    }
    let fence = pair.worker.shared.policy_store.fence();
    let is_foreign = |verdict| matches!(verdict, Verdict::Excepted | Verdict::Refused);
    fence.mode() == FenceMode::Enforce
        && fence.judge(&active.sharding, info, action) == Verdict::Inside
        && moves.any(|moved| is_foreign(judged_before(&fence, moved, info)))
}

/// The verdict on a request under the sharding before a move.
fn judged_before(fence: &Fence, moved: &Move, info: &RequestInfo<'_>) -> Verdict {
    fence.judge(&moved.before, info, &moved.before.action(info, None))
}

/// Counts and returns the refusal of a write in a namespace that has just come.
fn not_shown(pair: &Pair, info: &RequestInfo<'_>, decision: &Decision) -> Refused {
    let write = Foreign::of(info).map(|write| write.example(info, None));
    count(pair, info, "gained");
    let how = if deletes(info) { "" } else { " without metadata.name" };
    Refusal::NamespaceMoved.because(format_args!(
        "cannot {}{how} now: the namespace has just come to shard {}, and what it holds may not be shown whole",
        write.unwrap_or_default(),
        decision.active.sharding.shard(),
    ))
}

/// Records a foreign write. Returns the answer, if it is refused.
fn foreign(
    pair: &Pair,
    info: &RequestInfo<'_>,
    decision: &Decision,
    fence: &Fence,
    verdict: Verdict,
) -> Option<Refused> {
    let policy_store = &pair.worker.shared.policy_store;
    let active = &decision.active;
    let write = Foreign::of(info);
    let owner = write.as_ref().and_then(|write| owner(policy_store, write));
    let example = write.as_ref().map(|write| write.example(info, owner.as_deref()));
    let example = example.unwrap_or_default();
    let moved = active.moves.iter().filter(|moved| !moved.is_shown());
    let mut moved = moved.filter(|moved| judged_before(fence, moved, info) == Verdict::Inside);
    if verdict == Verdict::Refused && moved.next().is_some() {
        count(pair, info, "moved");
        return Some(Refusal::NamespaceMoved.because(format_args!(
            "cannot {example}: the namespace has just left shard {}, and what the client was shown is old",
            active.sharding.shard(),
        )));
    }
    count(pair, info, verdict.label());
    let is_new = write.is_some_and(|write| {
        policy_store.controller().foreign_writes.add(write, verdict, example.clone())
    });
    if is_new {
        tracing::warn!(
            verdict = verdict.label(),
            write = example,
            "write into another shard's namespace"
        );
    }
    let refused = || fence.refused(&active.sharding, info, owner.as_deref());
    (verdict == Verdict::Refused).then(refused)
}

/// The shard that has the namespace of a write, among those of the pod's ring, or of its webhook.
fn owner(policy_store: &PolicyStore, write: &Foreign) -> Option<String> {
    let pending_policy = policy_store.pending_policy().borrow().clone();
    if let Some(pending_policy) = pending_policy {
        let rivals = pending_policy.wishes.rivals.iter();
        let owner = write.owner(rivals.map(|rival| (&*rival.shard, &*rival.area)));
        return owner.map(str::to_owned);
    }
    let siblings = policy_store.siblings().borrow().clone()?;
    let areas: Vec<_> = siblings.others().map(|one| (one.shard(), one.area())).collect();
    write.owner(areas.iter().map(|(shard, area)| (*shard, area))).map(str::to_owned)
}

fn count(pair: &Pair, info: &RequestInfo<'_>, verdict: &'static str) {
    let resource = info.resource().map_or("", |resource| &resource.resource);
    pair.worker.shared.metrics.count_fence(resource, verdict);
}
