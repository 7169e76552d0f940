//! The world around the machines: the store, the networks, the processes, and who wrote what.

use super::{
    super::{super::invariants::Invariant, bits::Layout},
    machines::{Input, Look, Machines, Output, PODS, SHARD, Seen},
};

/// A request on an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Request {
    /// 0 none, 1 decided in the proxy, 2 sent.
    pub(super) stage: u8,
    pub(super) cell: u8,
    /// The version that it was judged at is no longer that of the object.
    pub(super) is_stale: bool,
    /// A later owner has opened the cell.
    pub(super) is_superseded: bool,
    /// A later owner has written the cell.
    pub(super) is_overwritten: bool,
}

/// A write of a Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Flight {
    /// 0 none, 1 sent, 2 done, 3 refused.
    pub(super) stage: u8,
    pub(super) claim: u8,
    pub(super) replaces: Option<u8>,
    pub(super) is_new: bool,
    pub(super) is_delete: bool,
    pub(super) goes_with_pod: bool,
    /// The version that it made.
    pub(super) made: u8,
}

/// A list of Leases on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum List {
    #[default]
    None,
    Asked,
    Served {
        leases: [Seen; PODS],
        is_consistent: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pod {
    /// The state of its machine. `None` if no process runs.
    pub(super) ring: Option<u32>,
    pub(super) is_paused: bool,
    pub(super) request: Request,
    /// A request whose end stays unknown.
    pub(super) orphan: Request,
    /// Open cells that a later owner has opened.
    pub(super) superseded: u8,
    /// Open cells that a later owner has written.
    pub(super) overwritten: u8,
    /// Starts left of a pod without a Lease.
    pub(super) starts: u8,
    pub(super) lease: Seen,
    pub(super) goes_with_pod: bool,
    /// The state of its Lease that a cache, or a late watch, still shows.
    pub(super) before: Seen,
    pub(super) flight: Flight,
    /// A write of its Lease whose answer was lost.
    pub(super) late: Flight,
    pub(super) list: List,
    /// The pods of which the watch may show what was before the last write.
    pub(super) may_lag: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    /// The wish of the config of each shard, and all that it ever wanted, as a set.
    pub(super) wanted: [u8; 2],
    pub(super) ever: [u16; 2],
    pub(super) edits: u8,
    pub(super) kills: u8,
    pub(super) pauses: u8,
    pub(super) losses: u8,
    pub(super) lapses: u8,
    pub(super) rolls: u8,
    pub(super) breaks: u8,
    /// How often a pod may go by an older config than the last.
    pub(super) backs: u8,
    pub(super) pods: [Pod; PODS],
}

/// The bounds of an exploration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) name: &'static str,
    pub(super) layout: Layout,
    pub(super) cells: u8,
    pub(super) initial: [u8; 2],
    /// Whether the pods begin with a first start, and not with what they want open.
    pub(super) is_first_start: bool,
    pub(super) edits: u8,
    pub(super) kills: u8,
    pub(super) pauses: u8,
    pub(super) losses: u8,
    pub(super) lapses: u8,
    pub(super) rolls: u8,
    pub(super) breaks: u8,
    pub(super) backs: u8,
    /// Whether a write of a Lease may be stored long before it is answered.
    pub(super) has_slow_answers: bool,
    pub(super) has_late_pod: bool,
    /// Whether lists may come from a cache.
    pub(super) has_caches: bool,
    /// Whether a watch may show a Lease as it was before the last write.
    pub(super) has_late_watches: bool,
    /// Whether a pod may be late to see what the other config wants.
    pub(super) has_late_rivals: bool,
    /// Whether a Lease runs out.
    pub(super) expires: bool,
    /// Whether a process may stay frozen between its check and its sending for longer than that.
    pub(super) freezes: bool,
    /// Whether writes carry the version that they were judged at.
    pub(super) has_versions: bool,
    /// Whether an overlap is an error, and not only a return.
    pub(super) checks_overlap: bool,
    pub(super) checks_progress: bool,
    pub(super) broken: Option<Invariant>,
}

impl Setup {
    pub(super) const BASE: Self = Self {
        name: "",
        layout: Layout::Resources,
        cells: 1,
        initial: [1, 0],
        is_first_start: false,
        edits: 2,
        kills: 0,
        pauses: 0,
        losses: 0,
        lapses: 0,
        rolls: 0,
        breaks: 0,
        backs: 1,
        has_slow_answers: false,
        has_late_pod: false,
        has_caches: false,
        has_late_watches: false,
        has_late_rivals: false,
        expires: false,
        freezes: false,
        has_versions: false,
        checks_overlap: true,
        checks_progress: true,
        broken: None,
    };
}

impl Seen {
    pub(super) fn read(self, setup: &Setup, is_own: bool) -> Self {
        if setup.expires || is_own { self } else { Self { version: 0, ..self } }
    }
}

/// The place of an error.
pub(super) type Broken = &'static str;

impl World {
    pub(super) fn new(setup: &Setup, machines: &mut Machines) -> Self {
        let pod = |at| Pod {
            ring: None,
            is_paused: false,
            request: Request::default(),
            orphan: Request::default(),
            superseded: 0,
            overwritten: 0,
            starts: if at < 2 || setup.has_late_pod { 1 } else { 0 },
            lease: Seen::default(),
            goes_with_pod: false,
            before: Seen::default(),
            flight: Flight::default(),
            late: Flight::default(),
            list: List::None,
            may_lag: 0,
        };
        let mut world = Self {
            wanted: setup.initial,
            ever: setup.initial.map(|cells| 1 << cells),
            edits: setup.edits,
            kills: setup.kills,
            pauses: setup.pauses,
            losses: setup.losses,
            lapses: setup.lapses,
            rolls: setup.rolls,
            breaks: setup.breaks,
            backs: setup.backs,
            pods: [0, 1, 2].map(pod),
        };
        for at in 0..2 {
            world.pods[at].ring = Some(machines.start(at));
            world.pods[at].starts = 0;
        }
        for at in 0..2 {
            world.see_rival(setup, machines, at);
        }
        if !setup.is_first_start {
            for at in [0, 1, 0, 1] {
                world.run_alone(setup, machines, at);
            }
        }
        world
    }

    /// Runs a pod until it rests.
    fn run_alone(&mut self, setup: &Setup, machines: &mut Machines, at: usize) {
        self.input(machines, at, Input::Configure(self.wanted[SHARD[at]]));
        self.input(machines, at, Input::Rival(self.wanted[1 - SHARD[at]]));
        for _ in 0..8 {
            if self.pods[at].list == List::Asked {
                self.pods[at].list = List::None;
                let leases = self.leases(setup, at);
                self.input(machines, at, Input::Listed { leases, is_consistent: true });
            }
            if self.pods[at].flight.stage == 1 {
                self.store(setup, machines, at, false);
                self.answer(machines, at);
            }
        }
        for pod in &mut self.pods {
            (pod.before, pod.may_lag) = (Seen::default(), 0);
        }
    }

    pub(super) fn look(&self, machines: &Machines, at: usize) -> Option<Look> {
        self.pods[at].ring.map(|id| machines.look(id))
    }

    /// The actor: a process that runs.
    pub(super) fn acts(&self, at: usize) -> bool {
        self.pods[at].ring.is_some() && !self.pods[at].is_paused
    }

    /// The cells that are open in a pod.
    pub(super) fn open(&self, machines: &Machines, at: usize) -> u8 {
        self.look(machines, at).map_or(0, |look| look.open)
    }

    /// Gives the machine of a pod an input, and has it do what it asks for then.
    pub(super) fn input(&mut self, machines: &mut Machines, at: usize, input: Input) {
        self.give(machines, at, input);
        if !self.acts(at) {
            return;
        }
        if self.pods[at].flight.stage == 0 {
            self.send_lease(machines, at);
        }
        if self.pods[at].list == List::None && self.give(machines, at, Input::Read) == Output::Read
        {
            self.pods[at].list = List::Asked;
        }
    }

    /// Gives the machine of a pod an input.
    pub(super) fn give(&mut self, machines: &mut Machines, at: usize, input: Input) -> Output {
        let Some(before) = self.pods[at].ring else { return Output::None };
        let (after, output) = machines.step(before, at, input);
        self.pods[at].ring = Some(after);
        let (was, is) = (machines.look(before).open, machines.look(after).open);
        self.pods[at].superseded &= is;
        self.pods[at].overwritten &= is;
        if is & !was != 0 {
            self.opens(machines, at, is & !was);
        }
        output
    }

    fn opens(&mut self, machines: &Machines, at: usize, cells: u8) {
        for other in (0..PODS).filter(|other| SHARD[*other] != SHARD[at]) {
            let open = self.open(machines, other);
            let pod = &mut self.pods[other];
            pod.superseded |= open & cells;
            for request in [&mut pod.request, &mut pod.orphan] {
                if request.stage > 0 && cells & (1 << request.cell) != 0 {
                    request.is_superseded = true;
                }
            }
        }
        self.pods[at].superseded &= !cells;
        self.pods[at].overwritten &= !cells;
    }

    /// The machine's next write of its Lease is sent.
    fn send_lease(&mut self, machines: &mut Machines, at: usize) {
        let output = self.give(machines, at, Input::Write);
        let sent = Flight { stage: 1, ..Flight::default() };
        self.pods[at].flight = match output {
            Output::Write { claim, replaces, is_new, goes_with_pod } => {
                Flight { claim, replaces, is_new, goes_with_pod, ..sent }
            }
            Output::Delete(version) => Flight { replaces: Some(version), is_delete: true, ..sent },
            _ => return,
        };
    }

    /// A write of a Lease takes effect, or is refused.
    pub(super) fn store(&mut self, setup: &Setup, machines: &Machines, at: usize, is_late: bool) {
        let pod = &self.pods[at];
        let flight = if is_late { pod.late } else { pod.flight };
        let fits = match flight.replaces {
            _ if flight.is_new => !pod.lease.is_there,
            Some(version) => pod.lease.is_there && pod.lease.version == version,
            None => pod.lease.is_there,
        };
        let mut made = 0;
        if fits {
            made = self.unused_version(machines, at);
            let lease = Seen { is_there: true, version: made, claim: flight.claim };
            let lease = if flight.is_delete { Seen::default() } else { lease };
            self.replace(setup, at, lease);
            self.pods[at].goes_with_pod = flight.goes_with_pod;
        }
        let pod = &mut self.pods[at];
        if is_late {
            pod.late = Flight::default();
        } else {
            // The machine does not regard its own Lease in a list that was asked for before.
            if let List::Served { leases, .. } = &mut pod.list {
                leases[at] = Seen::default();
            }
            pod.flight = Flight { stage: if fits { 2 } else { 3 }, made, ..flight };
        }
    }

    pub(super) fn replace(&mut self, setup: &Setup, at: usize, lease: Seen) {
        if setup.has_caches || setup.has_late_watches {
            self.pods[at].before = self.pods[at].lease;
        }
        self.pods[at].lease = lease;
        for pod in self.pods.iter_mut().filter(|_| setup.has_late_watches) {
            pod.may_lag |= 1 << at;
        }
    }

    /// The first version that no one holds: versions are compared for being the same only.
    fn unused_version(&self, machines: &Machines, at: usize) -> u8 {
        let pod = &self.pods[at];
        let mut held = vec![pod.lease.version, pod.before.version, pod.flight.made];
        held.extend(pod.flight.replaces);
        held.extend(pod.late.replaces);
        let looks = (0..PODS).filter_map(|pod| self.look(machines, pod));
        held.extend(looks.filter_map(|look| look.versions[at]));
        for other in &self.pods {
            if let List::Served { leases, .. } = other.list {
                held.push(leases[at].version);
            }
        }
        (1..).find(|version| !held.contains(version)).unwrap()
    }

    /// The answer to a write of a Lease reaches the machine.
    pub(super) fn answer(&mut self, machines: &mut Machines, at: usize) {
        let flight = std::mem::take(&mut self.pods[at].flight);
        let input = match flight.stage {
            2 if flight.is_delete => Input::Done(None),
            2 => Input::Done(Some(flight.made)),
            _ => Input::Conflict,
        };
        self.input(machines, at, input);
    }

    /// The Leases as a pod reads them. Versions of others count where Leases run out only.
    pub(super) fn leases(&self, setup: &Setup, reader: usize) -> [Seen; PODS] {
        [0, 1, 2].map(|at: usize| self.pods[at].lease.read(setup, reader == at))
    }

    /// A request on an object takes effect, or is refused for its version.
    pub(super) fn execute(
        &mut self,
        setup: &Setup,
        machines: &Machines,
        at: usize,
        is_orphan: bool,
    ) -> Result<(), Broken> {
        let pod = &mut self.pods[at];
        let slot = if is_orphan { &mut pod.orphan } else { &mut pod.request };
        let request = std::mem::take(slot);
        if setup.has_versions && request.is_stale {
            return Ok(());
        }
        if request.is_overwritten {
            return Err("G1");
        }
        if request.is_superseded && setup.checks_overlap {
            return Err("G2");
        }
        for (other, shard) in SHARD.into_iter().enumerate() {
            // Who was superseded himself takes the cell from no one.
            let is_taken = shard != SHARD[at] && !request.is_superseded;
            let open = self.open(machines, other);
            let pod = &mut self.pods[other];
            for written in [&mut pod.request, &mut pod.orphan] {
                if written.stage > 0 && written.cell == request.cell {
                    written.is_stale = setup.has_versions;
                    written.is_overwritten |= is_taken;
                }
            }
            if is_taken {
                pod.overwritten |= open & (1 << request.cell);
            }
        }
        Ok(())
    }

    /// Whether each cell is open where it should be, or no one is left to open it. Of a resource of
    /// which two configs want the same cell, the others are the loser's only if he had them.
    pub(super) fn is_served(&self, setup: &Setup, machines: &Machines) -> bool {
        let serves =
            |at: usize, cell: u8| self.acts(at) && self.open(machines, at) & (1 << cell) != 0;
        let is_gone = |at: usize| {
            let pod = &self.pods[at];
            pod.starts == 0
                && (pod.ring.is_none() && !pod.lease.is_there
                    || self.look(machines, at).is_some_and(|look| look.is_leaving))
        };
        let contested = self.wanted[0] & self.wanted[1];
        let is_lost = |cell: u8| {
            setup.layout == Layout::Namespaces && contested != 0 && contested >> cell & 1 == 0
        };
        (0..setup.cells).all(|cell| {
            let wants = |shard: usize| self.wanted[shard] & (1 << cell) != 0;
            let mut pods = (0..PODS).filter(|at| wants(SHARD[*at]));
            is_lost(cell) || pods.clone().all(is_gone) || pods.any(|at| serves(at, cell))
        })
    }

    /// Whether everything that is open or under way is claimed in the store.
    pub(super) fn is_claimed(&self, machines: &Machines) -> bool {
        (0..PODS).all(|at| {
            let pod = &self.pods[at];
            let mut cells = self.open(machines, at);
            for request in [pod.request, pod.orphan] {
                cells |= u8::from(request.stage > 0) << request.cell;
            }
            cells & !pod.lease.claim == 0
        })
    }
}
