//! Finds a namespace name that all of several patterns match.
//!
//! Hides the product of DFAs. Knows nothing of namespaces but what their names may be: of
//! `a` to `z`, `0` to `9` and `-`, one to 63 of them, with no `-` at the ends.

use std::collections::BTreeSet;

use regex_automata::{
    Anchored,
    hybrid::{
        LazyStateID,
        dfa::{Cache, DFA},
    },
    util::{start, syntax},
};

/// The characters of a name.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789-";
/// The most characters of a name.
const LONGEST: usize = 63;
/// Memory for the states of one automaton, in bytes.
const MEMORY: usize = 1 << 20;
/// The most combinations of states that are looked at.
const COMBINATIONS: usize = 4096;

/// An automaton that is built as it is walked.
struct Automaton {
    dfa: DFA,
    cache: Cache,
}

/// A state of an automaton that may still match.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// A match, whatever follows.
    Matched,
    At(LazyStateID),
}

/// A name as far as it was walked, and the states that it led to.
struct Walked {
    name: String,
    states: Vec<State>,
}

/// The reasons to stop the walk before it is done.
struct TooLarge;

impl Automaton {
    /// The automaton of a pattern that may match anywhere. `None` if it has none: names are ASCII,
    /// so classes of Unicode characters say what those of ASCII say, if they are classes of both.
    fn new(pattern: &str) -> Option<Self> {
        // Without regard to case some other characters are letters too: U+212A is `k`.
        if !pattern.is_ascii() || [r"\x", r"\u", r"\U"].iter().any(|code| pattern.contains(code)) {
            return None;
        }
        let config = DFA::config().cache_capacity(MEMORY);
        let config = config.minimum_cache_clear_count(Some(0));
        let syntax = syntax::Config::new().unicode(false).utf8(false);
        let built = DFA::builder().configure(config).syntax(syntax).build(pattern);
        let dfa = built.ok()?;
        let cache = dfa.create_cache();
        Some(Self { dfa, cache })
    }

    fn start(&mut self) -> Option<State> {
        let start = start::Config::new().anchored(Anchored::No);
        let state = self.dfa.start_state(&mut self.cache, &start).ok()?;
        Some(State::At(state))
    }

    /// The state after a letter, or at the end of the name. `None` if no match can follow.
    fn step(&mut self, from: State, letter: Option<u8>) -> Result<Option<State>, TooLarge> {
        let State::At(from) = from else { return Ok(Some(from)) };
        let (dfa, cache) = (&self.dfa, &mut self.cache);
        let next = match letter {
            Some(letter) => dfa.next_state(cache, from, letter),
            None => dfa.next_eoi_state(cache, from),
        };
        match next.map_err(|_| TooLarge)? {
            next if next.is_match() => Ok(Some(State::Matched)),
            next if next.is_quit() => Err(TooLarge),
            next if next.is_dead() => Ok(None),
            next => Ok(Some(State::At(next))),
        }
    }
}

/// Calls `is_enough` with short names that match all patterns, until it returns `true`: one for each
/// way in which names lead through the patterns. Returns `None` if names may have been left out;
/// else whether a name was enough.
pub(crate) fn find_name(
    patterns: &[&str],
    mut is_enough: impl FnMut(&str) -> bool,
) -> Option<bool> {
    let automata: Option<Vec<_>> = patterns.iter().map(|pattern| Automaton::new(pattern)).collect();
    walk(&mut automata?, &mut is_enough).ok()
}

/// Whether a name may match both patterns: whether it is not proven that none does.
pub(super) fn may_match_both(one: &str, other: &str) -> bool {
    find_name(&[one, other], |_| true).unwrap_or(true)
}

fn walk(
    automata: &mut [Automaton],
    is_enough: &mut impl FnMut(&str) -> bool,
) -> Result<bool, TooLarge> {
    let starts: Option<_> = automata.iter_mut().map(Automaton::start).collect();
    let letters = letters(automata);
    let mut reached = BTreeSet::new();
    let mut at = vec![Walked { name: String::new(), states: starts.ok_or(TooLarge)? }];
    for length in 1..=LONGEST {
        let mut next = Vec::new();
        for from in at {
            for letter in letters.iter().copied().filter(|letter| length > 1 || *letter != b'-') {
                let Some(states) = step(automata, &from.states, Some(letter))? else { continue };
                let may_end = letter != b'-';
                if !reached.insert((states.clone(), may_end)) {
                    continue;
                }
                let mut name = from.name.clone();
                name.push(letter.into());
                let is_match = |ends: Option<Vec<State>>| {
                    ends.is_some_and(|ends| ends.iter().all(|end| *end == State::Matched))
                };
                if may_end && is_match(step(automata, &states, None)?) && is_enough(&name) {
                    return Ok(true);
                }
                if reached.len() > COMBINATIONS {
                    return Err(TooLarge);
                }
                next.push(Walked { name, states });
            }
        }
        at = next;
    }
    Ok(false)
}

/// The states after a letter, or at the end of the name. `None` if one automaton cannot match any more.
fn step(
    automata: &mut [Automaton],
    from: &[State],
    letter: Option<u8>,
) -> Result<Option<Vec<State>>, TooLarge> {
    let steps = automata.iter_mut().zip(from).map(|(automaton, at)| automaton.step(*at, letter));
    steps.collect()
}

/// One letter of each kind that the automata distinguish, and the dash.
fn letters(automata: &[Automaton]) -> Vec<u8> {
    let classes: Vec<_> = automata.iter().map(|automaton| automaton.dfa.byte_classes()).collect();
    let mut kinds = BTreeSet::new();
    let kind = |letter: u8| {
        let of_each: Vec<u8> = classes.iter().map(|of| of.get(letter)).collect();
        (of_each, letter == b'-')
    };
    LETTERS.iter().copied().filter(|letter| kinds.insert(kind(*letter))).collect()
}
