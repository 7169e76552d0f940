//! The machine of one pod: it gives up before another takes, and takes when the others gave up.
//!
//! Hides the order of closing, claiming, reading and opening, and what of it is done. Knows no
//! clock, no API server, and of objects only the pieces of resources that [`ByResource`] has. Words:
//! *open* objects may be written; *shown* objects are those that the streams show. The two differ only
//! while the own Lease is not valid.

use std::{sync::Arc, time::Duration};

use super::{
    claim::{Claim, Lease, Listing},
    config::DesiredScope,
    invariants::{Invariant, Invariants},
    own_lease::{Answer, Found, Own, Stored},
    peer_leases::{Clock, Peers, Reading},
    timing::{Time, Timing},
    under_way::UnderWay,
};
use crate::{ByResource, GroupResource, ObjectSet, Rule};

/// The machine of one pod. Its inputs are calls; after each, the caller does what
/// [`next_write`](Self::next_write), [`next_read`](Self::next_read) and
/// [`to_watch`](Self::to_watch) ask for, takes the [open](Self::open) and [shown](Self::shown) areas,
/// and calls [`tick`](Self::tick) at [`wake`](Self::wake). Safe whatever is late, lost or repeated;
/// the pace of repetitions is the caller's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handover<S> {
    pub(super) laws: Invariants,
    pub(super) timing: Timing,
    pub(super) pod: Box<str>,
    pub(super) config: Option<DesiredScope<S>>,
    pub(super) rivals: Vec<DesiredScope<S>>,
    pub(super) is_leaving: bool,
    pub(super) open: Option<Arc<ByResource<S>>>,
    shown: Option<Arc<ByResource<S>>>,
    pub(super) own: Own<S>,
    pub(super) peers: Peers<S>,
    pub(super) under_way: UnderWay<S>,
}

/// A write of the own Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write<S> {
    /// The Lease is to say this.
    Claim(Saying<S>),
    /// The Lease is to be deleted, if it has this version.
    Delete(Box<str>),
}

/// The content that the own Lease is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saying<S> {
    /// Whether there is no Lease yet.
    pub is_new: bool,
    /// The version that is replaced.
    pub replaces: Option<Box<str>>,
    /// Whether the Lease is to be deleted with its pod.
    pub goes_with_pod: bool,
    /// The ring.
    pub ring: Box<str>,
    /// The config that the pod follows.
    pub config: DesiredScope<S>,
    /// The claim.
    pub claim: Claim<S>,
}

/// The Leases that the caller is to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched<'a> {
    /// The Leases of the ring, from the last list on.
    Handover,
    /// The own Lease, from this version on.
    Own(&'a str),
}

/// The step at which the machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The wish of the config is open, as far as it is this shard's.
    Open,
    /// The lost part is closed, and requests outside of the new claim are under way.
    Closing,
    /// The Lease is to say the new claim.
    Claiming,
    /// The others are to give up the claimed objects, or are not known to have done so.
    Waiting,
}

impl<S: ObjectSet> Handover<S> {
    /// The machine of a new process in the pod with this uid: nothing is open.
    pub fn new(pod: &str, timing: Timing) -> Self {
        Self {
            laws: Invariants::default(),
            timing,
            pod: pod.into(),
            config: None,
            rivals: Vec::new(),
            is_leaving: false,
            open: None,
            shown: None,
            own: Own::new(),
            peers: Peers::new(),
            under_way: UnderWay::new(),
        }
    }

    /// The wish of the own config, for the namespaces as they are. It may be late, or older than the
    /// last. What it takes away is closed at once.
    pub fn configure(&mut self, config: DesiredScope<S>, now: Time) {
        let left = |area: &mut Option<Arc<ByResource<S>>>| {
            if let Some(area) = area {
                let left = area.meet(&config.area);
                if left != **area {
                    *area = Arc::new(left);
                }
            }
        };
        left(&mut self.open);
        left(&mut self.shown);
        let ring = self.own.ring.get_or_insert_with(|| config.ring.clone());
        if *ring != config.ring {
            self.open = None;
        }
        self.config = Some(config);
        self.settle(now);
    }

    /// Whether these wishes are the last that were seen.
    pub fn has_wishes(&self, own: &DesiredScope<S>, rivals: &[DesiredScope<S>]) -> bool {
        self.config.as_ref() == Some(own) && self.rivals == rivals
    }

    /// The wishes of the configs of the ring. They may be late: they decide who claims, not
    /// who opens.
    pub fn see_configs(&mut self, configs: Vec<DesiredScope<S>>, now: Time) {
        self.rivals = configs;
        self.settle(now);
    }

    /// The list of Leases that was asked for.
    pub fn listed(&mut self, listing: Listing<S>, now: Time) {
        let Some(asked) = self.peers.take_reading() else { return };
        let is_consistent = listing.is_consistent || !self.laws.hold(Invariant::ReadConsistently);
        let (mut own, others): (Vec<_>, Vec<_>) =
            listing.leases.into_iter().partition(|lease| lease.pod == self.pod);
        let counts = is_consistent && asked.counts;
        self.peers.replace(others, counts, is_consistent, self.clock(now));
        if listing.is_consistent && asked.is_current {
            match self.own.find(own.pop()) {
                Found::Same => {}
                Found::Inherited(claim) => {
                    self.under_way.inherit(claim, now + self.timing.longest);
                }
                Found::Lost => self.close(),
            }
        }
        self.settle(now);
    }

    /// The list that was asked for is not to be had.
    pub fn unlisted(&mut self) {
        self.peers.take_reading();
    }

    /// A Lease as the watch shows it that follows the last list. Returns whether it says anything new:
    /// most are renewals.
    pub fn changed(&mut self, lease: Lease<S>, now: Time) -> bool {
        // Of the own one, answers are newer than a watch, which is late.
        let is_new = lease.pod != self.pod
            && self.peers.is_followed()
            && self.peers.change(lease, self.clock(now));
        if is_new {
            self.settle(now);
        }
        is_new
    }

    /// A Lease was deleted, or is labelled with this ring no more, as the watch shows it.
    pub fn deleted(&mut self, pod: &str, now: Time) {
        if *pod == *self.pod {
            if matches!(self.own.stored, Stored::At(_)) && !self.is_leaving {
                self.own.lose();
                self.own.stored = Stored::Unsure;
                self.close();
            }
        } else if self.peers.is_followed() {
            self.peers.remove(pod);
        }
        self.settle(now);
    }

    /// The watch of the ring has ended: what it would have shown is unknown.
    pub fn unfollowed(&mut self) {
        self.peers.unfollow();
    }

    /// Requests of a former policy are under way, anywhere in its area.
    pub fn begin_former(&mut self, id: u64, area: ByResource<S>) {
        self.under_way.begin_all(id, Claim::of(area));
    }

    /// A request on anything in an area was given up at a time. It is unknown whether it takes
    /// effect.
    pub fn lose_within(&mut self, area: ByResource<S>, at: Time) {
        self.under_way.inherit(Claim::of(area), at + self.timing.longest);
    }

    /// A request on an object of the resource is to be sent, which takes at most `longest`. Returns
    /// the time that it may take, or `None` if it must not be sent: the resource is not open now.
    pub fn begin(
        &mut self,
        id: u64,
        resource: &GroupResource,
        longest: Duration,
        now: Time,
    ) -> Option<Duration> {
        self.settle(now);
        let rule = Rule::of(resource);
        let open = self.open.as_ref()?;
        let longest = longest.min(self.own.valid_until.saturating_sub(now));
        if let Some(piece) = open.find(&rule).cloned() {
            self.under_way.begin(id, rule, piece, now + longest);
        }
        Some(longest)
    }

    /// A request was answered below 500.
    pub fn end(&mut self, id: u64, now: Time) {
        self.under_way.end(id);
        self.settle(now);
    }

    /// A request is over, and it is unknown whether it takes effect.
    pub fn lose(&mut self, id: u64, now: Time) {
        if self.laws.hold(Invariant::UnknownIsUnderWay) {
            self.under_way.lose(id);
        } else {
            self.under_way.end(id);
        }
        self.settle(now);
    }

    /// The answer to the last write of the own Lease.
    pub fn answered(&mut self, answer: Answer, now: Time) {
        let was_confirmed = self.own.is_confirmed;
        if let Some(sent) = self.own.answer(answer, &self.timing) {
            self.under_way.answered(sent, now, self.timing.settling);
        }
        self.peers.own_changes();
        if !was_confirmed && self.laws.hold(Invariant::ClaimBeforeReading) {
            self.peers.discount();
        }
        self.settle(now);
    }

    /// The pod has had its last request, and gives up everything.
    pub fn leave(&mut self, now: Time) {
        self.is_leaving = true;
        self.open = None;
        self.settle(now);
    }

    /// What the own Lease says next to its claim has changed: it is renewed now.
    pub fn renew(&mut self, now: Time) {
        self.own.renew_at = self.own.renew_at.min(now);
        self.settle(now);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        self.settle(now);
    }

    /// The next write of the own Lease, which the caller sends.
    pub fn next_write(&mut self, now: Time) -> Option<Write<S>> {
        let (write, claim) = self.due_write(now)?;
        let may_change = self.own.send(claim, now);
        self.peers.own_changes();
        if may_change && self.laws.hold(Invariant::ClaimBeforeReading) {
            self.peers.discount();
        }
        Some(write)
    }

    /// The ring whose Leases the caller is to list.
    pub fn next_read(&mut self, now: Time) -> Option<&str> {
        if !self.is_read_due(now) {
            return None;
        }
        let counts = self.own.is_confirmed || !self.laws.hold(Invariant::ClaimBeforeReading);
        self.peers.ask(Reading { counts, is_current: !self.own.is_sent() });
        self.own.ring.as_deref()
    }

    /// The Leases of the [ring](Self::ring) that the caller is to watch. `None` if it may go on as it
    /// does. A pod that waits for no one watches its own alone: in a ring of `n` pods, renewals would
    /// be `n²` events else.
    pub fn to_watch(&self) -> Option<Watched<'_>> {
        if self.peers.is_followed() {
            return Some(Watched::Handover);
        }
        match &self.own.stored {
            Stored::At(version) if self.own.is_confirmed && !self.needs_peers() => {
                Some(Watched::Own(version))
            }
            _ => None,
        }
    }

    /// The ring that the own Lease names. `None` before the first config.
    pub fn ring(&self) -> Option<&str> {
        self.own.ring.as_deref()
    }

    /// The next time at which time alone changes something.
    pub fn wake(&self, now: Time) -> Option<Time> {
        let lapse = Some(self.own.valid_until).filter(|at| self.open.is_some() && *at < Time::MAX);
        let renewal = Some(self.own.renew_at)
            .filter(|_| self.own.is_confirmed && !self.own.is_sent() && !self.is_done());
        let silent = self.timing.silent_after.filter(|_| self.has_gap());
        let silent = silent.and_then(|after| self.peers.next_silent(after));
        let times = [lapse, renewal, silent, self.under_way.wake(now)];
        times.into_iter().flatten().filter(|at| *at > now).min()
    }

    /// The part that may be written, as long as the own Lease is valid. `None` for nothing of any resource.
    pub fn open(&self) -> Option<&Arc<ByResource<S>>> {
        self.open.as_ref()
    }

    /// The part that the streams show. `None` before anything was open: lists and watches are refused, for an
    /// empty list would say that there is nothing.
    pub fn shown(&self) -> Option<&Arc<ByResource<S>>> {
        self.shown.as_ref()
    }

    /// The pods of other shards whose claims stand in the way, each with its shard. A Lease that cannot
    /// be read has none.
    pub fn in_the_way(&self) -> Vec<(&str, Option<&str>)> {
        let free = self.opened(&[]);
        let shard = self.config.as_ref().map_or("", |config| &*config.shard);
        let rivals = self.peers.rivals_of(shard);
        let stands = |claim: &Claim<S>| self.opened(&[claim]) != free;
        rivals.filter(|(.., claim)| stands(claim)).map(|(pod, shard, _)| (pod, shard)).collect()
    }

    /// The number of requests without a known end, and of those among them that were given up.
    pub fn under_way(&self) -> (usize, usize) {
        self.under_way.count()
    }

    /// Whether the pod has given up everything, and its Lease is gone.
    pub fn is_done(&self) -> bool {
        self.is_leaving && self.own.stored == Stored::Absent && !self.own.is_sent()
    }

    /// Whether the process has neither written nor read its Lease.
    pub fn is_new(&self) -> bool {
        self.own.stored == Stored::New
    }

    /// The step at which the machine stands.
    pub fn phase(&self) -> Phase {
        let target = self.target();
        match () {
            () if !self.is_drained_for(&target) => Phase::Closing,
            () if !self.own.is_confirmed || self.own.said != target => Phase::Claiming,
            () if self.has_gap() => Phase::Waiting,
            () => Phase::Open,
        }
    }

    pub(super) fn is_in_its_ring(&self) -> bool {
        self.config.as_ref().is_some_and(|config| self.own.ring.as_ref() == Some(&config.ring))
    }

    /// Whether the claim is to be given back whole: the pod leaves, or leaves the ring.
    pub(super) fn gives_up(&self) -> bool {
        self.is_leaving || !self.is_in_its_ring()
    }

    fn clock(&self, now: Time) -> Clock {
        Clock { now, silent_after: self.timing.silent_after }
    }

    /// Closes everything until the claim is written and the Leases are read. The streams are told
    /// nothing: what another has is seen then.
    fn close(&mut self) {
        self.open = None;
        self.peers.discount();
    }

    fn settle(&mut self, now: Time) {
        if !self.own.is_valid(now) {
            self.close();
        }
        self.under_way.forget(now);
        self.change_ring();
        let is_read = self.peers.counts() || !self.laws.hold(Invariant::ReadBeforeOpening);
        if !self.gives_up() && self.own.is_confirmed && self.own.is_valid(now) && is_read {
            let others = self.others();
            if let Some(opened) = self.opened(&others)
                && self.open.as_deref() != Some(&opened)
            {
                self.open = Some(Arc::new(opened));
            }
            self.shown.clone_from(&self.open);
        }
        if !self.needs_peers() {
            self.peers.rest();
        }
    }

    /// Whether the Leases of other pods are of consequence: they stand in the way, or say who has what
    /// two configs want, or may run out. Otherwise those that were read go on to count: who claims
    /// anything later sees the own claim before he opens it.
    fn needs_peers(&self) -> bool {
        let needs = || !self.is_apart() || (self.own.is_confirmed && self.has_gap());
        !self.gives_up() && (self.timing.silent_after.is_some() || needs())
    }

    /// Enters the ring of the config, once nothing is claimed in the old one.
    fn change_ring(&mut self) {
        let Some(config) = self.config.as_ref().filter(|_| !self.is_in_its_ring()) else { return };
        let is_free = self.own.stored == Stored::Absent
            || (self.own.is_confirmed && self.own.said == Claim::Nothing);
        if is_free && !self.own.is_sent() && self.under_way.is_inside(&Claim::Nothing) {
            self.own.ring = Some(config.ring.clone());
            self.own.is_confirmed = false;
            self.peers.forget();
        }
    }

    pub(super) fn is_drained_for(&self, claim: &Claim<S>) -> bool {
        !self.laws.hold(Invariant::DrainFirst) || self.under_way.is_inside(claim)
    }

    /// The write that is due, with the claim that it makes.
    fn due_write(&self, now: Time) -> Option<(Write<S>, Option<Claim<S>>)> {
        if self.own.is_sent() || (self.own.is_unread() && !self.may_begin_unread()) {
            return None;
        }
        let version = match &self.own.stored {
            Stored::At(version) => Some(version.clone()),
            _ => None,
        };
        let target = self.target();
        let is_drained = self.is_drained_for(&target);
        if self.is_leaving && is_drained {
            return Some((Write::Delete(version?), None));
        }
        let config = self.config.clone()?;
        let claim = if is_drained { target } else { self.own.said.clone() };
        let is_due = claim != self.own.said
            || !self.own.is_confirmed
            || self.own.renew_at <= now
            || !self.own.is_valid(now)
            || self.under_way.needs_answer(now);
        if !is_due {
            return None;
        }
        let saying = Saying {
            is_new: version.is_none(),
            replaces: version.filter(|_| self.laws.hold(Invariant::WriteWithVersion)),
            goes_with_pod: !self.laws.hold(Invariant::LeaseOutlivesPod),
            ring: self.own.ring.clone()?,
            config,
            claim: claim.clone(),
        };
        Some((Write::Claim(saying), Some(claim)))
    }

    /// Whether a new process may create its Lease before it has read any: most pods have left none, and
    /// where no other config wants any of the same, no Lease says who has it.
    fn may_begin_unread(&self) -> bool {
        !self.gives_up() && self.own.stored == Stored::New && self.is_apart()
    }

    fn is_read_due(&self, now: Time) -> bool {
        if self.peers.is_reading() || self.own.ring.is_none() || self.is_done() {
            return false;
        }
        if self.own.is_unread() && !self.own.is_sent() {
            return !self.may_begin_unread();
        }
        if self.gives_up() || self.own.stored == Stored::New {
            return false;
        }
        let silent = self.timing.silent_after.and_then(|after| self.peers.next_silent(after));
        let is_silent = || silent.is_some_and(|at| at <= now) && self.has_gap();
        let may_open = self.own.is_confirmed && self.own.is_valid(now);
        (!self.peers.is_followed() && self.needs_peers())
            || (may_open && !self.peers.counts() && self.has_gap())
            || (may_open && is_silent())
    }
}
