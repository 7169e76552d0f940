//! The pod's addresses and routes, checked before a rule is set.

use crate::lab::{Lab, POD4, POD6, TIMEOUT};

const V4_ARG: &str = "--upstream=10.96.0.1:443";
const V6_ARG: &str = "--upstream=[fd00:96::1]:443";
const INBOUND: &str = "--inbound=9443:5445";

/// Whether each family has rules of ours.
fn rules(lab: &Lab) -> [bool; 2] {
    [false, true].map(|v6| lab.saved("nft", v6).contains("CTRLMESH"))
}

/// Deletes the pod's IPv6 address and adds it again with duplicate address detection.
fn doubt_address(lab: &Lab, probes: u32) {
    lab.pod.sh(&format!(
        "ip -6 addr del {POD6}/64 dev eth0
         echo {probes} > /proc/sys/net/ipv6/conf/eth0/dad_transmits
         ip -6 addr add {POD6}/64 dev eth0
         ip -6 route replace default via fd01::1 dev eth0 onlink"
    ));
}

#[test]
fn i08_an_address_that_is_tentative_is_waited_for() {
    let lab = Lab::new();
    // Two probes take two seconds at least.
    doubt_address(&lab, 2);
    assert!(lab.pod.sh("ip -6 addr show dev eth0 tentative").contains(POD6));
    lab.init(&[V6_ARG]).ok().says("intercepted by proof: [fd00:96::1]:443");
    assert_eq!(lab.pod.sh("ip -6 addr show dev eth0 tentative"), "");
}

#[test]
fn i08_an_address_that_stays_tentative_is_named_and_its_webhook_port_covered() {
    let lab = Lab::new();
    doubt_address(&lab, 100);
    lab.init(&[V4_ARG, INBOUND])
        .ok()
        .says(&format!("the pod's address {POD6} is still tentative after 5 s"));
    assert_eq!(rules(&lab), [true, true], "the address may be usable later");
}

#[test]
fn i08_an_address_that_another_machine_has_is_not_the_pods() {
    let lab = Lab::new();
    lab.node.sh(&format!("ip -6 addr add {POD6}/64 dev eth0 nodad"));
    doubt_address(&lab, 1);
    let wait = format!("until ip -6 addr show dev eth0 dadfailed | grep -q {POD6}; do :; done");
    lab.pod.sh(&format!("timeout {} bash -c '{wait}'", TIMEOUT.as_secs()));
    lab.init(&[V4_ARG, INBOUND]).ok();
    assert_eq!(rules(&lab), [true, false]);
}

#[test]
fn i07_no_route_in_a_family_is_named_before_a_rule_is_set() {
    for (arg, ip, address, family) in
        [(V4_ARG, "ip", "10.96.0.1", "IPv4"), (V6_ARG, "ip -6", "fd00:96::1", "IPv6")]
    {
        for route in ["", "unreachable", "prohibit", "blackhole"] {
            let lab = Lab::new();
            lab.pod.sh(&format!("{ip} route del default"));
            if !route.is_empty() {
                lab.pod.sh(&format!("{ip} route add {route} {address}"));
            }
            let ran = lab.init(&[arg]).exits(69);
            ran.says(address).says("cannot be reached from this pod");
            ran.says(&format!("the pod needs an {family} route to it"));
            assert_eq!(rules(&lab), [false, false], "{arg} {route}");

            // Logged as well if the other family has a route; a later route finds rules in place.
            lab.init(&[V4_ARG, V6_ARG])
                .ok()
                .says(&format!("the pod needs an {family} route to it"));
            assert_eq!(rules(&lab), [true, true], "{arg} {route}");
        }
    }
}

#[test]
fn i07_an_upstream_on_an_address_of_the_pods_own_is_refused() {
    for own in [format!("{POD4}:443"), format!("[{POD6}]:443")] {
        let lab = Lab::new();
        let upstream = format!("--upstream={own}");
        for args in [&[upstream.as_str()][..], &[V4_ARG, upstream.as_str()]] {
            let ran = lab.init(args).exits(64);
            ran.says(&format!("upstream {own} is on an address of this pod itself"));
            assert_eq!(rules(&lab), [false, false], "{args:?}");
        }
    }
}
