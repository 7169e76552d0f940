//! Which tests run in one process, and how much of the machine they need.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::executables::{E2E, Executable};

/// The need of a group, in units of one API server with its clients, on a machine with two cores.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Weight {
    /// Tests without a cluster.
    InProcess,
    ApiServer,
    Node,
    /// Tests that measure: nothing else runs.
    Alone,
}

/// Which tests run at all.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Lane {
    All,
    /// Those of all executables but the end-to-end one.
    InProcess,
}

/// Tests of one process.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// For people.
    pub(crate) name: String,
    pub(crate) executable: Executable,
    pub(crate) tests: Vec<String>,
    pub(crate) weight: Weight,
    /// How many of its tests run at the same time.
    pub(crate) threads: usize,
    pub(crate) needs_kubernetes: bool,
}

/// How the end-to-end tests whose names start with a prefix run.
struct Rule {
    prefix: &'static str,
    way: Way,
}

enum Way {
    /// Each in a process of its own.
    Each(Weight),
    /// All with the same name here in one process, so many at a time: they share a cluster.
    Together(&'static str, Weight, usize),
    /// Only in `scripts/soak`: they assert a time, or take long.
    Soak,
}

use Way::{Each, Soak, Together};
use Weight::{Alone, ApiServer, InProcess, Node};

/// The first rule whose prefix a test's name has counts.
const RULES: &[Rule] = &[
    rule("admission::", Each(ApiServer)),
    rule("bed::node_", Each(Node)),
    rule("bed::two_nodes_", Each(Node)),
    rule("bed::images_", Each(Node)),
    rule("bed::killed_owner_of_a_node_", Each(Node)),
    rule("bed::testbed_help_", Each(InProcess)),
    rule("bed::", Together("bed", ApiServer, 2)),
    rule("chart::", Together("chart", ApiServer, 2)),
    rule("clients::", Together("clients of others", ApiServer, 2)),
    rule("direct::figures::", Soak),
    rule("direct::changes::expiring::affected_", Soak),
    rule("direct::changes::handing::", Soak),
    rule("direct::absence::", Each(ApiServer)),
    rule("direct::explain::", Each(ApiServer)),
    rule("direct::restart::", Each(ApiServer)),
    rule("direct::stores::boundaries::", Each(ApiServer)),
    rule("direct::stores::", Together("stores", ApiServer, 2)),
    rule("direct::clients::", Together("clients", ApiServer, 2)),
    rule("direct::locks::", Together("clients", ApiServer, 2)),
    rule("direct::", Together("requests", ApiServer, 2)),
    rule("doctor::", Each(ApiServer)),
    rule("handover::times::", Soak),
    rule("handover::rolls::", Together("rings", ApiServer, 3)),
    rule("handover::ends::i14_proxies_", Together("rings", ApiServer, 3)),
    rule("handover::", Each(ApiServer)),
    rule("injected::", Together("injected", ApiServer, 2)),
    rule("install::", Each(Node)),
    rule("manager::figures::", Soak),
    // Reviews must be answered in time, whatever clients do.
    rule("manager::held::", Each(Alone)),
    rule("manager::kridge::bad_", Together("manager", ApiServer, 3)),
    rule("manager::leases::", Together("manager", ApiServer, 3)),
    rule("manager::leaves::bad_", Together("manager", ApiServer, 3)),
    rule("manager::leaves::i12_keys_", Together("manager", ApiServer, 3)),
    rule("manager::objects::i12_a_namespace_", Together("manager", ApiServer, 3)),
    rule("manager::objects::i12_rights_", Together("manager", ApiServer, 3)),
    rule("manager::objects::i12_what_", Together("manager", ApiServer, 3)),
    rule("manager::refused::", Together("manager", ApiServer, 3)),
    rule("manager::roots::bad_i15_children_", Together("manager", ApiServer, 3)),
    rule("manager::roots::bad_i15_the_schema_", Together("manager", ApiServer, 3)),
    rule("manager::roots::i15_a_root_draws_", Together("manager", ApiServer, 3)),
    rule("manager::roots::i15_a_root_that_is_disabled_", Together("manager", ApiServer, 3)),
    rule("manager::stamps::bad_i15_an_object_", Together("manager", ApiServer, 3)),
    rule("manager::waiting::i13_", Together("manager", ApiServer, 3)),
    rule("manager::", Each(ApiServer)),
    rule("node::kubelet::", Together("toolbox", Node, 3)),
    rule("node::pods::", Together("toolbox", Node, 3)),
    // They take turns on one node.
    rule("node::families::an_operator_", Together("operators", Node, 1)),
    rule("node::families::t65_", Together("operators", Node, 1)),
    rule("node::history::", Together("operators", Node, 1)),
    rule("node::shards::labels::", Together("operators", Node, 1)),
    rule("node::shards::two_", Together("operators", Node, 1)),
    rule("node::sidecars::", Together("operators", Node, 1)),
    rule("node::", Each(Node)),
    rule("oracle::mutants::", Together("mutants", InProcess, 2)),
    rule("oracle::the_fixed_", Together("mutants", InProcess, 2)),
    rule("oracle::", Each(ApiServer)),
    // What charts of others need takes minutes to build.
    rule("operators::", Soak),
    rule("runner::", Together("runner", InProcess, 2)),
    rule("webhooks::i13_each_review_", Each(Node)),
    rule("webhooks::", Together("mutants", InProcess, 2)),
];

const fn rule(prefix: &'static str, way: Way) -> Rule {
    Rule { prefix, way }
}

/// The groups of a lane. `only` keeps the end-to-end tests whose names contain one of these.
pub(crate) fn form(
    executables: &[Executable],
    tests: &BTreeMap<String, Vec<String>>,
    lane: Lane,
    only: &[String],
) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for executable in executables {
        let names = &tests[&executable.name];
        if executable.name == E2E {
            let formed = end_to_end(executable, names)?;
            groups.extend(formed.into_iter().filter(|_| lane == Lane::All));
        } else if only.is_empty() && !names.is_empty() {
            groups.push(Group {
                name: executable.name.clone(),
                executable: executable.clone(),
                tests: names.clone(),
                weight: InProcess,
                threads: 2,
                needs_kubernetes: false,
            });
        }
    }
    if !only.is_empty() {
        for group in &mut groups {
            group.tests.retain(|name| only.iter().any(|part| name.contains(part)));
        }
        groups.retain(|group| !group.tests.is_empty());
    }
    Ok(groups)
}

fn end_to_end(executable: &Executable, names: &[String]) -> Result<Vec<Group>> {
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    let mut used = vec![false; RULES.len()];
    for name in names {
        let at = RULES.iter().position(|rule| name.starts_with(rule.prefix));
        let Some(at) = at else {
            anyhow::bail!("{name} has no rule in groups.rs: say which cluster it uses");
        };
        used[at] = true;
        let (group, weight, threads) = match RULES[at].way {
            Each(weight) => (name.as_str(), weight, 1),
            Together(group, weight, threads) => (group, weight, threads),
            Soak => continue,
        };
        let group = groups.entry(group).or_insert_with(|| Group {
            name: group.to_owned(),
            executable: executable.clone(),
            tests: Vec::new(),
            weight,
            threads,
            needs_kubernetes: weight != InProcess,
        });
        group.tests.push(name.clone());
    }
    let idle: Vec<_> = RULES.iter().zip(used).filter(|(_, used)| !used).collect();
    let idle: Vec<_> = idle.into_iter().map(|(rule, _)| rule.prefix).collect();
    ensure!(idle.is_empty(), "rules of groups.rs that no test has: {idle:?}");
    Ok(groups.into_values().collect())
}

/// Whether a test runs only in `scripts/soak`.
pub(crate) fn is_soak(name: &str) -> bool {
    let rule = RULES.iter().find(|rule| name.starts_with(rule.prefix));
    rule.is_some_and(|rule| matches!(rule.way, Soak))
}

impl Group {
    /// The name of a test with that of its executable.
    pub(crate) fn key(&self, test: &str) -> String {
        format!("{} {test}", self.executable.name)
    }

    /// The row of the table in which its time counts.
    pub(crate) fn suite(&self) -> String {
        let first = self.tests.first().and_then(|test| test.split("::").next());
        match first {
            Some(module) if self.executable.name == E2E => format!("{E2E} {module}"),
            _ => self.executable.name.clone(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A group of one test with its name.
    pub(crate) fn group(name: &str, weight: Weight) -> Group {
        Group {
            name: name.to_owned(),
            executable: executable(E2E),
            tests: vec![name.to_owned()],
            weight,
            threads: 1,
            needs_kubernetes: weight != InProcess,
        }
    }

    fn executable(name: &str) -> Executable {
        Executable { name: name.to_owned(), path: name.into(), directory: ".".into() }
    }

    /// A test of each rule, and one more in the shared cluster of `direct::`.
    fn names() -> Vec<String> {
        let names = RULES.iter().map(|rule| format!("{}x", rule.prefix));
        names.chain(["direct::requests::y".to_owned()]).collect()
    }

    fn formed(names: Vec<String>, lane: Lane, only: &[&str]) -> Result<Vec<Group>> {
        let executables = [executable(E2E), executable("proxy")];
        let tests = [(E2E.to_owned(), names), ("proxy".to_owned(), vec!["p".to_owned()])].into();
        let only: Vec<_> = only.iter().map(|&part| part.to_owned()).collect();
        form(&executables, &tests, lane, &only)
    }

    #[test]
    fn tests_that_share_a_cluster_are_one_group_and_soak_runs_elsewhere() {
        let groups = formed(names(), Lane::All, &[]).unwrap();
        let of = |test: &str| groups.iter().find(|group| group.tests.iter().any(|t| t == test));
        assert_eq!(of("direct::x").unwrap().tests, ["direct::x", "direct::requests::y"]);
        assert_eq!(of("manager::x").unwrap().tests, ["manager::x"]);
        assert_eq!(of("install::x").unwrap().weight, Node);
        assert!(of("handover::times::x").is_none() && is_soak("handover::times::x"));
        assert_eq!(of("p").unwrap().weight, InProcess);
    }

    #[test]
    fn a_test_without_a_rule_and_a_rule_without_a_test_are_refused() {
        let unruled = [names(), vec!["new_suite::x".to_owned()]].concat();
        let why = formed(unruled, Lane::All, &[]).unwrap_err().to_string();
        assert!(why.starts_with("new_suite::x has no rule"), "{why}");
        let why = formed(names().split_off(1), Lane::All, &[]).unwrap_err().to_string();
        assert!(why.ends_with(r#"["admission::"]"#), "{why}");
    }

    #[test]
    fn names_and_the_lane_choose_groups() {
        let groups = formed(names(), Lane::InProcess, &[]).unwrap();
        assert_eq!(groups.iter().map(|group| &*group.name).collect::<Vec<_>>(), ["proxy"]);
        let groups = formed(names(), Lane::All, &["requests::y"]).unwrap();
        assert!(groups.len() == 1 && groups[0].tests == ["direct::requests::y"]);
        assert!(formed(names(), Lane::All, &["no such test"]).unwrap().is_empty());
    }
}
