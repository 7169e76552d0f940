//! The kernel's listing of any plan equals that plan.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ctrlmesh_init::backend::Backend;
use ctrlmesh_init::{
    BackendChoice, Family, Inbound, Plan, Pod, ProxyUid, RuleSet, Targets, Upstream, apply,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::lab::Lab;

fn plans() -> impl Strategy<Value = (Plan, BTreeSet<Family>)> {
    let upstream = (any::<IpAddr>(), 1..=u16::MAX).prop_filter_map("an upstream", |(ip, port)| {
        Upstream::new(&ip.to_string(), &port.to_string()).ok()
    });
    let inbound = prop::option::of((1..=u16::MAX, 1..=u16::MAX));
    let upstreams = prop::collection::vec(upstream, 1..9);
    let families = prop::sample::subsequence(&Family::ALL[..], 0..=2);
    (1..u32::MAX, 1..=u16::MAX, upstreams, inbound, families).prop_filter_map(
        "a plan",
        |(uid, port, upstreams, inbound, families)| {
            let inbound = match inbound {
                None => None,
                Some((a, b)) => Some(Inbound::new(a.try_into().ok()?, b.try_into().ok()?).ok()?),
            };
            let (uid, port) = (ProxyUid::new(uid).ok()?, port.try_into().ok()?);
            let plan = Plan::new(uid, port, upstreams, inbound, BackendChoice::Auto).ok()?;
            Some((plan, families.into_iter().collect()))
        },
    )
}

/// One namespace for all plans, so that each plan also replaces another one.
fn every_plan_comes_back(backend: Backend) {
    let lab = Lab::new();
    lab.pod.run(|| {
        let mut runner =
            TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(24) });
        let outcome = runner.run(&plans(), |(plan, families)| {
            let pod = Pod { api_server: "10.0.0.1:1".parse(), families };
            let targets = Targets::resolve(&plan, &pod, |_, _| Ok(Vec::new())).unwrap();
            let rules = RuleSet::render(&plan, &targets);
            apply::commit(backend, &rules).unwrap();
            apply::read_back(backend, &rules).unwrap();
            Ok(())
        });
        outcome.unwrap();
    });
}

#[test]
fn i24_every_plan_comes_back_from_nft() {
    every_plan_comes_back(Backend::Nft);
}

#[test]
fn i24_every_plan_comes_back_from_legacy() {
    every_plan_comes_back(Backend::Legacy);
}
