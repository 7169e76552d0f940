use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{facts, identity, pod, usable};
use crate::peers::facts::PodFacts;

fn with(pointer: &str, value: Value) -> Option<PodFacts> {
    let mut pod = pod("op-0", "blue");
    *pod.pointer_mut(pointer).unwrap() = value;
    facts(&pod)
}

fn addrs(all: &[&str]) -> Vec<SocketAddr> {
    all.iter().map(|addr| addr.parse().unwrap()).collect()
}

#[test]
fn i13_a_pod_is_read() {
    let pod = usable("op-0", "blue");
    assert_eq!(pod.identity, identity("op-0"));
    assert_eq!(pod.labels["shard"], "blue");
    assert_eq!(pod.addrs, addrs(&["10.1.0.1:9443", "[fd00::1]:9443"]));
    assert!(pod.is_usable());
}

#[test]
fn i13_a_pod_is_usable_if_it_is_ready_and_stays_so() {
    let changed = |pointer: &str, value: Value| with(pointer, value).unwrap().is_usable();
    assert!(changed("/status/phase", json!("Running")));
    for (pointer, value) in [
        ("/status/phase", json!("Succeeded")),
        ("/status/phase", json!("Failed")),
        ("/status/conditions/1/status", json!("False")),
        ("/status/conditions/1/status", json!("Unknown")),
        ("/status/conditions", json!([])),
        ("/status/podIPs", json!([{"ip": "?"}])),
        ("/status", json!({"phase": "Pending"})),
        (
            "/metadata",
            json!({
                "namespace": "ops", "name": "op-0", "uid": "u",
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            }),
        ),
    ] {
        assert!(!changed(pointer, value.clone()), "{pointer}: {value}");
    }
}

#[test]
fn i13_a_pod_whose_proxy_takes_no_reviews_is_no_peer() {
    let args = "/spec/initContainers/1/args";
    for args_of_no_peer in [
        json!(["proxy"]),
        json!(["proxy", "--webhook-port=0"]),
        json!(["proxy", "--webhook-port=x"]),
        json!(["serve", "--webhook-port=9443"]),
        json!([]),
        Value::Null,
    ] {
        assert_eq!(with(args, args_of_no_peer.clone()), None, "{args_of_no_peer}");
    }
    assert_eq!(with("/metadata/uid", json!("a/b")), None);
    let other_port = with(args, json!(["proxy", "--webhook-port=8443"])).unwrap();
    assert_eq!(other_port.addrs[0], addrs(&["10.1.0.1:8443"])[0]);
    let mut of_node = pod("op-0", "blue");
    of_node["spec"]["hostNetwork"] = json!(true);
    assert_eq!(facts(&of_node), None);
    let mut classic = pod("op-0", "blue");
    let proxy = classic["spec"]["initContainers"].as_array_mut().unwrap().pop().unwrap();
    classic["spec"]["containers"].as_array_mut().unwrap().push(proxy);
    assert!(facts(&classic).unwrap().is_usable());
}

#[test]
fn i13_a_pod_of_an_old_api_server_has_one_address() {
    let mut old = pod("op-0", "blue");
    old["status"].as_object_mut().unwrap().remove("podIPs");
    assert_eq!(facts(&old).unwrap().addrs, addrs(&["10.1.0.1:9443"]));
}
