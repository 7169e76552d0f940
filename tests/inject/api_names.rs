//! The API server's DNS names in env mode: they lead to the proxy, unless the pod has its own mind.

use ctrlmesh::inject::{Enforces, Injected, Sidecar, inject};
use serde_json::{Value, json};

use super::{done, golden, pod, pod_with, settings};

const NAMES: [&str; 4] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];
const BOTH: [Sidecar; 2] = [Sidecar::Native, Sidecar::Classic];

fn env_mode(mut pod: Value) -> Value {
    pod["metadata"]["annotations"]["ctrlmesh.kusionstack.io/enable-iptables"] = json!("false");
    pod
}

fn sysctl() -> Value {
    json!({ "name": "net.ipv4.ip_unprivileged_port_start", "value": "0" })
}

fn alias(ip: &str, names: &[&str]) -> Value {
    json!({ "ip": ip, "hostnames": names })
}

fn listens_for_names(injected: &Value) -> bool {
    let lists = ["initContainers", "containers"].map(|list| injected["spec"][list].as_array());
    let mut all = lists.into_iter().flatten().flatten();
    let proxy = all.find(|container| container["name"] == "ctrlmesh-proxy").unwrap();
    proxy["args"].as_array().unwrap().contains(&json!("--listen-names=127.0.0.1:443"))
}

#[test]
fn i20_the_names_lead_to_the_proxy_and_nothing_of_the_pod_is_touched() {
    for sidecar in BOTH {
        let spec = &done(env_mode(pod()), sidecar)["spec"];
        assert_eq!(spec["hostAliases"], json!([alias("127.0.0.1", &NAMES)]));
        assert_eq!(spec["securityContext"], json!({ "sysctls": [sysctl()] }));

        let mut own = env_mode(pod());
        let dns = alias("10.0.0.1", &["kubernetes.example.com", "kubernetes.default.example.com"]);
        own["spec"]["hostAliases"] = json!([dns, alias("127.0.0.1", &["a", "b"])]);
        let other = json!({ "name": "net.ipv4.tcp_syncookies", "value": "1" });
        own["spec"]["securityContext"] = json!({ "fsGroup": 7, "sysctls": [other] });
        let injected = done(own, sidecar);
        let spec = &injected["spec"];
        let merged = [&["a", "b"], &NAMES[..]].concat();
        assert_eq!(spec["hostAliases"], json!([dns, alias("127.0.0.1", &merged)]));
        assert_eq!(spec["securityContext"], json!({ "fsGroup": 7, "sysctls": [other, sysctl()] }));
        assert!(listens_for_names(&injected));

        let natted = done(pod(), sidecar);
        assert_eq!(natted["spec"]["hostAliases"], json!(null));
        assert_eq!(natted["spec"]["securityContext"], json!(null));
        assert!(!listens_for_names(&natted));
    }
}

#[test]
fn i20_the_last_name_is_of_the_clusters_domain() {
    let corp = settings(Sidecar::Native).in_domain("corp.example".parse().unwrap());
    let mut first = env_mode(pod());
    inject(&mut first, &corp, None).unwrap();
    let names = &first["spec"]["hostAliases"][0]["hostnames"];
    assert_eq!(names[3], "kubernetes.default.svc.corp.example");
    // Another domain takes the place of the first.
    assert_eq!(done(first, Sidecar::Native), done(env_mode(pod()), Sidecar::Native));
}

#[test]
fn i20_a_pod_that_uses_the_means_itself_gets_the_variables_alone_and_a_note() {
    let sysctls = |name: &str, value: &str| {
        pod_with("/spec/securityContext", json!({ "sysctls": [{ "name": name, "value": value }] }))
    };
    let aliases =
        |ip: &str, names: &[&str]| pod_with("/spec/hostAliases", json!([alias(ip, names)]));
    let port = json!([{ "containerPort": 80 }, { "containerPort": 443 }]);
    let mut alike = aliases("127.0.0.1", &NAMES);
    alike["spec"]["securityContext"] = json!({ "sysctls": [sysctl()] });
    let cases = [
        pod_with("/spec/containers/0/ports", port.clone()),
        pod_with("/spec/initContainers/0/ports", port),
        sysctls("net.ipv4.ip_unprivileged_port_start", "0"),
        sysctls("net/ipv4/ip_unprivileged_port_start", "1024"),
        aliases("10.96.0.1", &["api", "kubernetes.default"]),
        aliases("127.0.0.1", &["kubernetes.default.svc.corp.example"]),
        alike,
    ];
    let mut told = String::new();
    let early = (pod_with("/spec/initContainers/0", json!({ "name": "early" })), &BOTH[1..]);
    for (pod, sidecars) in cases.into_iter().map(|pod| (pod, &BOTH[..])).chain([early]) {
        for &sidecar in sidecars {
            let mut injected = env_mode(pod.clone());
            let Ok(Injected::Done { notes, .. }) = inject(&mut injected, &settings(sidecar), None)
            else {
                panic!("{pod}");
            };
            assert!(!listens_for_names(&injected));
            for field in ["hostAliases", "securityContext"] {
                assert_eq!(injected["spec"][field], pod["spec"][field]);
            }
            assert!(injected.to_string().contains("KUBERNETES_SERVICE_HOST"));
            assert_eq!(done(injected.clone(), sidecar), injected);
            told = format!("{}{}\n", told.replace(&format!("{}\n", notes[0]), ""), notes[0]);
            assert_eq!(notes.len(), 1, "{notes:?}");
            // Redirect rules need none of it.
            let did = inject(&mut pod.clone(), &settings(sidecar), None).unwrap();
            assert!(matches!(did, Injected::Done { notes, .. } if notes.is_empty()));
        }
    }
    golden("api-names.txt", &told);
}

#[test]
fn i20_what_only_looks_like_the_means_is_no_obstacle() {
    let udp = json!([{ "containerPort": 443, "protocol": "UDP" }, { "containerPort": 8443 }]);
    for pod in [
        pod_with("/spec/containers/0/ports", udp),
        pod_with("/spec/hostAliases", json!([alias("127.0.0.1", &[]), { "ip": "127.0.0.1" }])),
        pod_with("/spec/hostAliases", json!([alias("10.0.0.1", &["kubernetes.default.svc2"])])),
        pod_with("/spec/securityContext", json!({ "sysctls": null })),
    ] {
        let injected = done(env_mode(pod), Sidecar::Native);
        assert!(listens_for_names(&injected), "{injected}");
        assert_eq!(done(injected.clone(), Sidecar::Native), injected);
    }
}

/// Another webhook between two calls: what it adds is the pod's own.
#[test]
fn i20_means_that_another_webhook_takes_meanwhile_are_given_back() {
    let once = done(env_mode(pod()), Sidecar::Native);
    let server = json!({ "name": "mesh", "image": "mesh", "ports": [{ "containerPort": 443 }] });
    let with_server = |mut pod: Value| {
        pod["spec"]["containers"].as_array_mut().unwrap().push(server.clone());
        pod
    };
    let wanted = done(with_server(env_mode(pod())), Sidecar::Native);
    assert_eq!(wanted["spec"]["hostAliases"], json!(null));
    assert_eq!(done(with_server(once), Sidecar::Native), wanted);
}

/// A namespace whose level goes gets redirect rules again.
#[test]
fn i20_nothing_is_left_when_redirect_rules_take_over() {
    let mut pod = pod_with("/spec/hostAliases", json!([alias("127.0.0.1", &["a"])]));
    pod["spec"]["securityContext"] = json!({ "fsGroup": 7 });
    pod["spec"]["volumes"] = json!([{ "name": "kube-api-access-x", "projected": {} }]);
    let at = |level| settings(Sidecar::Native).at_admission(level);
    let mut natted = pod.clone();
    inject(&mut natted, &at(Enforces::Privileged), None).unwrap();
    inject(&mut pod, &at(Enforces::Baseline), None).unwrap();
    assert!(listens_for_names(&pod));
    inject(&mut pod, &at(Enforces::Privileged), None).unwrap();
    assert_eq!(pod, natted);
}

#[test]
fn i20_the_note_on_the_level_names_the_ways_that_lead_to_the_proxy() {
    let told = |mut pod: Value| {
        pod["spec"]["volumes"] = json!([{ "name": "kube-api-access-x", "projected": {} }]);
        match inject(&mut pod, &settings(Sidecar::Native).at_admission(Enforces::Baseline), None) {
            Ok(Injected::Done { notes, .. }) => notes,
            other => panic!("{other:?}"),
        }
    };
    assert!(told(pod())[0].ends_with("than its variables or its DNS names"));
    let port = json!([{ "containerPort": 443 }]);
    let both = told(pod_with("/spec/containers/0/ports", port));
    assert!(both[0].ends_with("than its variables"), "{both:?}");
    assert!(both[1].contains("containerPort 443"), "{both:?}");
}
