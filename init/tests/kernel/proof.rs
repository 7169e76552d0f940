//! Rules that are listed but do not match.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::thread;

use crate::lab::{BACKENDS, Lab, Server, connect, read_line};

const ARGS: [&str; 2] = ["--upstream=10.96.0.1:443", "--upstream=[fd00:96::1]:443"];
const REMEDY: &str = "ctrlmesh.kusionstack.io/enable-iptables: \"false\"";

/// Socket-level load balancing changes the destination before our rules see it.
#[test]
fn i07_a_destination_that_is_rewritten_earlier_is_told() {
    for backend in BACKENDS {
        for (arg, family, vip, node) in
            [(ARGS[0], "ip", "10.96.0.1", "10.1.0.1"), (ARGS[1], "ip6", "fd00:96::1", "[fd01::1]")]
        {
            let lab = Lab::new();
            lab.pod.sh(&format!(
                "nft 'table {family} lb {{ chain out {{ type nat hook output priority -150; \
                 {family} daddr {vip} tcp dport 443 dnat to {node}:6443; }}; }}'"
            ));
            let ran = lab.init(&[arg, "--backend", backend]).exits(95);
            ran.says("was not intercepted although the rules are in place")
                .says("Cilium")
                .says(REMEDY);
            assert!(lab.saved(backend, family == "ip6").contains("CTRLMESH_OUT"));
        }
    }
}

#[test]
fn i07_each_family_is_proven() {
    let lab = Lab::new();
    lab.pod.sh("nft 'table ip6 lb { chain out { type nat hook output priority -150; \
         ip6 daddr fd00:96::1 tcp dport 443 dnat to [fd01::1]:6443; }; }'");
    lab.init(&ARGS).exits(95).says("[fd00:96::1]:443 was not intercepted");
}

#[test]
fn i07_a_stranger_who_answers_is_not_the_proof() {
    let lab = Lab::new();
    lab.pod.sh("nft 'table ip lb { chain out { type nat hook output priority -150; \
         ip daddr 10.96.0.1 tcp dport 443 dnat to 10.1.0.1:6443; }; }'");
    let _stranger = Server::start("ctrlmesh-proof", &lab.node, "[::]:6443");
    lab.init(&ARGS[..1]).exits(95).says("someone else answered");
}

/// Another mesh accepts the connection and opens its own, to an address that we intercept.
#[test]
fn i07_another_original_destination_is_told() {
    let lab = Lab::new();
    lab.pod.sh("nft 'table ip lb { chain out { type nat hook output priority -150; \
         ip daddr 10.96.0.1 tcp dport 443 dnat to 127.0.0.1:15001; }; }'");
    let listener = lab.pod.run(|| TcpListener::bind("127.0.0.1:15001").unwrap());
    thread::scope(|scope| {
        let forward = || {
            let (mut client, _) = listener.accept().unwrap();
            lab.pod.run(|| {
                if let Ok(mut upstream) = connect("10.96.0.2:443") {
                    let token = read_line(&mut upstream);
                    client.write_all(format!("{token}\n").as_bytes()).unwrap();
                }
            });
        };
        scope.spawn(forward);
        let ran = lab.init(&["--upstream=10.96.0.1:443", "--upstream=10.96.0.2:443"]).run();
        // Ends the forwarder if no connection arrived.
        drop(lab.pod.run(|| connect("127.0.0.1:15001")));
        assert_eq!(ran.code, Some(95), "{}", ran.log);
        ran.says("10.96.0.1:443 was not intercepted")
            .says("it arrived with the original destination 10.96.0.2:443");
    });
}

/// Programs that report success but do nothing, as on a node that uses the other backend.
#[test]
fn i07_iptables_that_lies_is_detected() {
    let lab = Lab::new();
    let honest = Lab::new();
    honest.init(&ARGS[..1]).ok();
    let listing = honest.sh("iptables-nft-save -t nat");
    let file = lab.directory().join("listing");
    fs::write(&file, listing).unwrap();
    let save = format!("exec /bin/cat {}", file.display());
    let path = lab.programs(
        &[],
        &[("iptables-nft-save", &save), ("iptables-nft-restore", "exec /bin/cat > /dev/null")],
    );
    lab.init(&ARGS[..1]).path(&path).exits(95).says(REMEDY);
}

#[test]
fn i07_a_listing_that_differs_is_told_by_place() {
    let lab = Lab::new();
    let edit =
        "/usr/sbin/iptables-nft-save \"$@\" | /usr/bin/sed 's/--uid-owner 1359/--uid-owner 0/'";
    let path = lab.programs(&["iptables-nft-restore"], &[("iptables-nft-save", edit)]);
    lab.init(&ARGS[..1])
        .path(&path)
        .exits(70)
        .says("the IPv4 rules read back differ: CTRLMESH_OUT 1: wanted `-d 10.96.0.1/32")
        .says("found `-d 10.96.0.1/32 -p tcp -m tcp --dport 443 -m owner --uid-owner 0");
}

#[test]
fn i07_an_address_without_a_route_is_no_proof_and_no_hole() {
    let lab = Lab::new();
    lab.pod.sh("ip -6 route del default");
    lab.init(&ARGS).ok().says("[fd00:96::1]:443 cannot be reached from this pod");
    lab.init(&ARGS[1..]).exits(69).says("[fd00:96::1]:443 cannot be reached from this pod");
}
