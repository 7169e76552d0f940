//! Other owners of rules in the same pod.

use std::sync::Arc;

use crate::lab::{APP_UID, BACKENDS, Lab, PROXY_UID, Server};
use crate::traffic::Actors;

/// A mesh that redirects all tcp except loopback and its own proxy's.
fn foreign(backend: &str, how: &str) -> String {
    let mut script = String::new();
    for tool in ["iptables", "ip6tables"] {
        let iptables = format!("{tool}-{backend} -w -t nat");
        script.push_str(&format!(
            "{iptables} -N FOREIGN
             {iptables} -A FOREIGN -m owner --uid-owner 1337 -j RETURN
             {iptables} -A FOREIGN -o lo -j RETURN
             {iptables} -A FOREIGN -p tcp -m comment --comment 'all \"tcp\"' -j REDIRECT --to-ports 15001
             {iptables} {how} -j FOREIGN\n"
        ));
    }
    script
}

fn assert_both_meshes_work(lab: &Lab, case: &str) {
    let _actors = Actors::start(lab);
    let _foreign = ["127.0.0.1:15001", "[::1]:15001"]
        .map(|address| Server::start("foreign", &Arc::clone(&lab.pod), address));
    for (uid, address, who) in [
        (APP_UID, "10.96.0.1:443", "proxy"),
        (APP_UID, "[fd00:96::1]:443", "proxy"),
        (PROXY_UID, "10.96.0.1:443", "api"),
        (PROXY_UID, "[fd00:96::1]:443", "api"),
        (APP_UID, "10.96.0.9:443", "foreign"),
        (APP_UID, "[fd00:96::9]:443", "foreign"),
        (PROXY_UID, "10.96.0.9:443", "foreign"),
        (1337, "10.96.0.9:443", "api"),
    ] {
        assert_eq!(lab.ask_as(uid, address), format!("{who} {address}"), "{case} as {uid}");
    }
}

const ARGS: [&str; 2] = ["--upstream=10.96.0.1:443", "--upstream=[fd00:96::1]:443"];

#[test]
fn i22_a_mesh_that_came_before() {
    for backend in BACKENDS {
        for how in ["-A OUTPUT", "-I OUTPUT 1"] {
            let lab = Lab::new();
            lab.sh(&foreign(backend, how));
            lab.init(&[ARGS[0], ARGS[1], "--backend", backend]).ok();
            assert_both_meshes_work(&lab, &format!("{backend} {how}"));
        }
    }
}

#[test]
fn i22_a_mesh_that_came_after() {
    for backend in BACKENDS {
        let lab = Lab::new();
        lab.init(&[ARGS[0], ARGS[1], "--backend", backend]).ok();
        lab.sh(&foreign(backend, "-A OUTPUT"));
        assert_both_meshes_work(&lab, backend);
    }
}

/// A mesh that inserts its jump in front of ours gets the API calls until init runs again.
#[test]
fn i22_a_mesh_that_pushed_in_front() {
    for backend in BACKENDS {
        let lab = Lab::new();
        let init = || lab.init(&[ARGS[0], ARGS[1], "--backend", backend]).ok();
        init();
        lab.sh(&foreign(backend, "-I OUTPUT 1"));
        {
            let _foreign = Server::start("foreign", &lab.pod, "127.0.0.1:15001");
            assert_eq!(lab.ask("10.96.0.1:443"), "foreign 10.96.0.1:443");
        }
        init();
        assert_both_meshes_work(&lab, backend);
    }
}

#[test]
fn i23_clean_leaves_what_was_there_before() {
    for backend in BACKENDS {
        let lab = Lab::new();
        lab.sh(&foreign(backend, "-I OUTPUT 1"));
        let before = [false, true].map(|v6| lab.saved(backend, v6));
        let init = [ARGS[0], ARGS[1], "--inbound=9443:5445", "--backend", backend];
        lab.init(&init).ok();
        assert_ne!([false, true].map(|v6| lab.saved(backend, v6)), before);
        // Clean also removes another version's chain, and needs no `--backend`.
        lab.sh(&format!(
            "iptables-{backend} -w -t nat -N CTRLMESH_OLD
             iptables-{backend} -w -t nat -A CTRLMESH_OLD -j RETURN
             iptables-{backend} -w -t nat -A OUTPUT -m comment --comment 'an \"old\" one' -j CTRLMESH_OLD"
        ));
        lab.init(&["--clean"]).ok().says("IPv4 rules removed").says("IPv6 rules removed");
        assert_eq!([false, true].map(|v6| lab.saved(backend, v6)), before, "{backend}");
        lab.init(&["--clean"]).ok();
        assert_eq!([false, true].map(|v6| lab.saved(backend, v6)), before, "{backend}");
    }
}
