//! Requests that may still take effect.
//!
//! Hides when a request of unknown end has ended. Knows no Lease and no request, but of
//! each the piece of a resource in which it was allowed. Words: a request is *under way* from its
//! sending until its end; an end is *known* if the API server answered below 500.

use std::{collections::BTreeMap, time::Duration};

use super::{claim::Claim, timing::Time};
use crate::{ObjectSet, Rule};

/// The requests of a pod that are under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnderWay<S> {
    /// The requests that wait for an answer.
    sent: BTreeMap<u64, SentRequest<S>>,
    /// The requests of unknown end: one for each thing that they may touch.
    untold: Vec<Untold<S>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SentRequest<S> {
    within: Within<S>,
    deadline: Time,
}

/// The objects that a request may touch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Within<S> {
    ObjectSet(Rule, S),
    /// Anything that the last process claimed.
    Claim(Claim<S>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Untold<S> {
    within: Within<S>,
    until: Until,
}

/// The condition on which a request of unknown end has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Until {
    /// The deadline of the request, and then an answer to a write of the own Lease.
    Deadline(Time),
    /// A time.
    Settled(Time),
}

impl<S: ObjectSet> Within<S> {
    fn is_covered_by(&self, claim: &Claim<S>) -> bool {
        match self {
            Self::ObjectSet(rule, piece) => claim.covers(rule, piece),
            Self::Claim(of_last) => claim.covers_all(of_last),
        }
    }
}

impl<S: ObjectSet> UnderWay<S> {
    pub(super) fn new() -> Self {
        Self { sent: BTreeMap::new(), untold: Vec::new() }
    }

    /// A request is sent, which may touch the piece.
    pub(super) fn begin(&mut self, id: u64, rule: Rule, piece: S, deadline: Time) {
        self.sent.insert(id, SentRequest { within: Within::ObjectSet(rule, piece), deadline });
    }

    /// Requests were sent, which may touch anything in the claim.
    pub(super) fn begin_all(&mut self, id: u64, claim: Claim<S>) {
        self.sent.insert(id, SentRequest { within: Within::Claim(claim), deadline: Time::MAX });
    }

    /// A request has ended.
    pub(super) fn end(&mut self, id: u64) {
        self.sent.remove(&id);
    }

    /// A request is over for the pod, and its end is unknown.
    pub(super) fn lose(&mut self, id: u64) {
        if let Some(SentRequest { within, deadline }) = self.sent.remove(&id) {
            self.add(within, deadline);
        }
    }

    /// Something was sent inside a claim, and its end is unknown: by the last process of the pod, too.
    pub(super) fn inherit(&mut self, claim: Claim<S>, deadline: Time) {
        self.add(Within::Claim(claim), deadline);
    }

    fn add(&mut self, within: Within<S>, deadline: Time) {
        for untold in &mut self.untold {
            if let Until::Deadline(other) = &mut untold.until
                && untold.within == within
            {
                *other = deadline.max(*other);
                return;
            }
        }
        self.untold.push(Untold { within, until: Until::Deadline(deadline) });
    }

    /// A write of the own Lease that was sent at `sent` was answered: the API server is alive.
    pub(super) fn answered(&mut self, sent: Time, now: Time, settling: Duration) {
        for untold in &mut self.untold {
            if let Until::Deadline(deadline) = untold.until
                && deadline <= sent
            {
                untold.until = Until::Settled(now + settling);
            }
        }
    }

    /// Forgets what has ended already.
    pub(super) fn forget(&mut self, now: Time) {
        self.untold.retain(|untold| !matches!(untold.until, Until::Settled(at) if at <= now));
    }

    /// Whether all that is under way is inside the claim.
    pub(super) fn is_inside(&self, claim: &Claim<S>) -> bool {
        let sent = self.sent.values().map(|sent| &sent.within);
        let untold = self.untold.iter().map(|untold| &untold.within);
        sent.chain(untold).all(|within| within.is_covered_by(claim))
    }

    /// Whether a request waits for an answer to a write of the own Lease.
    pub(super) fn needs_answer(&self, now: Time) -> bool {
        let is_due = |until| matches!(until, Until::Deadline(at) if at <= now);
        self.untold.iter().any(|untold| is_due(untold.until))
    }

    /// The next time at which time alone changes something.
    pub(super) fn wake(&self, now: Time) -> Option<Time> {
        let times = self.untold.iter().map(|untold| match untold.until {
            Until::Deadline(at) | Until::Settled(at) => at,
        });
        times.filter(|at| *at > now).min()
    }

    /// The number of requests without a known end, and of those among them that were given up.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.sent.len() + self.untold.len(), self.untold.len())
    }

    #[cfg(test)]
    pub(super) fn shift(&mut self, future: impl Fn(&mut Time)) {
        self.sent.values_mut().for_each(|sent| future(&mut sent.deadline));
        for untold in &mut self.untold {
            let (Until::Deadline(at) | Until::Settled(at)) = &mut untold.until;
            future(at);
        }
    }
}
