//! A family is needed only if it has something to intercept.

use std::fs;

use crate::lab::{BACKENDS, Lab};
use crate::traffic::{Actors, V4, V6, wrong};

const V4_ARG: &str = "--upstream=10.96.0.1:443";
const V6_ARG: &str = "--upstream=[fd00:96::1]:443";

#[test]
fn i08_each_family_alone_and_both() {
    for backend in BACKENDS {
        for (args, v4, v6) in [
            (&[V4_ARG][..], true, false),
            (&[V6_ARG], false, true),
            (&[V4_ARG, V6_ARG], true, true),
        ] {
            let lab = Lab::new();
            lab.init(&[args, &["--backend", backend]].concat()).ok();
            let _actors = Actors::start(&lab);
            assert_eq!(wrong(&lab, V4, v4, false), Vec::<String>::new(), "{backend} {args:?}");
            assert_eq!(wrong(&lab, V6, v6, false), Vec::<String>::new(), "{backend} {args:?}");
        }
    }
}

#[test]
fn i08_the_tools_of_a_family_that_nothing_needs_may_be_absent() {
    for backend in BACKENDS {
        for (tool, arg, absent) in [("iptables", V4_ARG, V6_ARG), ("ip6tables", V6_ARG, V4_ARG)] {
            let lab = Lab::new();
            let links = ["save", "restore"].map(|verb| format!("{tool}-{backend}-{verb}"));
            let path = lab.programs(&[&links[0], &links[1]], &[]);
            lab.init(&[arg, "--backend", backend]).path(&path).ok();
            lab.init(&[absent, "--backend", backend]).path(&path).exits(69).says("is not in PATH");
        }
    }
}

#[test]
fn i08_ipv6_disabled_in_the_pod() {
    for backend in BACKENDS {
        let lab = Lab::new();
        lab.pod.run(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap());
        let inbound = "--inbound=9443:5445";
        lab.init(&[V4_ARG, inbound, "--backend", backend]).ok();
        assert!(!lab.saved(backend, true).contains("CTRLMESH"), "the pod has no IPv6 address");
        lab.init(&[V6_ARG, "--backend", backend])
            .exits(69)
            .says("[fd00:96::1]:443 cannot be reached from this pod");
    }
}

#[test]
fn i08_a_family_without_loopback_is_told() {
    let lab = Lab::new();
    lab.pod.sh("ip -6 addr del ::1/128 dev lo");
    lab.init(&[V6_ARG])
        .exits(69)
        .says("[::1]:5443 cannot be bound, so the proxy could not listen there");
}

#[test]
fn i08_the_webhook_port_follows_the_addresses_of_the_pod() {
    let inbound = "--inbound=9443:5445";
    let lab = Lab::new();
    let _actors_of_pod = lab.init(&[V4_ARG, inbound]).ok();
    let _actors = Actors::start(&lab);
    assert_eq!(wrong(&lab, V4, true, true), Vec::<String>::new());
    assert_eq!(wrong(&lab, V6, false, true), Vec::<String>::new());
    lab.init(&[V4_ARG, inbound]).env("POD_IPS", "10.1.0.2").ok();
    assert_eq!(wrong(&lab, V6, false, false), Vec::<String>::new());
    lab.init(&[V4_ARG, inbound]).env("POD_IPS", "pod").exits(64).says("status.podIPs");
}

#[test]
fn i08_the_api_server_of_the_environment_is_intercepted() {
    for (host, address) in [
        ("10.96.0.1", "10.96.0.1:443"),
        ("fd00:96::1", "[fd00:96::1]:443"),
        ("[fd00:96::1]", "[fd00:96::1]:443"),
    ] {
        let lab = Lab::new();
        let init = || lab.init(&[]).env("KUBERNETES_SERVICE_HOST", host);
        init().exits(64).says("KUBERNETES_SERVICE_PORT is not set");
        init()
            .env("KUBERNETES_SERVICE_PORT", "443")
            .ok()
            .says(&format!("intercepted by proof: {address}"));
    }
}
