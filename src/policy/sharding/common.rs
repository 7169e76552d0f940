//! Names that two patterns have in common.
//!
//! Hides the product of two automata. Knows nothing of namespaces but what their names may be: of
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
/// The most pairs of states that are looked at.
const PAIRS: usize = 4096;

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

    fn matches(&mut self, at: State) -> Result<bool, TooLarge> {
        Ok(self.step(at, None)? == Some(State::Matched))
    }
}

/// Whether a name may match both patterns: whether it is not proven that none does.
pub(super) fn may_match_both(one: &str, other: &str) -> bool {
    let (Some(mut one), Some(mut other)) = (Automaton::new(one), Automaton::new(other)) else {
        return true;
    };
    matches_both(&mut one, &mut other).unwrap_or(true)
}

fn matches_both(one: &mut Automaton, other: &mut Automaton) -> Result<bool, TooLarge> {
    let (Some(first), Some(second)) = (one.start(), other.start()) else { return Err(TooLarge) };
    let letters = letters(one, other);
    let mut reached = BTreeSet::new();
    let mut at = vec![(first, second)];
    for length in 1..=LONGEST {
        let mut next = Vec::new();
        for (first, second) in at {
            for letter in letters.iter().copied().filter(|letter| length > 1 || *letter != b'-') {
                let Some(first) = one.step(first, Some(letter))? else { continue };
                let Some(second) = other.step(second, Some(letter))? else { continue };
                let may_end = letter != b'-';
                if !reached.insert((first, second, may_end)) {
                    continue;
                }
                if may_end && one.matches(first)? && other.matches(second)? {
                    return Ok(true);
                }
                if reached.len() > PAIRS {
                    return Err(TooLarge);
                }
                next.push((first, second));
            }
        }
        at = next;
    }
    Ok(false)
}

/// One letter of each kind that the automata distinguish, and the dash.
fn letters(one: &Automaton, other: &Automaton) -> Vec<u8> {
    let classes = (one.dfa.byte_classes(), other.dfa.byte_classes());
    let mut kinds = BTreeSet::new();
    let kind = |letter: u8| (classes.0.get(letter), classes.1.get(letter), letter == b'-');
    LETTERS.iter().copied().filter(|letter| kinds.insert(kind(*letter))).collect()
}
