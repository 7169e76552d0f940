//! The graph of all states that the world can reach.

use std::{collections::HashMap, hash::BuildHasherDefault};

use super::{
    fingerprint::{Taken, fingerprint},
    machines::{Machines, NAME},
    steps::{Steps, What},
    world::{Broken, Setup, World},
};

/// The result of an exploration.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Nothing is broken, and progress is possible from all states but these.
    Holds {
        states: usize,
        machines: usize,
        stuck: usize,
        trace: Vec<String>,
    },
    Broken {
        what: Broken,
        states: usize,
        trace: Vec<String>,
    },
}

/// The states by their fingerprints, and how each was first reached.
struct Graph {
    known: HashMap<u128, u32, BuildHasherDefault<Taken>>,
    from: Vec<(u32, u8, What)>,
    /// The steps that are no faults, from their ends.
    back: Vec<(u32, u32)>,
    served: Vec<u32>,
}

impl Graph {
    /// The number of a state, and whether it is new.
    fn number(&mut self, world: &World, from: (u32, u8, What)) -> (u32, bool) {
        let next = u32::try_from(self.from.len()).unwrap();
        let number = *self.known.entry(fingerprint(world)).or_insert(next);
        if number == next {
            self.from.push(from);
        }
        (number, number == next)
    }

    fn trace(&self, mut state: u32) -> Vec<String> {
        let mut trace = Vec::new();
        while state != 0 {
            let (before, at, what) = self.from[state as usize];
            trace.push(said(at.into(), what));
            state = before;
        }
        trace.reverse();
        trace
    }

    /// The states from which no served one can be reached without a fault.
    fn stuck(&self) -> Vec<u32> {
        let states = self.from.len();
        let mut starts = vec![0_u32; states + 1];
        for (to, _) in &self.back {
            starts[*to as usize + 1] += 1;
        }
        for at in 0..states {
            starts[at + 1] += starts[at];
        }
        let mut fill = starts.clone();
        let mut before = vec![0_u32; self.back.len()];
        for (to, from) in &self.back {
            before[fill[*to as usize] as usize] = *from;
            fill[*to as usize] += 1;
        }
        let mut can = vec![false; states];
        let mut next = self.served.clone();
        while let Some(state) = next.pop() {
            if !std::mem::replace(&mut can[state as usize], true) {
                let range = starts[state as usize] as usize..starts[state as usize + 1] as usize;
                next.extend(before[range].iter().filter(|from| !can[**from as usize]));
            }
        }
        let all = 0..u32::try_from(states).unwrap();
        all.filter(|state| !can[*state as usize]).collect()
    }
}

fn said(at: usize, what: What) -> String {
    match what {
        What::Edited(_) => format!("config {} {what:?}", ["A", "B"][at]),
        What::TimePasses => "TimePasses".into(),
        what => format!("{} {what:?}", NAME[at]),
    }
}

/// Explores all that can happen.
pub(super) fn explore(setup: &Setup) -> Verdict {
    let mut machines = Machines::new(setup.layout, setup.broken, setup.expires);
    let first = World::new(setup, &mut machines);
    let mut graph =
        Graph { known: HashMap::default(), from: Vec::new(), back: Vec::new(), served: Vec::new() };
    graph.number(&first, (0, 0, What::TimePasses));
    let mut frontier = vec![(0, first)];
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (number, world) in frontier {
            if setup.checks_progress && world.is_served(setup, &machines) {
                graph.served.push(number);
            }
            if setup.checks_claims() && !world.is_claimed(&machines) {
                let (states, trace) = (graph.from.len(), graph.trace(number));
                return Verdict::Broken { what: "open or under way, not claimed", states, trace };
            }
            for step in Steps::of(setup, &mut machines, &world) {
                let by = (number, u8::try_from(step.at).unwrap(), step.what);
                let to = match step.to {
                    Ok(to) => to,
                    Err(what) => {
                        let mut trace = graph.trace(number);
                        trace.push(said(step.at, step.what));
                        return Verdict::Broken { what, states: graph.from.len(), trace };
                    }
                };
                let (to_number, is_new) = graph.number(&to, by);
                if is_new {
                    next.push((to_number, to));
                }
                if setup.checks_progress && !step.is_fault {
                    graph.back.push((to_number, number));
                }
            }
        }
        frontier = next;
    }
    let stuck = if setup.checks_progress { graph.stuck() } else { Vec::new() };
    let trace = stuck.first().map_or_else(Vec::new, |state| graph.trace(*state));
    let (states, machines) = (graph.from.len(), machines.count());
    Verdict::Holds { states, machines, stuck: stuck.len(), trace }
}

impl Setup {
    /// Whether all that is open must be claimed in the store: a Lease that has run out is passed
    /// over, whatever it says.
    fn checks_claims(&self) -> bool {
        self.broken.is_none() && !self.expires
    }
}
