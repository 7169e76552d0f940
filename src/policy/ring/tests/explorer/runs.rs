//! The explorations, and their expected results.

use std::time::Instant;

use super::{
    super::{super::invariants::Invariant, bits::Layout},
    graph::{Verdict, explore},
    world::Setup,
};

const BASE: Setup = Setup::BASE;

/// Explores a setup in which everything must hold.
fn holds(setup: Setup) -> usize {
    let began = Instant::now();
    match explore(&setup) {
        Verdict::Holds { states, machines, stuck, trace } => {
            let took = began.elapsed().as_secs_f32();
            println!("{}: {states} states, {machines} of machines, {took:.1} s", setup.name);
            assert_eq!(stuck, 0, "{}: no progress after {trace:#?}", setup.name);
            states
        }
        Verdict::Broken { what, trace, .. } => {
            panic!("{}: {what} is broken by {trace:#?}", setup.name)
        }
    }
}

/// Explores a machine that breaks a law: the explorer must find it.
fn loses(what: &'static str, law: Invariant, setup: Setup) {
    let setup = Setup { name: what, broken: Some(law), ..setup };
    let found = match explore(&setup) {
        Verdict::Holds { stuck: 0, states, .. } => panic!("{law:?} is not missed: {states} states"),
        Verdict::Holds { stuck, trace, .. } => {
            println!("{law:?}: no progress from {stuck} states, the first after {}", trace.len());
            "progress"
        }
        Verdict::Broken { what, states, trace } => {
            println!("{law:?}: {what} after {} steps, {states} states", trace.len());
            what
        }
    };
    assert_eq!(found, what, "{law:?}");
}

const TWO: Setup = Setup { cells: 2, initial: [0b01, 0b10], ..BASE };
const LATE: Setup = Setup { has_late_watches: true, has_late_rivals: true, ..BASE };
const LAPSE: Setup = Setup { lapses: 2, expires: true, ..BASE };
const START: Setup = Setup { initial: [1, 1], is_first_start: true, edits: 0, ..BASE };

/// The explorations of every run of the tests.
const SMALL: [Setup; 12] = [
    Setup { name: "any 3 edits, a lost answer", edits: 3, losses: 1, ..BASE },
    Setup { name: "any 2 edits, kill, lost answer", kills: 1, losses: 1, backs: 0, ..BASE },
    Setup { name: "any 2 edits, pause, lost answer", pauses: 1, losses: 1, backs: 0, ..BASE },
    Setup { name: "an edit, a pod joins, another is rolled", edits: 1, rolls: 1, ..JOINS },
    Setup { name: "two resources, any 2 edits", ..TWO },
    Setup { name: "two resources, an edit, rolled", edits: 1, rolls: 1, ..TWO },
    Setup { name: "two namespaces, any 2 edits", layout: Layout::Namespaces, ..TWO },
    Setup { name: "first start, both want it, kill", kills: 1, ..START },
    Setup { name: "any 2 edits, lists from caches", has_caches: true, ..BASE },
    Setup { name: "any 2 edits, late watches that break", breaks: 1, ..LATE },
    Setup {
        name: "an edit, slow answers, lost ones",
        edits: 1,
        losses: 2,
        has_slow_answers: true,
        ..LATE
    },
    Setup { name: "an edit, 2 lapses, pause", edits: 1, pauses: 1, ..LAPSE },
];

const JOINS: Setup = Setup { has_late_pod: true, ..BASE };

/// The explorations besides if `RING=large`.
const LARGE: [Setup; 6] = [
    Setup { name: "an edit, a pod joins, kill", edits: 1, kills: 1, backs: 0, ..JOINS },
    Setup { name: "any 4 edits, 2 lost answers", edits: 4, losses: 2, ..BASE },
    Setup { name: "any 2 edits, a pod joins", ..JOINS },
    Setup { name: "any 2 edits, kill, pause", kills: 1, pauses: 1, ..BASE },
    Setup { name: "two resources, any 3 edits", edits: 3, ..TWO },
    Setup { name: "two resources, an edit, kill, rolled", edits: 1, kills: 1, rolls: 1, ..TWO },
];

#[test]
fn no_interleaving_has_two_writers_or_none() {
    let is_large = std::env::var("RING").is_ok_and(|what| what == "large");
    let large = LARGE.into_iter().filter(|_| is_large);
    let states: usize = SMALL.into_iter().chain(large).map(holds).sum();
    println!("{states} states");
    assert!(states > 1_000_000, "{states} states");
}

/// Whatever is frozen, for however long: a request may be late, but never undoes what a later owner
/// has written.
#[test]
fn nothing_returns_that_carries_its_version() {
    let frozen = Setup {
        edits: 1,
        name: "2 lapses, nothing is bounded, with versions",
        freezes: true,
        checks_overlap: false,
        checks_progress: false,
        ..LAPSE
    };
    holds(Setup { has_versions: true, ..frozen });
    assert!(matches!(explore(&frozen), Verdict::Broken { what: "G1", .. }));
    let frozen = Setup { checks_overlap: true, has_versions: true, ..frozen };
    assert!(matches!(explore(&frozen), Verdict::Broken { what: "G2", .. }));
}

#[test]
fn each_broken_law_is_missed() {
    let lost = Setup { losses: 2, ..BASE };
    loses("G2", Invariant::DrainFirst, BASE);
    loses("G2", Invariant::UnknownIsUnderWay, lost);
    loses("G2", Invariant::ReadBeforeOpening, BASE);
    loses("G2", Invariant::ClaimBeforeReading, BASE);
    loses("G2", Invariant::ReadConsistently, Setup { has_caches: true, ..BASE });
    loses("G2", Invariant::OpenWithinClaim, Setup { initial: [0, 0], ..BASE });
    loses("G2", Invariant::WriteWithVersion, lost);
    loses("G2", Invariant::LeaseOutlivesPod, BASE);
    loses("progress", Invariant::ElderClaims, START);
    loses("progress", Invariant::ClaimWhatIsLeft, TWO);
}
