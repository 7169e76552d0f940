//! Every rule has a witness: without it, or in another order, some connection is misrouted.

use ctrlmesh_init::exit::InitError;
use ctrlmesh_init::{Plan, Pod, RuleSet, Targets};

use crate::lab::{BACKENDS, Lab};
use crate::traffic::{Actors, Addresses, V4, V6, wrong};

fn text_for(address: &str) -> Result<String, InitError> {
    let plan = Plan::from_args([format!("--upstream={address}"), "--inbound=9443:5445".to_owned()])
        .unwrap();
    let upstream: ctrlmesh_init::Upstream = address.parse()?;
    let pod = Pod { api_server: Ok(upstream), families: Default::default() };
    let targets = Targets::resolve(&plan, &pod, |_, _| Ok(Vec::new()))?;
    Ok(RuleSet::render(&plan, &targets).to_string())
}

/// The rules (lines with `-A` or `-I`) with one removed, two swapped within their chain, or one
/// condition removed.
fn mutations(text: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let is_rule = |line: &str| line.starts_with("-A ") || line.starts_with("-I ");
    let chain = |line: &str| line.split(' ').nth(1).map(str::to_owned);
    let mut mutations = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| is_rule(line)) {
        let mut without = lines.clone();
        without.remove(at);
        mutations.push((format!("without {line}"), without.join("\n")));
        if let Some(next) = lines.get(at + 1)
            && is_rule(next)
            && chain(next) == chain(line)
        {
            let mut swapped = lines.clone();
            swapped.swap(at, at + 1);
            mutations.push((format!("swapped {line}"), swapped.join("\n")));
        }
        let conditions =
            [" -m tcp --dport 443", " -m owner --uid-owner 1359", " -m tcp --dport 9443"];
        let destination = line.split(" -p tcp").next().and_then(|head| head.split_once(" -d "));
        let destination = destination.map(|(_, address)| format!(" -d {address}"));
        // A wider exemption goes unnoticed if no other program has rules.
        let is_exemption = line.contains("-j ACCEPT");
        let removable = conditions.iter().map(ToString::to_string).chain(destination);
        for condition in removable.filter(|condition| line.contains(condition.as_str())) {
            if is_exemption && !condition.contains("owner") {
                continue;
            }
            let mut looser = lines.clone();
            let loose = line.replacen(&condition, "", 1);
            looser[at] = &loose;
            mutations.push((format!("without{condition} in {line}"), looser.join("\n")));
        }
    }
    mutations
}

fn restore(lab: &Lab, backend: &str, tool: &str, text: &str) {
    let file = lab.directory().join("rules");
    std::fs::write(&file, format!("{text}\n")).unwrap();
    lab.sh(&format!("{tool}-{backend}-restore --noflush < {}", file.display()));
}

fn every_mutation_is_noticed(family: Addresses, tool: &str) {
    let text = text_for(&crate::lab::at(family.vip, 443)).unwrap();
    let mutations = mutations(&text);
    assert_eq!(mutations.len(), 5 + 1 + 4, "{mutations:#?}");
    for backend in BACKENDS {
        let lab = Lab::new();
        let _actors = Actors::start(&lab);
        restore(&lab, backend, tool, &text);
        assert_eq!(wrong(&lab, family, true, true), Vec::<String>::new(), "{backend}");
        for (what, mutated) in &mutations {
            lab.init(&["--clean", "--backend", backend]).ok();
            restore(&lab, backend, tool, mutated);
            assert_ne!(wrong(&lab, family, true, true), Vec::<String>::new(), "{backend}: {what}");
        }
    }
}

#[test]
fn every_rule_has_a_witness_v4() {
    every_mutation_is_noticed(V4, "iptables");
}

#[test]
fn every_rule_has_a_witness_v6() {
    every_mutation_is_noticed(V6, "ip6tables");
}
