//! What a pod claims, and which part of the claim its controller is shown.
//!
//! Hides the tie-break: where two configs select an object, the older one keeps it. Knows nothing of
//! requests, of versions or of the order of things. Words: another shard of the ring is a *rival*;
//! *left* objects are those that both the open area and the config have.

use super::{claim::Claim, config::DesiredScope, invariants::Invariant, machine::Handover};
use crate::{ByResource, ObjectSet, Rule, sharding::refined};

impl<S: ObjectSet> Handover<S> {
    /// The claim that the own Lease is to have: the wish of the config without the objects that another
    /// shard has already. Where that cannot be expressed for a resource, its *left* objects are claimed.
    pub(super) fn target(&self) -> Claim<S> {
        if self.gives_up() {
            return Claim::Nothing;
        }
        let Some(config) = &self.config else { return self.own.said.clone() };
        let rivals: Vec<_> = self.rivals.iter().filter(|rival| rival.is_rival_of(config)).collect();
        let areas = rivals.iter().map(|rival| &*rival.area);
        let rules = refined(areas.chain(self.open.as_deref()).chain([&*config.area]));
        let mut is_lost = false;
        let pieces = rules.into_iter().map(|rule| {
            let piece = config.area.find(&rule).map(|wanted| {
                let lost = |rival: &&&DesiredScope<S>| !self.is_mine(&rule, wanted, config, rival);
                let mut lost = rivals.iter().filter(lost).peekable();
                is_lost |= lost.peek().is_some();
                let mine = lost.try_fold(wanted.clone(), |mine, rival| {
                    self.without(&rule, &mine, config, rival)
                });
                mine.unwrap_or_else(|| self.left(&rule, wanted))
            });
            (rule, piece)
        });
        let target = Claim::of(ByResource::new(pieces));
        if is_lost && !self.laws.hold(Invariant::ClaimWhatIsLeft) {
            return self.own.said.clone();
        }
        target
    }

    /// The resources of which another shard wants the same objects and has them, each with that shard.
    pub fn overlaps(&self) -> Vec<(Rule, &str)> {
        let Some(config) = self.config.as_ref().filter(|_| !self.gives_up()) else {
            return Vec::new();
        };
        let rivals: Vec<_> = self.rivals.iter().filter(|rival| rival.is_rival_of(config)).collect();
        let rules = refined(rivals.iter().map(|rival| &*rival.area).chain([&*config.area]));
        let mut overlaps = Vec::new();
        for rule in rules {
            let Some(wanted) = config.area.find(&rule) else { continue };
            let taken = rivals.iter().find(|rival| !self.is_mine(&rule, wanted, config, rival));
            overlaps.extend(taken.map(|rival| (rule, &*rival.shard)));
        }
        overlaps
    }

    /// Whether no other config of the ring wants any of what the own one wants, as far as is known.
    pub(super) fn is_apart(&self) -> bool {
        let Some(config) = &self.config else { return true };
        let mut rivals = self.rivals.iter().filter(|rival| rival.is_rival_of(config));
        rivals.all(|rival| rival.area.is_disjoint(&config.area))
    }

    /// Whether this shard claims what it wants of a resource, whatever the rival wants of it: what
    /// both want belongs to the one whose Leases claim it. Where none or both do, to the elder of
    /// those with a living Lease.
    fn is_mine(
        &self,
        rule: &Rule,
        wanted: &S,
        config: &DesiredScope<S>,
        rival: &DesiredScope<S>,
    ) -> bool {
        let Some(theirs) = rival.area.find(rule).filter(|theirs| !theirs.is_disjoint(wanted))
        else {
            return true;
        };
        let both = wanted.meet(theirs);
        let may_hold = |claim: &Claim<S>| claim.may_hold(rule, &both);
        let is_ours = may_hold(&self.own.said) || self.peers.of(&config.shard).any(may_hold);
        let is_theirs = self.peers.of(&rival.shard).any(may_hold);
        if is_ours != is_theirs {
            return is_ours;
        }
        let lives = || self.peers.of(&rival.shard).next().is_some();
        self.laws.hold(Invariant::ElderClaims)
            && (config.birth < rival.birth || !(is_theirs || lives()))
    }

    /// A piece of the wanted objects, without those that the rival wants. `None` if that cannot be
    /// expressed, or if this shard has some of the objects that both want: those stay where they are.
    fn without(
        &self,
        rule: &Rule,
        mine: &S,
        config: &DesiredScope<S>,
        rival: &DesiredScope<S>,
    ) -> Option<S> {
        let theirs = rival.area.find(rule)?;
        let both = mine.meet(theirs);
        let has = |claim: &Claim<S>| claim.may_hold(rule, &both);
        let is_ours = has(&self.own.said) || self.peers.of(&config.shard).any(has);
        (!is_ours).then(|| mine.without(theirs)).flatten()
    }

    /// The rest of a resource.
    fn left(&self, rule: &Rule, wanted: &S) -> S {
        match self.open.as_ref().map(|open| open.find(rule)) {
            // Nothing is open.
            None => S::nothing(),
            // It was not limited before.
            Some(None) => wanted.clone(),
            Some(Some(open)) => open.meet(wanted),
        }
    }

    /// The claims of other shards.
    pub(super) fn others(&self) -> Vec<&Claim<S>> {
        let shard = self.config.as_ref().map_or("", |config| &*config.shard);
        self.peers.but_of(shard).collect()
    }

    /// The part that is open once it is known that the others claim this, and the own claim is stored.
    pub(super) fn opened(&self, others: &[&Claim<S>]) -> Option<ByResource<S>> {
        let config = self.config.as_ref()?;
        let claims = others.iter().copied().chain([&self.own.said]).filter_map(Claim::area);
        let rules = refined(claims.chain(self.open.as_deref()).chain([&*config.area]));
        Some(ByResource::new(rules.into_iter().map(|rule| {
            let piece = config.area.find(&rule).map(|wanted| self.piece(&rule, wanted, others));
            (rule, piece)
        })))
    }

    fn piece(&self, rule: &Rule, wanted: &S, others: &[&Claim<S>]) -> S {
        let left = self.left(rule, wanted);
        let claimed = self.own.said.area().and_then(|area| area.find(rule));
        let gained = match claimed {
            _ if !self.laws.hold(Invariant::OpenWithinClaim) => wanted.clone(),
            None => return left,
            Some(claimed) => claimed.meet(wanted),
        };
        let is_free = others.iter().all(|claim| !claim.may_hold(rule, &gained));
        if is_free || !self.laws.hold(Invariant::ReadBeforeOpening) { gained } else { left }
    }

    /// Whether more would be open if no one else claimed it.
    pub(super) fn has_gap(&self) -> bool {
        !self.gives_up() && self.opened(&[]).as_ref() != self.open.as_deref()
    }
}
