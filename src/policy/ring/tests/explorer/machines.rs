//! The product's machines, each state once, and their answers to inputs.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use super::super::{
    super::{
        Answer, DesiredScope, Handover, Lease, Listing, Timing, Write,
        invariants::{Invariant, Invariants},
        own_lease::Stored,
    },
    bits::{Bits, Layout},
};

/// The time of every input; what passes is taken off the times that a machine holds.
const NOW: Duration = Duration::from_secs(10_000);
const FOREVER: Duration = Duration::from_secs(1 << 40);
/// The time that passes in one step: longer than any request.
const JUMP: Duration = Duration::from_secs(70);
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(100);

pub(super) const PODS: usize = 3;
pub(super) const SHARD: [usize; PODS] = [0, 1, 0];
pub(super) const NAME: [&str; PODS] = ["a0", "b0", "a1"];
const SHARDS: [&str; 2] = ["a", "b"];

/// A Lease in the store, or as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub(super) is_there: bool,
    pub(super) version: u8,
    pub(super) claim: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    Configure(u8),
    Rival(u8),
    Listed { leases: [Seen; PODS], is_consistent: bool },
    Changed(usize, Seen),
    Unfollowed,
    Write,
    Read,
    Done(Option<u8>),
    Conflict,
    Unknown,
    Begin(u8),
    End,
    Lose,
    Leave,
    Tick,
    Jump,
}

/// The effect of an input on a machine, besides its next state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    None,
    Write { claim: u8, replaces: Option<u8>, is_new: bool, goes_with_pod: bool },
    Delete(u8),
    Read,
    Begun,
}

/// The facts that the world needs of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) open: u8,
    /// The versions of Leases that it knows.
    pub(super) versions: [Option<u8>; PODS],
    pub(super) is_done: bool,
    pub(super) is_leaving: bool,
    pub(super) wakes: bool,
}

pub(super) struct Machines {
    layout: Layout,
    laws: Invariants,
    timing: Timing,
    rings: Vec<Handover<Bits>>,
    looks: Vec<Look>,
    ids: HashMap<Handover<Bits>, u32>,
    answers: HashMap<(u32, usize, Input), (u32, Output)>,
}

impl Machines {
    pub(super) fn new(layout: Layout, broken: Option<Invariant>, expires: bool) -> Self {
        let timing = Timing {
            renew_after: FOREVER,
            silent_after: expires.then_some(SILENT_AFTER),
            ..Timing::default()
        };
        Self {
            layout,
            laws: Invariants { broken },
            timing,
            rings: Vec::new(),
            looks: Vec::new(),
            ids: HashMap::new(),
            answers: HashMap::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.rings.len()
    }

    pub(super) fn look(&self, id: u32) -> Look {
        self.looks[id as usize]
    }

    /// A new process in the pod.
    pub(super) fn start(&mut self, pod: usize) -> u32 {
        let mut ring = Handover::new(NAME[pod], self.timing);
        ring.laws = self.laws;
        self.id(ring)
    }

    fn id(&mut self, ring: Handover<Bits>) -> u32 {
        let layout = self.layout;
        let next = u32::try_from(self.rings.len()).unwrap();
        match self.ids.entry(ring) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let ring = new.key();
                self.looks.push(Look {
                    versions: [0, 1, 2].map(|at: usize| version(ring, NAME[at])),
                    open: ring.open().map_or(0, |area| layout.cells(area)),
                    is_done: ring.is_done(),
                    is_leaving: ring.is_leaving,
                    wakes: ring.wake(NOW).is_some_and(|at| at < FOREVER),
                });
                self.rings.push(ring.clone());
                new.insert(next);
                next
            }
        }
    }

    pub(super) fn step(&mut self, id: u32, pod: usize, input: Input) -> (u32, Output) {
        if let Some(known) = self.answers.get(&(id, pod, input)) {
            return *known;
        }
        let mut ring = self.rings[id as usize].clone();
        let output = self.give(&mut ring, pod, input);
        let answer = (self.id(ring), output);
        self.answers.insert((id, pod, input), answer);
        answer
    }

    fn give(&self, ring: &mut Handover<Bits>, pod: usize, input: Input) -> Output {
        match input {
            Input::Configure(cells) => ring.configure(self.wanted(SHARD[pod], cells), NOW),
            Input::Rival(cells) => {
                ring.see_configs(vec![self.wanted(1 - SHARD[pod], cells)], NOW);
            }
            Input::Listed { leases, is_consistent } => {
                let leases = (0..PODS).filter(|at| leases[*at].is_there);
                let leases = leases.map(|at| self.lease(at, listed(input)[at])).collect();
                ring.listed(Listing { leases, is_consistent }, NOW);
            }
            Input::Changed(of, seen) if seen.is_there => {
                let _ = ring.changed(self.lease(of, seen), NOW);
            }
            Input::Changed(of, _) => ring.deleted(NAME[of], NOW),
            Input::Unfollowed => ring.unfollowed(),
            Input::Write => return self.write(ring),
            Input::Read => return ring.next_read(NOW).map_or(Output::None, |_| Output::Read),
            Input::Done(version) => {
                let version = version.map(|version| version.to_string().into());
                ring.answered(Answer::Done(version), NOW);
            }
            Input::Conflict => ring.answered(Answer::Conflict, NOW),
            Input::Unknown => ring.answered(Answer::Unknown, NOW),
            Input::Begin(cell) => {
                let longest = self.timing.longest;
                let begun = ring.begin(0, &self.layout.resource(cell), longest, NOW);
                return begun.map_or(Output::None, |_| Output::Begun);
            }
            Input::End => ring.end(0, NOW),
            Input::Lose => ring.lose(0, NOW),
            Input::Leave => ring.leave(NOW),
            Input::Tick => ring.tick(NOW),
            Input::Jump => jump(ring),
        }
        Output::None
    }

    fn write(&self, ring: &mut Handover<Bits>) -> Output {
        let number = |version: Box<str>| version.parse().unwrap();
        match ring.next_write(NOW) {
            None => Output::None,
            Some(Write::Delete(version)) => Output::Delete(number(version)),
            Some(Write::Claim(saying)) => Output::Write {
                claim: saying.claim.area().map_or(0, |area| self.layout.cells(area)),
                replaces: saying.replaces.map(number),
                is_new: saying.is_new,
                goes_with_pod: saying.goes_with_pod,
            },
        }
    }

    fn wanted(&self, shard: usize, cells: u8) -> DesiredScope<Bits> {
        DesiredScope {
            ring: "ring".into(),
            shard: SHARDS[shard].into(),
            birth: (0, SHARDS[shard].into()),
            generation: 1,
            area: Arc::new(self.layout.area(cells)),
        }
    }

    fn lease(&self, pod: usize, seen: Seen) -> Lease<Bits> {
        Lease {
            pod: NAME[pod].into(),
            ring: "ring".into(),
            shard: Some(SHARDS[SHARD[pod]].into()),
            version: seen.version.to_string().into(),
            claim: self.layout.claim(seen.claim),
        }
    }
}

fn version(ring: &Handover<Bits>, pod: &str) -> Option<u8> {
    let version = match &ring.own.stored {
        Stored::At(version) if *ring.pod == *pod => Some(&**version),
        _ => ring.peers.version(pod),
    };
    version.map(|version| version.parse().unwrap())
}

fn listed(input: Input) -> [Seen; PODS] {
    match input {
        Input::Listed { leases, .. } => leases,
        _ => [Seen::default(); PODS],
    }
}

/// Takes what has passed off the times that the machine holds. Times that are over are alike.
fn jump(ring: &mut Handover<Bits>) {
    let future = |time: &mut Duration| {
        if *time < FOREVER {
            *time = time.saturating_sub(JUMP).max(NOW);
        }
    };
    let past = |time: &mut Duration| *time = time.saturating_sub(JUMP).max(NOW - SILENT_AFTER);
    ring.own.shift(future, past);
    ring.under_way.shift(future);
    ring.peers.shift(past);
}
