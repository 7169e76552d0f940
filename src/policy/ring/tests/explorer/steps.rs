//! The steps that the world can take from a state.

use super::{
    machines::{Input, Machines, PODS},
    world::{Broken, Setup, World},
};

/// The event of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Edited(u8),
    TimePasses,
    TakesEffect,
    OrphanTakesEffect,
    OrphanVanishes,
    LeaseStored,
    LeaseAnswered,
    LateLease,
    Collected,
    Listed,
    ListedFromCache,
    Paused,
    Resumes,
    Killed,
    AnswerLost,
    LeaseAnswerLost(bool),
    Rolled,
    Starts,
    Ends,
    Configured(u8),
    SeesRival(u8),
    Reads,
    Hears(usize),
    HearsLate(usize),
    WatchBreaks,
    Decides(u8),
    Sends,
}

/// A step: of which pod or shard, what, and where it leads.
pub(super) struct Step {
    pub(super) at: usize,
    pub(super) what: What,
    pub(super) to: Result<World, Broken>,
    /// Whether progress does not depend on it.
    pub(super) is_fault: bool,
}

pub(super) struct Steps<'a> {
    pub(super) setup: &'a Setup,
    pub(super) world: &'a World,
    pub(super) found: Vec<Step>,
}

impl<'a> Steps<'a> {
    pub(super) fn of(setup: &'a Setup, machines: &mut Machines, world: &'a World) -> Vec<Step> {
        let mut steps = Self { setup, world, found: Vec::new() };
        steps.edits(machines);
        steps.time(machines);
        for at in 0..PODS {
            steps.of_pod(machines, at);
        }
        steps.found
    }

    /// Edits, one config at a time: by a person, or by a manager that may stop after any of them.
    fn edits(&mut self, machines: &mut Machines) {
        let setup = self.setup;
        for shard in 0..2 {
            for cells in 0..1 << self.setup.cells {
                if self.world.edits > 0 && self.world.wanted[shard] != cells {
                    self.fault(shard, What::Edited(cells), |world| {
                        world.edits -= 1;
                        world.wanted[shard] = cells;
                        world.ever[shard] |= 1 << cells;
                        world.see_rivals(setup, machines, shard);
                    });
                }
            }
        }
    }

    /// Time passes, for everybody: longer than any request takes.
    fn time(&mut self, machines: &mut Machines) {
        let looks = (0..PODS).filter_map(|at| self.world.look(machines, at));
        let is_awaited = looks.filter(|look| look.wakes).count() > 0;
        let is_lapse = self.setup.expires;
        if !is_awaited || is_lapse && self.world.lapses == 0 {
            return;
        }
        // A request ends before its deadline has passed for its pod, or is given up.
        let is_over = self.world.pods.iter().all(|pod| {
            pod.request.stage < 2
                && pod.orphan.stage == 0
                && (!is_lapse || self.setup.freezes || pod.request.stage == 0)
        });
        if is_over {
            let mut to = *self.world;
            to.lapses -= u8::from(is_lapse);
            for at in 0..PODS {
                to.give(machines, at, Input::Jump);
            }
            for at in 0..PODS {
                if to.acts(at) {
                    to.input(machines, at, Input::Tick);
                }
            }
            self.push(0, What::TimePasses, Ok(to), is_lapse);
        }
    }

    pub(super) fn push(
        &mut self,
        at: usize,
        what: What,
        to: Result<World, Broken>,
        is_fault: bool,
    ) {
        if to.as_ref() != Ok(self.world) {
            self.found.push(Step { at, what, to, is_fault });
        }
    }

    pub(super) fn to(&mut self, at: usize, what: What, change: impl FnOnce(&mut World)) {
        let mut to = *self.world;
        change(&mut to);
        self.push(at, what, Ok(to), false);
    }

    pub(super) fn fault(&mut self, at: usize, what: What, change: impl FnOnce(&mut World)) {
        let mut to = *self.world;
        change(&mut to);
        self.push(at, what, Ok(to), true);
    }

    pub(super) fn input(&mut self, machines: &mut Machines, at: usize, what: What, input: Input) {
        self.to(at, what, |world| {
            world.input(machines, at, input);
        });
    }
}
