//! The table of all states and inputs, and lives at random.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    iter::successors,
    rc::{Rc, Weak},
};

use proptest::prelude::*;

use super::*;

/// The view of a watch under a policy with this number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    number: usize,
    objects: u8,
    lock: u8,
}

#[derive(Debug)]
struct Eyes;

impl Sight for Eyes {
    type Policy = Policy;
    type Member = Rc<()>;

    fn difference(&self, old: &Policy, new: &Policy) -> Difference {
        match () {
            () if old.lock != new.lock => Difference::Lock,
            () if old.objects != new.objects => Difference::Objects,
            () => Difference::None,
        }
    }
}

const BLUE: u8 = 1;
const GREEN: u8 = 2;
const RED: u8 = 3;

/// The policy that a watch of the table shows, and the one that it is brought over to.
const SHOWN: Policy = Policy { number: 1, objects: BLUE, lock: 1 };
const TO: Policy = Policy { number: 2, objects: GREEN, lock: 1 };
/// The number of the policy that is to come after it.
const GOAL: usize = 3;
const SAME: Policy = Policy { number: 9, ..SHOWN };
const OTHER: Policy = Policy { number: 9, ..TO };
const OTHER_LOCK: Policy = Policy { number: 9, objects: BLUE, lock: 2 };

/// Every state: a name with `>` is that of a change with the order behind it.
fn states() -> Vec<State<Eyes>> {
    let orders = |goals: &[(u8, u8)]| {
        let mut orders = vec![Order::None, Order::Drain, Order::Expire];
        for &(objects, lock) in goals {
            for then_drain in [false, true] {
                let to = Policy { number: GOAL, objects, lock };
                orders.push(Order::Change { goal: Goal { to, member: Rc::new(()) }, then_drain });
            }
        }
        orders
    };
    let passing = orders(&[(RED, 1), (RED, 2)]).into_iter().map(State::Passing);
    let changing = orders(&[(GREEN, 1), (RED, 1), (RED, 2)]).into_iter();
    let changing = changing.map(|order| State::Changing { to: TO, order });
    passing.chain(changing).chain([State::Ended]).collect()
}

fn name(shown: &Policy, state: &State<Eyes>) -> String {
    let of_order = |base: &Policy, order: &Order<Eyes>| match order {
        Order::None => "steady".to_owned(),
        Order::Drain => "drain".to_owned(),
        Order::Expire => "expire".to_owned(),
        Order::Change { goal, then_drain } => {
            let to = match Eyes.difference(base, &goal.to) {
                Difference::None => "same",
                Difference::Objects => "change",
                Difference::Lock => "lock",
            };
            format!("{to}{}", if *then_drain { "+drain" } else { "" })
        }
    };
    match state {
        State::Passing(order) => of_order(shown, order),
        State::Changing { to, order } => format!(">{}", of_order(to, order)),
        State::Ended => "ended".to_owned(),
    }
}

/// Every input, in a chain: one more needs a place in it.
fn inputs() -> Vec<Input<'static, Eyes>> {
    let after = |input: &Input<'static, Eyes>| match input {
        Input::Policy(to, _) if **to == SAME => Some(Input::Policy(&OTHER, &Rc::default)),
        Input::Policy(to, _) if **to == OTHER => Some(Input::Policy(&OTHER_LOCK, &Rc::default)),
        Input::Policy(..) => Some(Input::Expire),
        Input::Expire => Some(Input::Drain),
        Input::Drain => Some(Input::BetweenEvents),
        Input::BetweenEvents => Some(Input::Changed),
        Input::Changed => Some(Input::Failed),
        Input::Failed => Some(Input::Ended),
        Input::Ended => Some(Input::MayChange(true)),
        Input::MayChange(_) => None,
    };
    successors(Some(Input::Policy(&SAME, &Rc::default)), after).collect()
}

fn input_name(input: &Input<'_, Eyes>) -> &'static str {
    match input {
        Input::Policy(to, _) if **to == SAME => "same",
        Input::Policy(to, _) if **to == OTHER => "other",
        Input::Policy(..) => "lock",
        Input::Expire => "Expire",
        Input::Drain => "Drain",
        Input::BetweenEvents => "BetweenEvents",
        Input::Changed => "Changed",
        Input::Failed => "Failed",
        Input::Ended => "Ended",
        Input::MayChange(_) => "MayChange",
    }
}

fn output_name(output: &Output<Eyes>) -> &'static str {
    match output {
        Output::Nothing => "-",
        Output::CarriedOver => "carried",
        Output::Ordered => "wake",
        Output::OrderedToExpire => "wake+count",
        Output::Late => "late",
        Output::Change(_) => "begin",
        Output::Expire { is_counted: false } => "expire+count",
        Output::Expire { is_counted: true } => "expire",
        Output::Drain => "end",
    }
}

/// Each state with each input: the next state, and the effect. `.` is the same state, without an
/// effect. `!` marks the watches that cannot be brought over by difference, where it matters.
const TABLE: [&str; 4] = [
    "
              same              other               lock
steady        steady:carried    change:wake         lock:wake
change        steady:carried    change:wake         lock:wake
lock          steady:carried    change:wake         lock:wake
change+drain  drain:carried     change+drain:wake   lock+drain:wake
lock+drain    drain:carried     change+drain:wake   lock+drain:wake
drain         drain:carried     change+drain:wake   lock+drain:wake
expire        expire:carried    .                   .
>steady       >change:wake      >same:wake          >lock:wake
>same         >change:wake      >same:wake          >lock:wake
>change       >change:wake      >same:wake          >lock:wake
>lock         >change:wake      >same:wake          >lock:wake
>same+drain   >change+drain:wake >same+drain:wake   >lock+drain:wake
>change+drain >change+drain:wake >same+drain:wake   >lock+drain:wake
>lock+drain   >change+drain:wake >same+drain:wake   >lock+drain:wake
>drain        >change+drain:wake >same+drain:wake   >lock+drain:wake
>expire       .                 .                   .
ended         ended:carried     .                   .
",
    "
              !same                !other              !lock
steady        steady:carried       steady:late         steady:late
change        steady:carried       change:late         change:late
lock          steady:carried       lock:late           lock:late
change+drain  drain:carried        change+drain:late   change+drain:late
lock+drain    drain:carried        lock+drain:late     lock+drain:late
drain         drain:carried        drain:late          drain:late
expire        expire:carried       .                   .
>steady       >steady:late         >steady:late        >steady:late
>same         >same:late           >same:late          >same:late
>change       >change:late         >change:late        >change:late
>lock         >lock:late           >lock:late          >lock:late
>same+drain   >same+drain:late     >same+drain:late    >same+drain:late
>change+drain >change+drain:late   >change+drain:late  >change+drain:late
>lock+drain   >lock+drain:late     >lock+drain:late    >lock+drain:late
>drain        >drain:late          >drain:late         >drain:late
>expire       .                    .                   .
ended         ended:carried        .                   .
",
    "
              Expire              Drain               Ended    MayChange
steady        expire:wake+count   drain:wake          ended:-  .
change        expire:wake+count   change+drain:wake   ended:-  .
lock          expire:wake+count   lock+drain:wake     ended:-  .
change+drain  expire:wake+count   change+drain:wake   ended:-  .
lock+drain    expire:wake+count   lock+drain:wake     ended:-  .
drain         expire:wake+count   .                   ended:-  .
expire        .                   .                   ended:-  .
>steady       >expire:wake+count  >drain:wake         ended:-  .
>same         >expire:wake+count  >same+drain:wake    ended:-  .
>change       >expire:wake+count  >change+drain:wake  ended:-  .
>lock         >expire:wake+count  >lock+drain:wake    ended:-  .
>same+drain   >expire:wake+count  >same+drain:wake    ended:-  .
>change+drain >expire:wake+count  >change+drain:wake  ended:-  .
>lock+drain   >expire:wake+count  >lock+drain:wake    ended:-  .
>drain        >expire:wake+count  .                   ended:-  .
>expire       .                   .                   ended:-  .
ended         .                   .                   .        .
",
    "
              BetweenEvents       !BetweenEvents      Changed               Failed
steady        .                   .                   .                     .
change        >steady:begin       ended:expire+count  .                     .
lock          ended:expire+count  ended:expire+count  .                     .
change+drain  >drain:begin        ended:expire+count  .                     .
lock+drain    ended:expire+count  ended:expire+count  .                     .
drain         ended:end           ended:end           .                     .
expire        ended:expire        ended:expire        .                     .
>steady       .                   .                   steady:carried        ended:expire+count
>same         .                   .                   steady:carried        ended:expire+count
>change       .                   .                   change:carried        ended:expire+count
>lock         .                   .                   lock:carried          ended:expire+count
>same+drain   .                   .                   drain:carried         ended:expire+count
>change+drain .                   .                   change+drain:carried  ended:expire+count
>lock+drain   .                   .                   lock+drain:carried    ended:expire+count
>drain        .                   .                   drain:carried         ended:expire+count
>expire       .                   .                   expire:carried        ended:expire
ended         .                   .                   .                     .
",
];

/// Inputs that mean something else to a watch that cannot be brought over.
const SPLIT: [&str; 4] = ["same", "other", "lock", "BetweenEvents"];

/// The cells of the table by state, input, and whether the watch may change.
fn table() -> BTreeMap<(&'static str, &'static str, bool), (&'static str, &'static str)> {
    let mut cells = BTreeMap::new();
    for part in TABLE {
        let mut rows = part.lines().filter(|line| !line.is_empty()).map(str::split_whitespace);
        let inputs: Vec<_> = rows.next().unwrap().collect();
        for mut row in rows {
            let state = row.next().unwrap();
            for (input, cell) in inputs.iter().zip(row) {
                let expected = cell.split_once(':').unwrap_or((state, "-"));
                let (input, abilities) = match input.strip_prefix('!') {
                    Some(input) => (input, &[false][..]),
                    None if SPLIT.contains(input) => (*input, &[true][..]),
                    None => (*input, &[true, false][..]),
                };
                for may_change in abilities {
                    let key = (state, input, *may_change);
                    assert_eq!(cells.insert(key, expected), None, "{key:?} twice");
                }
            }
        }
    }
    cells
}

#[test]
fn every_state_takes_every_input() {
    let mut cells = table();
    let names: Vec<_> = states().iter().map(|state| name(&SHOWN, state)).collect();
    for may_change in [true, false] {
        for (row, was) in names.iter().enumerate() {
            for input in inputs() {
                let key = (was.as_str(), input_name(&input), may_change);
                let state = states().remove(row);
                let mut machine = Machine { sight: Eyes, shown: SHOWN, may_change, state };
                let may_change_now = match input {
                    Input::MayChange(may_change) => may_change,
                    _ => may_change,
                };
                let asks = matches!(input, Input::BetweenEvents).then(|| machine.has_order());
                let output = machine.step(input);
                let is_idle = matches!(output, Output::Nothing);
                assert!(asks.is_none_or(|asks| asks != is_idle), "{key:?} for ever");
                let is = name(&machine.shown, &machine.state);
                let (next, done) = cells.remove(&key).unwrap_or_else(|| panic!("no {key:?}"));
                assert_eq!((is.as_str(), output_name(&output)), (next, done), "{key:?}");
                assert!(names.contains(&is), "{is} has no row");
                let shown = match (done, key.1) {
                    ("carried", "Changed") if was.starts_with(">same") => GOAL,
                    ("carried", "Changed") => TO.number,
                    ("carried", _) => SAME.number,
                    _ => SHOWN.number,
                };
                assert_eq!(machine.shown.number, shown, "{key:?}");
                assert_eq!(machine.may_change, may_change_now, "{key:?}");
            }
        }
    }
    assert!(cells.is_empty(), "no such states or inputs: {cells:?}");
}

/// The record of a random life.
#[derive(Default)]
struct Record {
    is_changing: bool,
    is_expiring: bool,
    is_draining: bool,
    has_ended: bool,
    counted: usize,
    is_late: bool,
    /// The parts in changes that were given, and those that were taken over by a change.
    joined: Rc<RefCell<Vec<Weak<()>>>>,
    taken: Vec<Rc<()>>,
}

impl Record {
    fn step(&mut self, machine: &mut Machine<Eyes>, input: Input<'_, Eyes>) {
        let (is_change_over, is_end) = match input {
            Input::Changed | Input::Failed => (true, false),
            Input::Ended => (true, true),
            _ => (false, false),
        };
        self.is_changing &= !is_change_over;
        self.is_expiring |= matches!(input, Input::Expire);
        self.is_draining |= matches!(input, Input::Drain);
        let output = machine.step(input);
        if self.has_ended {
            let is_quiet = matches!(output, Output::Nothing | Output::CarriedOver);
            assert!(is_quiet, "{output:?} after the end");
        }
        self.has_ended |= is_end;
        match output {
            Output::Nothing | Output::CarriedOver | Output::Ordered => {}
            Output::Late => self.is_late = true,
            Output::OrderedToExpire => self.counted += 1,
            Output::Change(goal) => {
                assert!(!self.is_changing, "two changes at once");
                assert!(!self.is_expiring, "a change of a client that lists again");
                assert_eq!(machine.shown.lock, goal.to.lock);
                self.is_changing = true;
                self.taken.push(goal.member);
            }
            Output::Expire { is_counted } => {
                assert!(!self.is_changing, "an end within a change");
                self.counted += usize::from(!is_counted);
                assert_eq!(self.counted, 1);
                self.has_ended = true;
            }
            Output::Drain => {
                assert!(!self.is_changing && !self.is_expiring);
                self.has_ended = true;
            }
        }
        assert!(self.counted <= 1, "counted {} times", self.counted);
        let joined = self.joined.borrow();
        let held = joined.iter().filter(|part| part.strong_count() > 0).count();
        let is_waiting = matches!(machine.order(), Some(Order::Change { .. }));
        assert_eq!(held - self.taken.len(), usize::from(is_waiting), "no part is held in vain");
    }
}

proptest! {
    #[test]
    fn no_life_breaks_the_rules(
        may_change: bool,
        steps in prop::collection::vec((0..40_u8, 1..4_u8, 1..8_u8), 0..24),
    ) {
        let mut record = Record::default();
        let first = Policy { number: 0, ..SHOWN };
        let mut machine = Machine::new(Eyes, first.clone());
        record.step(&mut machine, Input::MayChange(may_change));
        let joined = Rc::clone(&record.joined);
        let join = || {
            let part = Rc::new(());
            joined.borrow_mut().push(Rc::downgrade(&part));
            part
        };
        let mut last = first;
        for (number, (kind, objects, lock)) in steps.into_iter().enumerate() {
            let input = match kind {
                0..14 => {
                    // One lock is far more frequent than the other.
                    last = Policy { number: number + 1, objects, lock: 1 + lock / 7 };
                    Input::Policy(&last, &join)
                }
                14..22 => Input::BetweenEvents,
                22..30 => Input::Changed,
                30 => Input::Failed,
                31 => Input::Expire,
                32 => Input::Drain,
                33..39 => Input::MayChange(objects > 1),
                _ => Input::Ended,
            };
            record.step(&mut machine, input);
        }
        if record.is_late {
            record.step(&mut machine, Input::Expire);
        }
        for _ in 0..2 {
            record.step(&mut machine, Input::Changed);
            record.step(&mut machine, Input::BetweenEvents);
        }
        record.step(&mut machine, Input::Changed);
        prop_assert!(record.has_ended || !record.is_draining);
        prop_assert!(record.has_ended || machine.shown == last, "{machine:?} is not at {last:?}");
    }
}
