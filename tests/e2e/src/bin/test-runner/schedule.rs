//! Which group starts next. Knows no process and no clock.

use anyhow::Result;

use crate::{
    cpu,
    groups::{Group, Weight},
    times::Times,
};

/// Memory that one unit of weight needs: an API server with etcd, its clients and a proxy.
const MEMORY_OF_UNIT: u64 = 800 << 20;

/// What the machine has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    cores: usize,
}

impl Room {
    pub(crate) fn of_machine() -> Result<Self> {
        Ok(Self { cores: cpu::cores()? })
    }

    /// The units of weight that run at the same time. Tests wait for clusters most of the time, so
    /// a core has room for more than one.
    fn units(self) -> usize {
        self.cores * 5 / 2
    }

    fn units_of(self, weight: Weight) -> usize {
        match weight {
            _ if self.cores == 1 => self.units(),
            // They wait for clocks and each other, and share what the others leave.
            Weight::InProcess => 0,
            Weight::ApiServer => 1,
            Weight::Node => 2,
            Weight::Alone => self.units(),
        }
    }
}

/// The groups that wait, and the room that is taken.
pub(crate) struct Plan {
    /// The first is the first to start.
    waiting: Vec<Group>,
    room: Room,
    running: usize,
    /// The units of those that run.
    taken: usize,
    /// The part of it that groups of one unit have.
    taken_by_light: usize,
}

impl Plan {
    /// Sorts the groups. Groups with a test whose time is not known come first. The others follow,
    /// the longest one first. Groups that run alone come last.
    pub(crate) fn new(groups: Vec<Group>, times: &Times, room: Room) -> Self {
        let mut waiting = groups;
        waiting.sort_by(|one, other| {
            let is_alone = |group: &Group| group.weight == Weight::Alone;
            let expected = |group: &Group| times.of_group(group).unwrap_or(f64::INFINITY);
            let by_time = expected(other).total_cmp(&expected(one));
            is_alone(one).cmp(&is_alone(other)).then(by_time)
        });
        Self { waiting, room, running: 0, taken: 0, taken_by_light: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }

    pub(crate) fn needs_kubernetes(&self) -> bool {
        self.waiting.iter().any(|group| group.needs_kubernetes)
    }

    /// Takes out the groups that cannot run without Kubernetes.
    pub(crate) fn give_up_kubernetes(&mut self) -> Vec<Group> {
        self.waiting.extract_if(.., |group| group.needs_kubernetes).collect()
    }

    /// The next group, if there is room for it. `memory`: the available memory in bytes;
    /// `has_kubernetes`: whether clusters can start.
    ///
    /// Where the first one waits for room, one group of one unit at a time may overtake it: more would
    /// leave the nodes, which take long, for the end. What takes no unit never waits for others.
    pub(crate) fn start(&mut self, memory: u64, has_kubernetes: bool) -> Option<Group> {
        let can_run = |group: &Group| has_kubernetes || !group.needs_kubernetes;
        let units_of = |group: &Group| self.room.units_of(group.weight);
        let first = self.waiting.iter().find(|group| can_run(group))?;
        let overtakes = |group: &Group| match units_of(group) {
            0 => true,
            1 => self.taken_by_light == 0,
            _ => false,
        };
        let at = self.waiting.iter().position(|group| {
            let is_next = std::ptr::eq(group, first) || overtakes(group);
            is_next && can_run(group) && self.has_room(group, memory)
        })?;
        let group = self.waiting.remove(at);
        let units = self.room.units_of(group.weight);
        self.running += 1;
        self.taken += units;
        self.taken_by_light += usize::from(units == 1);
        Some(group)
    }

    fn has_room(&self, group: &Group, memory: u64) -> bool {
        let units = self.room.units_of(group.weight);
        // A group that runs alone has whatever memory there is.
        let has_memory = memory >= units as u64 * MEMORY_OF_UNIT;
        match group.weight {
            _ if self.running == 0 => true,
            Weight::Alone => false,
            _ => self.taken + units <= self.room.units() && has_memory,
        }
    }

    pub(crate) fn end(&mut self, weight: Weight) {
        let units = self.room.units_of(weight);
        self.running = self.running.saturating_sub(1);
        self.taken = self.taken.saturating_sub(units);
        self.taken_by_light = self.taken_by_light.saturating_sub(usize::from(units == 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::tests::group;

    const PLENTY: u64 = 64 << 30;

    fn plan(cores: usize, weights: &[(&str, Weight)]) -> Plan {
        let groups = weights.iter().map(|(name, weight)| group(name, *weight)).collect();
        let times =
            Times::from_seconds(&[("e2e short", 1.0), ("e2e long", 9.0), ("e2e alone", 99.0)]);
        Plan::new(groups, &times, Room { cores })
    }

    fn started(plan: &mut Plan, memory: u64) -> Vec<String> {
        std::iter::from_fn(|| plan.start(memory, true)).map(|group| group.name).collect()
    }

    #[test]
    fn unknown_groups_start_first_then_the_longest_and_what_is_alone_last() {
        let (one, alone) = (Weight::ApiServer, Weight::Alone);
        let groups = [("alone", alone), ("short", one), ("long", one), ("new", one)];
        let mut plan = plan(2, &groups);
        assert_eq!(started(&mut plan, PLENTY), ["new", "long", "short"]);
        for _ in 0..3 {
            plan.end(one);
        }
        assert_eq!(started(&mut plan, PLENTY), ["alone"]);
        plan.end(alone);
        assert!(plan.is_done());
    }

    #[test]
    fn what_takes_no_unit_starts_at_once_and_what_is_alone_waits_for_it() {
        let (two, none, alone) = (Weight::Node, Weight::InProcess, Weight::Alone);
        let groups = [("a", two), ("b", two), ("c", two), ("short", none), ("alone", alone)];
        let mut plan = plan(2, &groups);
        assert_eq!(started(&mut plan, PLENTY), ["a", "b", "short"]);
        plan.end(two);
        assert_eq!(started(&mut plan, PLENTY), ["c"]);
        plan.end(two);
        plan.end(two);
        assert_eq!(started(&mut plan, PLENTY), [""; 0]);
        assert!(!plan.is_done());
        plan.end(none);
        assert_eq!(started(&mut plan, PLENTY), ["alone"]);
    }

    #[test]
    fn weights_fill_the_cores() {
        let groups = [("a", Weight::Node), ("b", Weight::Node), ("c", Weight::Node)];
        assert_eq!(started(&mut plan(2, &groups), PLENTY).len(), 2);
        assert_eq!(started(&mut plan(8, &groups), PLENTY).len(), 3);
        // A core alone runs one group at a time, whatever its weight.
        assert_eq!(started(&mut plan(1, &groups), PLENTY).len(), 1);
        let light = [("a", Weight::InProcess), ("b", Weight::InProcess)];
        assert_eq!(started(&mut plan(1, &light), PLENTY).len(), 1);
    }

    #[test]
    fn one_light_group_at_a_time_overtakes_one_that_waits_for_room() {
        let (one, two) = (Weight::ApiServer, Weight::Node);
        let mut plan = plan(
            2,
            &[("a", two), ("b", two), ("c", two), ("d", two), ("long", one), ("short", one)],
        );
        assert_eq!(started(&mut plan, PLENTY), ["a", "b", "long"]);
        plan.end(two);
        assert_eq!(started(&mut plan, PLENTY), ["c"]);
        plan.end(one);
        assert_eq!(started(&mut plan, PLENTY), ["short"]);
        plan.end(two);
        assert_eq!(started(&mut plan, PLENTY), ["d"]);
    }

    #[test]
    fn light_groups_that_run_side_by_side_are_not_joined_while_a_node_waits() {
        let (one, two) = (Weight::ApiServer, Weight::Node);
        let groups = [("a", one), ("b", one), ("c", one), ("d", one), ("n", two), ("short", one)];
        let mut plan = plan(2, &groups);
        assert_eq!(started(&mut plan, PLENTY), ["a", "b", "c", "d"]);
        plan.end(one);
        assert_eq!(started(&mut plan, PLENTY), ["n"]);
    }

    #[test]
    fn without_memory_one_group_runs() {
        let groups = [("a", Weight::Node), ("b", Weight::Node)];
        assert_eq!(started(&mut plan(2, &groups), 1 << 30).len(), 1);
    }

    #[test]
    fn what_needs_kubernetes_waits_for_it() {
        let mut plan = plan(2, &[("a", Weight::Node), ("b", Weight::InProcess)]);
        let names: Vec<_> =
            std::iter::from_fn(|| plan.start(PLENTY, false)).map(|group| group.name).collect();
        assert_eq!(names, ["b"]);
    }
}
