//! The reviews of webhooks, whose pods are those of the namespace.

use serde_json::{Value, json};

use super::scene::{config, found, hook, metrics_of, object, one, pod, readyz, service};
use crate::doctor::{
    AdmissionHook, Answer, Check, Facts,
    Severity::{Error, Ok as Good, Warning},
};

/// A pod of a shard at an address.
fn of_shard(name: &str, shard: &str, ip: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["labels"]["shard"] = json!(shard);
    pod["status"]["podIPs"] = json!([{ "ip": ip }]);
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "hooks", "containerPort": 9443 }]);
    pod
}

/// A pod of each of two shards, and a policy of this spec.
fn with(spec: Value) -> impl FnOnce(&mut Facts) {
    move |facts| {
        facts.pods(vec![of_shard("a-0", "blue", "10.1.0.1"), of_shard("b-0", "green", "10.1.0.2")]);
        let facts = facts.namespace();
        facts.configs = Ok(vec![object(config("blue", "blue")), object(config("green", "green"))]);
        let policy = json!({ "metadata": { "name": "p" }, "spec": spec });
        facts.network_policies = Ok(vec![object(policy)]);
    }
}

/// The ends that a policy of this spec keeps out: `server` for the API server, `in` and `out` for pods.
fn closed(spec: Value) -> Vec<&'static str> {
    let found = found(Check::Network, with(spec.clone()));
    if found.iter().all(|(severity, _)| *severity == Good) {
        let says = "NetworkPolicies of operators: let the reviews of webhooks pass";
        assert_eq!(found, [(Good, says.to_owned())], "{spec}");
        return Vec::new();
    }
    let told = |(severity, says): (_, String)| {
        assert_eq!(severity, Warning);
        assert!(says.contains("NetworkPolicy p: "), "{says}");
        let words = [
            ("the API server does not reach the webhook port of pods a-0, b-0", "server"),
            ("other pods do not reach the webhook port of pods a-0, b-0", "in"),
            ("other pods do not reach the webhook port of pod a-0,", "in to a"),
            ("pods a-0, b-0 cannot send reviews of other shards on", "out"),
        ];
        let word = words.into_iter().find_map(|(part, word)| says.contains(part).then_some(word));
        word.unwrap_or_else(|| panic!("{says}"))
    };
    found.into_iter().map(told).collect()
}

#[test]
fn i13_a_network_policy_that_keeps_reviews_out_is_named() {
    let ingress = |rules: Value| json!({ "policyTypes": ["Ingress"], "ingress": rules });
    let from = |ends: Value| ingress(json!([{ "from": ends }]));
    let ports = |port: Value| ingress(json!([{ "ports": [port] }]));
    let shards = |shard: &str| json!({ "matchLabels": { "shard": shard } });
    let here = json!({ "matchLabels": { "kubernetes.io/metadata.name": "operators" } });
    let other = json!({ "matchLabels": { "kubernetes.io/metadata.name": "other" } });
    for (spec, wanted) in [
        (ingress(json!([])), &["server", "in"][..]),
        (json!({}), &["server", "in"]),
        (ingress(json!([{}])), &[]),
        (json!({ "podSelector": shards("red"), "policyTypes": ["Ingress"] }), &[]),
        (ports(json!({ "port": 9443 })), &[]),
        (ports(json!({ "port": "hooks" })), &[]),
        (ports(json!({ "port": 9000, "endPort": 9443 })), &[]),
        (ports(json!({})), &[]),
        // The proxy's own port: the rules are the pod's, and come after the policy.
        (ports(json!({ "port": 5445 })), &["server", "in"]),
        (ports(json!({ "port": "metrics" })), &["server", "in"]),
        (ports(json!({ "port": 9443, "protocol": "UDP" })), &["server", "in"]),
        (from(json!([{ "podSelector": {} }])), &["server"]),
        (from(json!([{ "namespaceSelector": here }])), &["server"]),
        (from(json!([{ "namespaceSelector": other }])), &["server", "in"]),
        (from(json!([{ "podSelector": shards("red") }])), &["server", "in"]),
        (from(json!([{ "podSelector": shards("blue") }])), &["server", "in to a"]),
        (from(json!([{ "ipBlock": { "cidr": "10.1.0.0/24" } }])), &[]),
        (from(json!([{ "ipBlock": { "cidr": "10.2.0.0/24" } }])), &["in"]),
        (
            from(json!([{ "ipBlock": { "cidr": "10.1.0.0/24", "except": ["10.1.0.2/32"] } }])),
            &["in to a"],
        ),
        (json!({ "policyTypes": ["Egress"] }), &["out"]),
        (
            json!({ "policyTypes": ["Egress"], "egress": [{ "ports": [{ "port": 443 }] }] }),
            &["out"],
        ),
        (json!({ "policyTypes": ["Egress"], "egress": [{ "to": [{ "podSelector": {} }] }] }), &[]),
    ] {
        assert_eq!(closed(spec.clone()), wanted, "{spec}");
    }
}

#[test]
fn i13_pods_of_other_controllers_and_those_without_a_webhook_need_no_rule() {
    let from_own_shard = || {
        let blue = json!({ "matchLabels": { "shard": "blue" } });
        json!({ "ingress": [{ "from": [{ "podSelector": blue }, { "ipBlock": { "cidr": "::/0" } }] }],
            "podSelector": blue })
    };
    one(Check::Network, Warning, "other pods do not reach", with(from_own_shard()));
    one(Check::Network, Good, "let the reviews", |f| {
        with(from_own_shard())(f);
        let mut other = config("green", "green");
        other["spec"]["controller"] = json!({ "leaderElectionName": "another" });
        f.namespace().configs = Ok(vec![object(config("blue", "blue")), object(other)]);
    });
    let without = |f: &mut Facts| {
        with(json!({}))(f);
        let mut plain = pod("op-0");
        plain["spec"]["initContainers"][1]["args"] = json!(["proxy"]);
        f.pods(vec![plain]);
    };
    assert_eq!(found(Check::Network, without), []);
    assert_eq!(found(Check::PodsRight, without), []);
}

#[test]
fn i13_a_service_leads_to_the_port_whose_reviews_come_to_the_proxy() {
    let check = Check::Services;
    let target = |target: Value| {
        move |f: &mut Facts| f.namespace().services = Ok(vec![object(service(target))])
    };
    let hooks = |hooks: Vec<AdmissionHook>| {
        move |f: &mut Facts| f.cluster.as_mut().unwrap().hooks = Ok(hooks)
    };
    one(check, Good, "webhooks to operators: lead to the proxies", |_| {});
    one(check, Good, "lead to the proxies", hooks(vec![hook(Some(8443)), hook(Some(443))]));
    one(
        check,
        Error,
        "lead to port 9444 of pod op-0, and reviews at port 9443",
        target(json!(9444)),
    );
    one(check, Error, "lead to port 443 of pod op-0", target(Value::Null));
    one(check, Error, "lead to port 7000 of pod op-0", hooks(vec![hook(Some(8443))]));
    one(check, Good, "lead to the proxies", |f| {
        f.pods(vec![of_shard("op-0", "blue", "10.1.0.1")]);
        target(json!("hooks"))(f);
    });
    let none = "none leads to pod op-0";
    one(check, Warning, none, target(json!("other")));
    one(check, Warning, none, hooks(vec![]));
    one(check, Warning, none, hooks(vec![hook(Some(1))]));
    one(check, Warning, none, hooks(vec![AdmissionHook { namespace: "x".into(), ..hook(None) }]));
    one(check, Warning, none, hooks(vec![AdmissionHook { service: "x".into(), ..hook(None) }]));
    let selecting = |selector: Value| {
        move |f: &mut Facts| {
            let mut service = service(json!(9443));
            service["spec"]["selector"] = selector;
            f.namespace().services = Ok(vec![object(service)]);
        }
    };
    one(check, Warning, none, selecting(json!({ "shard": "green" })));
    one(check, Warning, none, selecting(json!({})));
}

#[test]
fn i13_the_proxy_says_what_its_webhook_lacks() {
    let check = Check::Webhook;
    let line = |line: &'static str| {
        move |f: &mut Facts| {
            let body = readyz().body.replace("[+]webhook ok: port 9443\n", line);
            f.one().readyz = Ok(Answer { code: 200, body });
        }
    };
    one(check, Good, "webhook: port 9443", |_| {});
    let none = "[-]webhook failed: /etc/ctrlmesh/webhook holds no tls.crt and tls.key\n";
    one(check, Error, "holds no tls.crt", line(none));
    let fix = |said: &'static str| {
        let mut facts = super::healthy();
        line(said)(&mut facts);
        let finding = super::judge(&facts).into_iter().find(|finding| finding.check == check);
        finding.unwrap().fix.unwrap()
    };
    assert!(fix(none).contains("spec.webhook.certDir"));
    let waits = "[+]webhook ok: waits: the controller does not listen on port 9443\n";
    one(check, Warning, "does not listen", line(waits));
    assert!(fix(waits).contains("log of the controller"));
    let role = "[+]webhook ok: port 9443; may not list and watch pods (Role ctrlmesh-proxy)\n";
    assert!(fix(role).contains("D29"));
    let old = "[+]webhook ok: the pod's rules lead port 1 here: create the pod again\n";
    assert!(fix(old).contains("restart the workload"));
    assert_eq!(found(check, line("")), [], "no webhook is asked for");
}

#[test]
fn i13_the_end_of_the_webhook_servers_certificate_is_told() {
    let check = Check::WebhookCertificate;
    let at = |seconds| move |f: &mut Facts| f.one().metrics = Ok(metrics_of(86400, seconds));
    one(check, Good, "certificate is valid until 2030-01-02T00:00:00Z", at(86400));
    one(check, Warning, "ends in 86399 s", at(86399));
    one(check, Error, "ended at 2030-01-01T00:00:00Z", at(0));
    let none = at(-super::now().as_second());
    assert_eq!(found(check, none), [], "another finding says so");
}
