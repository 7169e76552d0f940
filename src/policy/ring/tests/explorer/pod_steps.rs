//! The steps of one pod: its process, its networks, its faults.

use super::{
    machines::{Input, Machines, Output, PODS, SHARD, Seen},
    steps::{Steps, What},
    world::{List, Request, Setup, World},
};

impl Steps<'_> {
    pub(super) fn of_pod(&mut self, machines: &mut Machines, at: usize) {
        self.of_requests(machines, at);
        self.of_lease(machines, at);
        self.of_lists(at);
        self.faults(machines, at);
        self.start(machines, at);
        if self.world.acts(at) {
            self.inputs(machines, at);
            self.watches(machines, at);
            self.outputs(machines, at);
        }
    }

    /// Requests on their way: also while the process is frozen or dead.
    fn of_requests(&mut self, machines: &mut Machines, at: usize) {
        let pod = self.world.pods[at];
        if pod.request.stage == 2 {
            let mut to = *self.world;
            let done = to.execute(self.setup, machines, at, false);
            to.input(machines, at, Input::End);
            self.push(at, What::TakesEffect, done.map(|()| to), false);
        }
        if pod.orphan.stage == 2 {
            let mut to = *self.world;
            let done = to.execute(self.setup, machines, at, true);
            self.push(at, What::OrphanTakesEffect, done.map(|()| to), false);
        }
        if pod.orphan.stage > 0 {
            self.to(at, What::OrphanVanishes, |world| world.pods[at].orphan = Request::default());
        }
    }

    /// Writes of the Lease on their way.
    fn of_lease(&mut self, machines: &mut Machines, at: usize) {
        let (pod, setup) = (self.world.pods[at], self.setup);
        if pod.flight.stage == 1 {
            self.to(at, What::LeaseStored, |world| {
                world.store(setup, machines, at, false);
                if !setup.has_slow_answers && world.acts(at) {
                    world.answer(machines, at);
                }
            });
        }
        if pod.flight.stage > 1 && self.world.acts(at) {
            self.to(at, What::LeaseAnswered, |world| world.answer(machines, at));
        }
        if pod.late.stage > 0 {
            self.to(at, What::LateLease, |world| world.store(setup, machines, at, true));
        }
        if pod.lease.is_there && pod.goes_with_pod && pod.ring.is_some() && at == 0 {
            self.fault(at, What::Collected, |world| {
                world.replace(setup, at, Seen::default());
            });
        }
    }

    fn of_lists(&mut self, at: usize) {
        if self.world.pods[at].list != List::Asked {
            return;
        }
        let serve = |leases, is_consistent| List::Served { leases, is_consistent };
        let leases = self.world.leases(self.setup, at);
        self.to(at, What::Listed, |world| {
            world.pods[at].list = serve(leases, true);
            world.pods[at].may_lag = 0;
        });
        if self.setup.has_caches {
            for lagging in 1..1 << PODS {
                let mut cached = leases;
                for other in (0..PODS).filter(|other| lagging >> other & 1 == 1) {
                    cached[other] = self.world.pods[other].before.read(self.setup, other == at);
                }
                if cached != leases {
                    self.to(at, What::ListedFromCache, |world| {
                        world.pods[at].list = serve(cached, false);
                    });
                }
            }
        }
    }

    fn faults(&mut self, machines: &mut Machines, at: usize) {
        let pod = self.world.pods[at];
        let Some(look) = self.world.look(machines, at) else { return };
        if !pod.is_paused && self.world.pauses > 0 {
            self.fault(at, What::Paused, |world| {
                world.pauses -= 1;
                world.pods[at].is_paused = true;
            });
        }
        if pod.is_paused {
            let setup = self.setup;
            self.to(at, What::Resumes, |world| {
                world.pods[at].is_paused = false;
                world.see_rival(setup, machines, at);
                world.input(machines, at, Input::Tick);
            });
        }
        let is_lossless = (pod.request.stage < 2 || pod.orphan.stage == 0)
            && (pod.flight.stage == 0 || pod.late.stage == 0);
        if self.world.kills > 0 && is_lossless {
            self.fault(at, What::Killed, |world| world.kill(at));
        }
        if !self.world.acts(at) {
            return;
        }
        if self.world.losses > 0 && pod.request.stage >= 2 && pod.orphan.stage == 0 {
            self.fault(at, What::AnswerLost, |world| {
                world.losses -= 1;
                world.pods[at].orphan = std::mem::take(&mut world.pods[at].request);
                world.input(machines, at, Input::Lose);
            });
        }
        if self.world.losses > 0 && pod.flight.stage > 0 && pod.late.stage == 0 {
            let setup = self.setup;
            for is_stored in [false, true] {
                self.fault(at, What::LeaseAnswerLost(is_stored), |world| {
                    world.losses -= 1;
                    if is_stored && pod.flight.stage == 1 {
                        world.store(setup, machines, at, false);
                    }
                    let flight = std::mem::take(&mut world.pods[at].flight);
                    if flight.stage == 1 {
                        world.pods[at].late = flight;
                    }
                    world.input(machines, at, Input::Unknown);
                });
            }
        }
        if self.world.rolls > 0 && !look.is_leaving && pod.request.stage == 0 {
            self.fault(at, What::Rolled, |world| {
                world.rolls -= 1;
                world.input(machines, at, Input::Leave);
            });
        }
    }

    fn start(&mut self, machines: &mut Machines, at: usize) {
        let (pod, setup) = (self.world.pods[at], self.setup);
        if pod.ring.is_none() && (pod.starts > 0 || pod.lease.is_there) {
            self.to(at, What::Starts, |world| {
                let pod = &mut world.pods[at];
                if !pod.lease.is_there {
                    pod.starts -= 1;
                }
                pod.ring = Some(machines.start(at));
                pod.list = List::None;
                world.see_rival(setup, machines, at);
            });
        }
        if self.world.look(machines, at).is_some_and(|look| look.is_done) {
            self.to(at, What::Ends, |world| {
                world.pods[at].ring = None;
                world.pods[at].list = List::None;
            });
        }
    }

    /// The configs that the process reads may be old, may skip, may go back in time.
    fn inputs(&mut self, machines: &mut Machines, at: usize) {
        let shard = SHARD[at];
        for cells in 0..1 << self.setup.cells {
            let is_back = self.world.wanted[shard] != cells;
            let was_ever = self.world.ever[shard] >> cells & 1 == 1;
            if was_ever && (!is_back || self.world.backs > 0) {
                let mut to = *self.world;
                to.input(machines, at, Input::Configure(cells));
                if to != *self.world {
                    to.backs -= u8::from(is_back);
                    self.push(at, What::Configured(cells), Ok(to), is_back);
                }
            }
        }
        if self.setup.has_late_rivals {
            let rival = self.world.wanted[1 - shard];
            self.input(machines, at, What::SeesRival(rival), Input::Rival(rival));
        }
        if let List::Served { leases, is_consistent } = self.world.pods[at].list {
            self.to(at, What::Reads, |world| {
                world.pods[at].list = List::None;
                world.input(machines, at, Input::Listed { leases, is_consistent });
            });
        }
    }

    fn watches(&mut self, machines: &mut Machines, at: usize) {
        let pod = self.world.pods[at];
        for other in (0..PODS).filter(|other| *other != at) {
            let (seen, setup) = (self.world.pods[other], self.setup);
            let [lease, before] = [seen.lease, seen.before].map(|seen| seen.read(setup, false));
            self.to(at, What::Hears(other), |world| {
                world.pods[at].may_lag &= !(1 << other);
                world.input(machines, at, Input::Changed(other, lease));
            });
            if pod.may_lag >> other & 1 == 1 {
                self.input(machines, at, What::HearsLate(other), Input::Changed(other, before));
            }
        }
        if self.world.breaks > 0 {
            self.fault(at, What::WatchBreaks, |world| {
                world.breaks -= 1;
                world.input(machines, at, Input::Unfollowed);
            });
        }
    }

    fn outputs(&mut self, machines: &mut Machines, at: usize) {
        let pod = self.world.pods[at];
        let open = self.world.open(machines, at);
        for cell in (0..self.setup.cells).filter(|cell| open >> cell & 1 == 1) {
            let mut to = *self.world;
            if pod.request.stage == 0 && to.give(machines, at, Input::Begin(cell)) == Output::Begun
            {
                // A request that is not sent yet differs only where time counts.
                to.pods[at].request = Request {
                    stage: if self.setup.expires { 1 } else { 2 },
                    cell,
                    is_stale: false,
                    is_superseded: pod.superseded >> cell & 1 == 1,
                    is_overwritten: pod.overwritten >> cell & 1 == 1,
                };
                self.push(at, What::Decides(cell), Ok(to), false);
            }
        }
        if pod.request.stage == 1 {
            self.to(at, What::Sends, |world| world.pods[at].request.stage = 2);
        }
    }
}

impl World {
    pub(super) fn see_rival(&mut self, setup: &Setup, machines: &mut Machines, at: usize) {
        if !setup.has_late_rivals && self.acts(at) {
            self.input(machines, at, Input::Rival(self.wanted[1 - SHARD[at]]));
        }
    }

    /// A config has changed, as far as the pods of the other shard see it at once.
    pub(super) fn see_rivals(&mut self, setup: &Setup, machines: &mut Machines, shard: usize) {
        for at in (0..PODS).filter(|at| SHARD[*at] != shard) {
            self.see_rival(setup, machines, at);
        }
    }

    fn kill(&mut self, at: usize) {
        self.kills -= 1;
        let pod = &mut self.pods[at];
        let request = std::mem::take(&mut pod.request);
        if request.stage >= 2 {
            pod.orphan = request;
        }
        let flight = std::mem::take(&mut pod.flight);
        if flight.stage == 1 {
            pod.late = flight;
        }
        pod.ring = None;
        pod.is_paused = false;
        pod.list = List::None;
        (pod.superseded, pod.overwritten, pod.may_lag) = (0, 0, 0);
    }
}
