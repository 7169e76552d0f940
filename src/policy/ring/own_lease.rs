//! The pod's own Lease.
//!
//! Hides what the store may hold of it while a write is not answered, or was not. Knows nothing of
//! other pods. Words: a claim is *said* when it was sent to the store; it is *confirmed* when the
//! store holds it and no earlier write can replace it.

use super::{
    claim::{Claim, Lease},
    timing::{Time, Timing},
};
use crate::ObjectSet;

/// The knowledge of the own Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Own<S> {
    /// The ring that it names. `None` before the first config.
    pub(super) ring: Option<Box<str>>,
    pub(super) stored: Stored,
    /// The last claim that was sent. Everything that is open or under way is inside it, and inside
    /// the one that the store holds.
    pub(super) said: Claim<S>,
    pub(super) is_confirmed: bool,
    sent: Option<Sent>,
    pub(super) valid_until: Time,
    pub(super) renew_at: Time,
}

/// The content of the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stored {
    /// Not known: the process is new, and the last one may have left a Lease.
    New,
    /// Not known, and a Lease could not be created.
    Left,
    /// Not known: the answer to a write was lost, or another version was there.
    Unsure,
    Absent,
    At(Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    at: Time,
    is_delete: bool,
}

/// The answer to a write of the own Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The Lease is stored in this version. One that is deleted has none.
    Done(Option<Box<str>>),
    /// The store has another version, or none.
    Conflict,
    /// The answer was lost, or was a 5xx: it may take effect, later too.
    Unknown,
}

/// The meaning of a reading of the own Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found<S> {
    /// The version that is known already.
    Same,
    /// The last process has claimed this.
    Inherited(Claim<S>),
    /// A content that this pod did not write: nothing may be open.
    Lost,
}

impl<S: ObjectSet> Own<S> {
    pub(super) fn new() -> Self {
        Self {
            ring: None,
            stored: Stored::New,
            said: Claim::Nothing,
            is_confirmed: false,
            sent: None,
            valid_until: Time::ZERO,
            renew_at: Time::ZERO,
        }
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent.is_some()
    }

    pub(super) fn is_unread(&self) -> bool {
        matches!(self.stored, Stored::New | Stored::Left | Stored::Unsure)
    }

    pub(super) fn is_valid(&self, now: Time) -> bool {
        now < self.valid_until
    }

    /// A write is sent. Returns whether it may change the claim in the store.
    pub(super) fn send(&mut self, claim: Option<Claim<S>>, at: Time) -> bool {
        self.sent = Some(Sent { at, is_delete: claim.is_none() });
        let claim = claim.unwrap_or(Claim::Nothing);
        let is_renewal = self.is_confirmed && claim == self.said;
        self.said = claim;
        self.is_confirmed = is_renewal;
        !is_renewal
    }

    /// Takes an answer, and returns when the write was sent if it is done.
    pub(super) fn answer(&mut self, answer: Answer, timing: &Timing) -> Option<Time> {
        let Sent { at, is_delete } = self.sent.take()?;
        let Answer::Done(version) = answer else {
            // The Lease that is found next may be of the last process.
            let is_new = matches!(self.stored, Stored::New | Stored::Left);
            self.stored = if is_new { Stored::Left } else { Stored::Unsure };
            return None;
        };
        self.stored = match version.filter(|_| !is_delete) {
            Some(version) => Stored::At(version),
            None => Stored::Absent,
        };
        self.is_confirmed = !is_delete;
        self.valid_until = if is_delete { Time::ZERO } else { timing.valid_until(at) };
        self.renew_at = at + timing.renew_after;
        Some(at)
    }

    /// Takes the own Lease as a list shows it that was asked for after the last write.
    pub(super) fn find(&mut self, lease: Option<Lease<S>>) -> Found<S> {
        let is_new = matches!(self.stored, Stored::New | Stored::Left);
        let Some(Lease { ring, version, claim, .. }) = lease else {
            let was_there = !is_new && self.stored != Stored::Absent;
            self.stored = Stored::Absent;
            return if was_there { self.lose() } else { Found::Same };
        };
        if matches!(&self.stored, Stored::At(known) if *known == version) {
            return Found::Same;
        }
        self.stored = Stored::At(version);
        if is_new {
            self.ring = Some(ring);
            self.said = claim.clone();
            return Found::Inherited(claim);
        }
        if self.is_confirmed && claim != self.said { self.lose() } else { Found::Same }
    }

    /// The Lease was deleted, or written by someone else.
    pub(super) fn lose(&mut self) -> Found<S> {
        self.is_confirmed = false;
        Found::Lost
    }

    #[cfg(test)]
    pub(super) fn shift(&mut self, future: impl Fn(&mut Time), past: impl Fn(&mut Time)) {
        future(&mut self.valid_until);
        future(&mut self.renew_at);
        self.sent.iter_mut().for_each(|sent| past(&mut sent.at));
    }
}
