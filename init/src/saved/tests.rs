use std::collections::BTreeSet;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::family::Family;
use crate::plan::{BackendChoice, Plan, ProxyUid};
use crate::pod::Pod;
use crate::rules::RuleSet;
use crate::targets::Targets;

const EMPTY: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n";

fn rules_of(address: &str) -> RuleSet {
    let upstream = address.parse().unwrap();
    let inbound = Some("9443:5445".parse().unwrap());
    let port = 5443.try_into().unwrap();
    let plan =
        Plan::new(ProxyUid::DEFAULT, port, vec![upstream], inbound, BackendChoice::Auto).unwrap();
    let family = Family::of(address.parse::<SocketAddr>().unwrap().ip());
    let api_server = "10.0.0.1:443".parse();
    let pod = Pod { api_server, families: BTreeSet::from([family]) };
    RuleSet::render(&plan, &Targets::resolve(&plan, &pod, |_, _| Ok(Vec::new())).unwrap())
}

/// The listing of a kernel with exactly `rules`.
fn listing(rules: &FamilyRules) -> String {
    let mut text = String::from(EMPTY);
    for chain in &rules.chains {
        text.push_str(&format!(":{} - [0:0]\n", chain.chain.name()));
        text.push_str(&format!("-A {} {}\n", chain.chain.hook(), chain.jump()));
        for rule in &chain.body {
            text.push_str(&format!("-A {} {rule}\n", chain.chain.name()));
        }
    }
    text + "COMMIT\n"
}

fn differences(listing: &str, rules: &FamilyRules) -> Vec<String> {
    let saved = Saved::parse(listing.as_bytes()).unwrap();
    saved.differences(rules).iter().map(ToString::to_string).collect()
}

#[test]
fn i24_a_listing_of_the_rules_has_no_difference() {
    for address in ["10.96.0.1:443", "[fd00::1]:6443"] {
        let set = rules_of(address);
        for rules in set.families() {
            assert_eq!(differences(&listing(rules), rules), Vec::<String>::new());
        }
    }
}

#[test]
fn i24_every_edit_of_a_listing_is_a_difference() {
    let set = rules_of("10.96.0.1:443");
    let [rules, _] = set.families();
    let good = listing(rules);
    for (from, to) in [
        ("10.96.0.1/32", "10.96.0.0/31"),
        ("10.96.0.1/32", "10.96.0.2/32"),
        ("--dport 443", "--dport 444"),
        ("--dport 443", "--dport 443:444"),
        ("--uid-owner 1359", "--uid-owner 1360"),
        ("-m owner --uid-owner", "-m owner ! --uid-owner"),
        ("-d 10.96", "! -d 10.96"),
        ("-p tcp -m tcp --dport 9443", "-p udp -m udp --dport 9443"),
        ("-j ACCEPT", "-j RETURN"),
        ("-j ACCEPT", "-g ACCEPT"),
        ("--to-ports 5443", "--to-ports 5444"),
        ("--to-ports 5443", "--to-ports 5443-5444"),
        ("--to-ports 5443", "--to-ports 5443 --random"),
        ("-A OUTPUT", "-A OUTPUT -p tcp -j RETURN\n-A OUTPUT"),
        ("-A CTRLMESH_IN", "-A CTRLMESH_IN -j RETURN\n-A CTRLMESH_IN"),
        (":CTRLMESH_OUT", ":CTRLMESH_OLD - [0:0]\n:CTRLMESH_OUT"),
        (
            "COMMIT",
            "-A OUTPUT -p tcp -m comment --comment \"ctrlmesh: tcp that the pod opens\" -j \
             CTRLMESH_OUT\nCOMMIT",
        ),
        ("COMMIT", "-A CTRLMESH_OUT -j ACCEPT\nCOMMIT"),
        ("-A PREROUTING", "-A OUTPUT"),
    ] {
        let edited = good.replacen(from, to, 1);
        assert_ne!(edited, good, "{from} is not in the listing");
        assert_ne!(differences(&edited, rules), Vec::<String>::new(), "{from} -> {to}");
    }
}

#[test]
fn i24_foreign_rules_are_passed_over() {
    let set = rules_of("10.96.0.1:443");
    let [rules, _] = set.families();
    let foreign = "# Warning: something\n-A OUTPUT -m comment --comment \"a \\\"b\\\"\nc\" -j X\n\
                   -A PREROUTING -m addrtype --dst-type LOCAL \"open\n-A PREROUTING\" -j Y\n";
    let text = listing(rules).replace("COMMIT\n", &format!("{foreign}COMMIT\n"));
    let text = format!("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j CTRLMESH_OUT\nCOMMIT\n{text}");
    assert_eq!(differences(&text, rules), Vec::<String>::new());
}

#[test]
fn a_listing_that_cannot_be_trusted_is_refused() {
    let refused = |text: &str| Saved::parse(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(refused(EMPTY), "the listing ends before COMMIT");
    assert_eq!(
        refused("*nat\nnonsense\nCOMMIT\n"),
        "line 2 of the listing is not understood: `nonsense`"
    );
    assert_eq!(
        refused("*nat\n-A NOWHERE -j ACCEPT\nCOMMIT\n"),
        "line 2 of the listing is not understood: `-A NOWHERE -j ACCEPT`"
    );
    assert_eq!(refused("COMMIT\n"), "line 1 of the listing is not understood: `COMMIT`");
}

#[test]
fn a_wrong_jump_is_moved_and_a_stale_chain_goes_in_the_same_commit() {
    let set = rules_of("10.96.0.1:443");
    let [rules, _] = set.families();
    let jump = rules.chains[0].jump();
    let found = format!(
        "{EMPTY}:CTRLMESH_OUT - [0:0]\n:CTRLMESH_OLD - [0:0]\n-A OUTPUT -p tcp -j OTHER\n\
         -A OUTPUT {jump}\n-A OUTPUT -p tcp -j CTRLMESH_OLD\nCOMMIT\n"
    );
    let text = rules.restore_text(&Saved::parse(found.as_bytes()).unwrap());
    let lines: Vec<&str> = text.lines().collect();
    let at = |line: &str| lines.iter().position(|found| *found == line).expect(line);
    assert!(at(":CTRLMESH_OLD - [0:0]") < at("-X CTRLMESH_OLD"));
    assert!(at("-D OUTPUT -p tcp -j CTRLMESH_OLD") < at("-X CTRLMESH_OLD"));
    assert!(at(&format!("-D OUTPUT {jump}")) < at(&format!("-I OUTPUT 1 {jump}")));
    assert!(!text.contains("OTHER"));
}

#[test]
fn a_jump_in_place_is_left_alone() {
    let set = rules_of("10.96.0.1:443");
    let [rules, _] = set.families();
    let text = rules.restore_text(&Saved::parse(listing(rules).as_bytes()).unwrap());
    assert!(!text.contains("-I ") && !text.contains("-D "), "{text}");
}

proptest! {
    #[test]
    fn i24_any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Saved::parse(&bytes);
    }

    #[test]
    fn i24_any_table_is_read_or_refused(
        lines in prop::collection::vec("(-A|:|-D|#|\\*)? ?(OUTPUT|CTRLMESH_OUT)? ?[ -~\"\\\\é]{0,40}", 0..12),
    ) {
        let text = format!("{EMPTY}{}\nCOMMIT\n", lines.join("\n"));
        if let Ok(saved) = Saved::parse(text.as_bytes()) {
            let set = rules_of("10.96.0.1:443");
            for rules in set.families() {
                let _ = (saved.differences(rules), rules.restore_text(&saved), saved.own_text());
            }
        }
    }

    #[test]
    fn i24_quoting_round_trips(word in "[ -~é]{0,30}") {
        let quoted = word.replace('\\', "\\\\").replace('"', "\\\"").replace('\'', "\\'");
        prop_assert_eq!(words(&format!("--comment \"{quoted}\"")), Some(vec!["--comment".to_owned(), word]));
    }
}
