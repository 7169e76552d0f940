//! The life of a watch, as a machine without input and output of its own.
//!
//! Inputs and effects are values. The list of live watches gives orders, at any time; the body of
//! the watch obeys them, between two events.

use std::{fmt::Debug, mem};

/// The eyes of a watch: what a policy means to it.
pub(crate) trait Sight {
    /// A policy; its clones are cheap.
    type Policy: Clone + Debug;
    /// A part in a change, for which other watches wait.
    type Member: Debug;

    fn difference(&self, old: &Self::Policy, new: &Self::Policy) -> Difference;
}

/// The difference that another policy makes to a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    None,
    /// Objects leave or enter.
    Objects,
    /// The watch is of another lock, which is another object: it cannot be brought over.
    Lock,
}

#[derive(Debug)]
pub(super) struct Machine<S: Sight> {
    pub(super) sight: S,
    /// The policy whose scope the client sees.
    pub(super) shown: S::Policy,
    /// Whether it can be brought over by difference.
    may_change: bool,
    state: State<S>,
}

#[derive(Debug)]
enum State<S: Sight> {
    /// Events of the upstream pass; the order waits for the end of one.
    Passing(Order<S>),
    /// The watch is brought over to another policy; the order waits for the end of that.
    Changing { to: S::Policy, order: Order<S> },
    /// The client gets nothing more.
    Ended,
}

/// An order that waits. A client that must list again needs no other order, and a change comes
/// before an end.
#[derive(Debug)]
enum Order<S: Sight> {
    None,
    Change { goal: Goal<S>, then_drain: bool },
    Drain,
    Expire,
}

/// The policy that a watch is brought over to, and its part in that change.
#[derive(Debug)]
pub(crate) struct Goal<S: Sight> {
    pub(crate) to: S::Policy,
    pub(crate) member: S::Member,
}

/// An input of a watch's machine.
pub(crate) enum Input<'a, S: Sight> {
    /// The policy came into force. A watch that changes for it takes part by this function.
    Policy(&'a S::Policy, &'a dyn Fn() -> S::Member),
    /// The watch can be brought over by difference from now on, or cannot.
    MayChange(bool),
    /// The client must list again.
    Expire,
    Drain,
    /// An event has ended, and no other has begun.
    BetweenEvents,
    /// The change is done: the events of the new watch follow.
    Changed,
    /// The change failed, before anything was sent for it.
    Failed,
    /// The upstream or the client ended it.
    Ended,
}

/// The action that the owner of the machine has to take.
#[derive(Debug)]
pub(crate) enum Output<S: Sight> {
    Nothing,
    /// Record the policy that is shown, which is another now.
    CarriedOver,
    /// Wake the body: there is an order.
    Ordered,
    /// Wake the body and count an expired watch: the order is to expire.
    OrderedToExpire,
    /// Order it to expire, at a time that suits.
    Late,
    /// Begin to bring it over from the policy that is shown.
    Change(Goal<S>),
    /// Send one ERROR event 410 and end; count it if the order did not.
    Expire {
        is_counted: bool,
    },
    /// End cleanly: the client resumes from its position.
    Drain,
}

impl<S: Sight> Machine<S> {
    /// A watch that was decided by this policy.
    pub(super) fn new(sight: S, shown: S::Policy) -> Self {
        Self { sight, shown, may_change: false, state: State::Passing(Order::None) }
    }

    /// Whether an order waits for the end of an event.
    pub(super) fn has_order(&self) -> bool {
        matches!(&self.state, State::Passing(order) if !matches!(order, Order::None))
    }

    pub(super) fn step(&mut self, input: Input<'_, S>) -> Output<S> {
        match input {
            Input::Policy(to, join) => return self.hear(to, join),
            Input::BetweenEvents => return self.obey(),
            Input::Changed => return self.changed(),
            Input::MayChange(may_change) => self.may_change = may_change,
            Input::Ended => self.state = State::Ended,
            Input::Failed => {
                if let Some((_, order)) = self.end_change() {
                    return Output::Expire { is_counted: matches!(order, Order::Expire) };
                }
            }
            Input::Expire => match self.order() {
                None | Some(Order::Expire) => {}
                Some(order) => {
                    *order = Order::Expire;
                    return Output::OrderedToExpire;
                }
            },
            Input::Drain => match self.order() {
                None | Some(Order::Expire | Order::Drain) => {}
                Some(order) => {
                    match order {
                        Order::Change { then_drain, .. } => *then_drain = true,
                        order => *order = Order::Drain,
                    }
                    return Output::Ordered;
                }
            },
        }
        Output::Nothing
    }

    fn order(&mut self) -> Option<&mut Order<S>> {
        match &mut self.state {
            State::Passing(order) | State::Changing { order, .. } => Some(order),
            State::Ended => None,
        }
    }

    fn end_change(&mut self) -> Option<(S::Policy, Order<S>)> {
        match mem::replace(&mut self.state, State::Ended) {
            State::Changing { to, order } => Some((to, order)),
            other => {
                self.state = other;
                None
            }
        }
    }

    fn hear(&mut self, to: &S::Policy, join: &dyn Fn() -> S::Member) -> Output<S> {
        let is_same = self.sight.difference(&self.shown, to) == Difference::None;
        let is_changing = matches!(self.state, State::Changing { .. });
        // What a changing watch shows is known at the end of the change.
        if is_same && !is_changing {
            self.order().map(Order::take_back);
            self.shown = to.clone();
            return Output::CarriedOver;
        }
        let may_change = self.may_change;
        match self.order() {
            None | Some(Order::Expire) => Output::Nothing,
            Some(_) if !may_change => Output::Late,
            Some(order) => {
                let then_drain =
                    matches!(order, Order::Drain | Order::Change { then_drain: true, .. });
                let goal = Goal { to: to.clone(), member: join() };
                *order = Order::Change { goal, then_drain };
                Output::Ordered
            }
        }
    }

    /// Obeys the order that waits, between two events.
    fn obey(&mut self) -> Output<S> {
        let State::Passing(order) = &mut self.state else { return Output::Nothing };
        let order = mem::replace(order, Order::None);
        self.state = State::Ended;
        match order {
            Order::None => {
                self.state = State::Passing(order);
                Output::Nothing
            }
            Order::Drain => Output::Drain,
            Order::Expire => Output::Expire { is_counted: true },
            Order::Change { goal, then_drain } => {
                let difference = self.sight.difference(&self.shown, &goal.to);
                if !self.may_change || difference == Difference::Lock {
                    return Output::Expire { is_counted: false };
                }
                let order = Order::after(then_drain);
                self.state = State::Changing { to: goal.to.clone(), order };
                Output::Change(goal)
            }
        }
    }

    fn changed(&mut self) -> Output<S> {
        let Some((to, mut order)) = self.end_change() else { return Output::Nothing };
        self.shown = to;
        if let Order::Change { goal, .. } = &order
            && self.sight.difference(&self.shown, &goal.to) == Difference::None
        {
            self.shown = goal.to.clone();
            order.take_back();
        }
        self.state = State::Passing(order);
        Output::CarriedOver
    }
}

impl<S: Sight> Order<S> {
    fn after(then_drain: bool) -> Self {
        if then_drain { Self::Drain } else { Self::None }
    }

    fn take_back(&mut self) {
        if let Self::Change { then_drain, .. } = *self {
            *self = Self::after(then_drain);
        }
    }
}

#[cfg(test)]
mod tests;
