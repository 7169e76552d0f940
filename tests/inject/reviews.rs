//! Injection where the ShardingConfig names a webhook server: its reviews come to the proxy, which has
//! its certificate.

use std::net::SocketAddr;

use ctrlmesh::{
    inject::{Injected, NotInjected, Sidecar, inject},
    manager::configs::Configs,
    policy::ShardingDraft,
    sidecar::{INBOUND_PORT, InboundPlan},
};
use ctrlmesh_init::Plan;
use serde_json::{Value, json};

use super::{Files, golden, named, pod, pod_with, settings};

const DIR: &str = "/tmp/k8s-webhook-server/serving-certs";
const MOUNTS: &str = "/spec/containers/0/volumeMounts";

/// A config of namespace `ns` that selects every pod with the label.
pub(crate) fn config(name: &str, webhook: &Value) -> Value {
    let mut spec = json!({
        "selector": { "matchLabels": { "ctrlmesh.kusionstack.io/enable-proxy": "true" } },
    });
    if !webhook.is_null() {
        spec["webhook"] = webhook.clone();
    }
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "namespace": "ns", "name": name },
        "spec": spec,
    })
}

pub(crate) fn configs(all: &[Value]) -> Configs {
    let mut configs = Configs::default();
    all.iter().for_each(|one| configs.add(&serde_json::from_value(one.clone()).unwrap()));
    configs
}

fn usual() -> Value {
    json!({ "certDir": DIR, "port": 9443 })
}

fn with_secret() -> Value {
    json!({ "certDir": DIR, "port": 9443, "certSecret": "kept" })
}

fn secret(name: &str) -> Value {
    json!({ "name": name, "secret": { "secretName": "webhook-cert", "defaultMode": 0o400 } })
}

/// The pod with these volumes, and these mounts of its container.
fn mounting(volumes: Value, mounts: Value) -> Value {
    let mut pod = pod_with(MOUNTS, mounts);
    pod["spec"]["volumes"] = volumes;
    pod
}

fn at(path: &str) -> Value {
    json!([{ "name": "certs", "mountPath": path }])
}

fn try_inject(pod: &mut Value, webhook: &Value, sidecar: Sidecar) -> Result<Injected, NotInjected> {
    let configs = configs(&[config("blue", webhook)]);
    let config = configs.of_pod("ns", pod).cloned();
    assert!(config.is_some(), "the config is not chosen");
    inject(pod, &settings(sidecar), config.as_ref())
}

fn injected(mut pod: Value, webhook: &Value, sidecar: Sidecar) -> Value {
    match try_inject(&mut pod, webhook, sidecar) {
        Ok(Injected::Done { notes, .. }) => assert_eq!(notes, [""; 0]),
        other => panic!("{other:?}"),
    }
    pod
}

fn args(container: &Value) -> Vec<&str> {
    container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect()
}

/// The proxy's mounts that it has for the certificate, its volume of its own, the directory.
fn certificate(pod: &Value) -> (Value, Value, String) {
    let proxy = named(pod, "initContainers", "ctrlmesh-proxy");
    let plan = args(proxy);
    let certs = plan.iter().find_map(|arg| arg.strip_prefix("--webhook-certs=")).unwrap();
    let mounts = proxy["volumeMounts"].as_array().unwrap();
    let of_certs = |path: &&Value| path["mountPath"] == "/etc/ctrlmesh/webhook";
    let mount = mounts.iter().find(of_certs).expect("a mount").clone();
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let own = volumes.iter().find(|volume| volume["name"] == "ctrlmesh-webhook");
    (mount, own.cloned().unwrap_or_default(), certs.to_owned())
}

#[test]
fn whole_pods() {
    let pod = || mounting(json!([secret("certs")]), at(DIR));
    for (sidecar, name) in [(Sidecar::Native, "native"), (Sidecar::Classic, "classic")] {
        let once = injected(pod(), &usual(), sidecar);
        golden(&format!("reviews/{name}.yaml"), &serde_yaml::to_string(&once).unwrap());
        assert_eq!(injected(once.clone(), &usual(), sidecar), once);
        let other = if sidecar == Sidecar::Native { Sidecar::Classic } else { Sidecar::Native };
        assert_eq!(injected(injected(pod(), &with_secret(), other), &usual(), sidecar), once);
    }
}

#[test]
fn i13_the_rules_and_the_proxy_have_the_port_and_the_proxy_alone_the_certificate() {
    let pod = injected(mounting(json!([secret("certs")]), at(DIR)), &usual(), Sidecar::Native);
    let init = named(&pod, "initContainers", "ctrlmesh-init");
    let inbound = Plan::from_args(args(init)).unwrap().inbound().unwrap();
    assert_eq!((inbound.port().get(), inbound.listener()), (9443, INBOUND_PORT));
    let proxy = named(&pod, "initContainers", "ctrlmesh-proxy");
    let plan = InboundPlan::of_pod(9443.try_into().unwrap());
    for wanted in [
        "--inbound=[::]:5445".to_owned(),
        format!("--webhook-port={}", plan.port),
        format!("--webhook-certs={}", plan.certs),
    ] {
        assert!(args(proxy).contains(&wanted.as_str()), "{wanted} in {:?}", args(proxy));
    }
    let uid = json!({ "apiVersion": "v1", "fieldPath": "metadata.uid" });
    let uid = json!({ "name": "POD_UID", "valueFrom": { "fieldRef": uid } });
    assert!(proxy["env"].as_array().unwrap().contains(&uid));
    let (mount, volume, _) = certificate(&pod);
    assert_eq!((&mount["name"], &mount["readOnly"]), (&json!("ctrlmesh-webhook"), &json!(true)));
    // The proxy's user is no owner of the files, and in no group of theirs.
    assert_eq!(volume["secret"], json!({ "secretName": "webhook-cert", "defaultMode": 0o444 }));
    let own = named(&pod, "volumes", "certs");
    assert_eq!(own, &secret("certs"), "the operator's is as it was");
    for (list, name) in [("initContainers", "ctrlmesh-init"), ("containers", "app")] {
        let mounts = named(&pod, list, name)["volumeMounts"].to_string();
        assert!(!mounts.contains("ctrlmesh-webhook"), "{name}");
    }
}

#[test]
fn p14_reviews_are_redirected_to_where_the_proxy_listens_and_to_no_other_port() {
    for (sidecar, list) in [(Sidecar::Native, "initContainers"), (Sidecar::Classic, "containers")] {
        for webhook in [usual(), with_secret(), json!(null)] {
            let pod = injected(mounting(json!([secret("certs")]), at(DIR)), &webhook, sidecar);
            let plan = Plan::from_args(args(named(&pod, "initContainers", "ctrlmesh-init")));
            let redirected = plan.unwrap().inbound().map(|inbound| inbound.listener().get());
            let proxy = args(named(&pod, list, "ctrlmesh-proxy"));
            let listens = proxy.iter().find_map(|arg| arg.strip_prefix("--inbound="));
            let listens = listens.map(|addr| addr.parse::<SocketAddr>().unwrap().port());
            assert_eq!(redirected, listens, "{webhook}");
            assert_eq!(listens.is_some(), !webhook.is_null(), "{webhook}");
        }
    }
}

#[test]
fn i13_without_a_webhook_nothing_is_redirected() {
    let plain = injected(pod(), &json!(null), Sidecar::Native);
    assert!(!plain.to_string().contains("--inbound"));
    let mut other = pod();
    inject(&mut other, &settings(Sidecar::Native), None).unwrap();
    assert_eq!(plain, other);
    let before = injected(mounting(json!([secret("certs")]), at(DIR)), &usual(), Sidecar::Native);
    let after = injected(before, &json!(null), Sidecar::Native);
    let never = mounting(json!([secret("certs")]), at(DIR));
    assert_eq!(after, injected(never, &json!(null), Sidecar::Native));
}

/// The certificate's place in the pod, and what the proxy gets for it.
#[test]
fn i13_the_certificate_is_found_where_the_controller_has_it() {
    let item = |key: &str, path: &str| json!({ "key": key, "path": path, "mode": 0o400 });
    let read = |key: &str, path: &str| json!({ "key": key, "path": path });
    let source = |kind: &str, name: &str| json!({ kind: { "name": name } });
    let own = |kind: &str, mut of: Value| {
        of["defaultMode"] = json!(0o444);
        json!({ "name": "ctrlmesh-webhook", kind: of })
    };
    let volume = |kind: &str, of: Value| json!([{ "name": "certs", kind: of }]);
    let all = json!({ "secretName": "s" });
    let deep = json!({ "secretName": "s", "items": [
        item("a", "in/tls.crt"), item("b", "in/tls.key"), item("c", "other/tls.crt"),
    ] });
    let flat = json!({ "secretName": "s", "items": [read("a", "tls.crt"), read("b", "tls.key")] });
    let named = json!({ "secretName": "s", "items": [item("a", "x.crt")], "optional": true });
    let mixed = json!({ "sources": [source("secret", "s"), source("configMap", "m")] });
    let nested = json!({ "sources": [
        { "secret": { "name": "s", "items": [item("a", "in/tls.crt")] } },
        source("secret", "elsewhere"),
    ] });
    let of_nested = json!({ "sources": [
        { "secret": { "name": "s", "items": [read("a", "tls.crt")] } },
    ] });
    for (volumes, mounts, wanted) in [
        (volume("secret", all.clone()), at(DIR), own("secret", all.clone())),
        (volume("secret", all.clone()), at(&format!("{DIR}/.//")), own("secret", all)),
        (
            volume("secret", named),
            at(DIR),
            own(
                "secret",
                json!({
                    "secretName": "s", "items": [read("a", "x.crt")], "optional": true,
                }),
            ),
        ),
        (
            volume("secret", json!({ "secretName": "s", "items": [item("a", "serving-certs/x")] })),
            at("/tmp/k8s-webhook-server"),
            own("secret", json!({ "secretName": "s", "items": [read("a", "x")] })),
        ),
        (
            volume("secret", deep),
            json!([{ "name": "certs", "mountPath": DIR, "subPath": "in/" }]),
            own("secret", flat),
        ),
        (volume("projected", mixed.clone()), at(DIR), own("projected", mixed)),
        (
            volume("projected", nested),
            json!([{ "name": "certs", "mountPath": DIR, "subPath": "in" }]),
            own("projected", of_nested),
        ),
    ] {
        let pod = injected(mounting(volumes, mounts.clone()), &usual(), Sidecar::Native);
        let (mount, volume, certs) = certificate(&pod);
        assert_eq!(volume, wanted, "{mounts}");
        assert_eq!(mount["name"], "ctrlmesh-webhook");
        assert_eq!(certs, "/etc/ctrlmesh/webhook");
    }
}

#[test]
fn i13_a_volume_of_another_kind_is_mounted_in_the_proxy_too_and_whole() {
    let token = json!({ "sources": [
        { "secret": { "name": "s" } }, { "podCertificate": { "signerName": "s", "keyType": "ED25519" } },
    ] });
    for (volumes, mounts, wanted) in [
        (
            json!([{ "name": "certs", "emptyDir": {} }]),
            json!([{ "name": "certs", "mountPath": DIR, "readOnly": false }]),
            (json!({}), ""),
        ),
        // A claim of a StatefulSet is no volume of the template.
        (json!([]), at("/tmp"), (json!({}), "/k8s-webhook-server/serving-certs")),
        (
            json!([{ "name": "certs", "csi": { "driver": "csi.cert-manager.io" } }]),
            json!([{ "name": "certs", "mountPath": "/tmp/k8s-webhook-server", "subPath": "a/b" }]),
            (json!({ "subPath": "a/b" }), "/serving-certs"),
        ),
        (json!([{ "name": "certs", "projected": token }]), at(DIR), (json!({}), "")),
    ] {
        let pod = injected(mounting(volumes, mounts.clone()), &usual(), Sidecar::Native);
        let (mount, volume, certs) = certificate(&pod);
        assert_eq!(volume, Value::Null, "{mounts}");
        let (mut wanted, rest) = wanted;
        wanted["name"] = json!("certs");
        wanted["mountPath"] = json!("/etc/ctrlmesh/webhook");
        wanted["readOnly"] = json!(true);
        assert_eq!(mount, wanted);
        assert_eq!(certs, format!("/etc/ctrlmesh/webhook{rest}"));
        assert_eq!(injected(pod.clone(), &usual(), Sidecar::Native), pod);
    }
}

#[test]
fn i13_the_secret_that_the_config_names_comes_before_any_mount() {
    for pod in [pod(), mounting(json!([{ "name": "certs", "emptyDir": {} }]), at(DIR))] {
        let pod = injected(pod, &with_secret(), Sidecar::Native);
        let (mount, volume, certs) = certificate(&pod);
        assert_eq!(mount["name"], "ctrlmesh-webhook");
        // The controller may write it, which starts after the volumes are there.
        let wanted = json!({ "secretName": "kept", "optional": true, "defaultMode": 0o444 });
        assert_eq!(volume["secret"], wanted);
        assert_eq!(certs, "/etc/ctrlmesh/webhook");
    }
}

#[test]
fn i13_the_nearest_mount_of_a_container_that_keeps_running_counts() {
    let mut pod = mounting(
        json!([secret("certs"), { "name": "tmp", "emptyDir": {} }]),
        json!([{ "name": "tmp", "mountPath": "/tmp" }, { "name": "certs", "mountPath": DIR }]),
    );
    let proxy = json!([{ "name": "tmp", "mountPath": "/tmp" }]);
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    containers.insert(0, json!({ "name": "rbac", "image": "rbac", "volumeMounts": proxy }));
    let same = json!([{ "name": "certs", "mountPath": format!("{DIR}/"), "readOnly": true }]);
    containers.push(json!({ "name": "same", "image": "same", "volumeMounts": same }));
    let makes = json!([{ "name": "tmp", "mountPath": DIR }]);
    pod["spec"]["initContainers"] = json!([{ "name": "makes", "volumeMounts": makes }]);
    let done = injected(pod.clone(), &usual(), Sidecar::Native);
    assert_eq!(certificate(&done).1["secret"]["secretName"], "webhook-cert");
    // One that keeps running may be the one that serves.
    pod["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    let refused = try_inject(&mut pod, &usual(), Sidecar::Native).unwrap_err();
    assert_eq!(refused.reason(), "TwoCertificates", "{refused}");
}

#[test]
fn bad_i13_places_of_a_certificate_refuse_the_pod_with_the_remedy() {
    let two = |second: Value| {
        let mut pod = mounting(json!([secret("certs"), secret("other")]), at(DIR));
        let second = json!({ "name": "second", "image": "second", "volumeMounts": second });
        pod["spec"]["containers"].as_array_mut().unwrap().push(second);
        pod
    };
    let token = "/var/run/secrets/kubernetes.io/serviceaccount";
    let in_token = json!({ "certDir": token, "port": 9443 });
    let access = json!([{ "name": "kube-api-access-a", "projected": { "sources": [] } }]);
    let key = json!({ "secretName": "s", "items": [{ "key": "a", "path": "tls.crt" }] });
    let cases = [
        (usual(), pod()),
        (usual(), mounting(json!([secret("certs")]), at("/certs"))),
        // Single files are mounted below, and a Secret has no directory but those of its items.
        (usual(), mounting(json!([secret("certs")]), at(&format!("{DIR}/tls.crt")))),
        (usual(), mounting(json!([secret("certs")]), at("/tmp"))),
        (
            usual(),
            mounting(
                json!([{ "name": "certs", "secret": key }]),
                json!([{ "name": "certs", "mountPath": DIR, "subPath": "tls.crt" }]),
            ),
        ),
        (in_token, mounting(access, json!([{ "name": "kube-api-access-a", "mountPath": token }]))),
        (usual(), two(json!([{ "name": "other", "mountPath": DIR }]))),
        (usual(), two(json!([{ "name": "certs", "mountPath": DIR, "subPath": "in" }]))),
        (
            usual(),
            mounting(
                json!([{ "name": "certs", "emptyDir": {} }]),
                json!([{ "name": "certs", "mountPath": DIR, "subPathExpr": "$(POD_NAME)" }]),
            ),
        ),
        (with_secret(), pod_with("/spec/containers/0/ports", json!([{ "containerPort": 5445 }]))),
        (
            with_secret(),
            pod_with(
                "/spec/initContainers/0/ports",
                json!([{ "containerPort": 5445, "protocol": "TCP" }]),
            ),
        ),
    ];
    let mut told = String::new();
    for (webhook, mut pod) in cases {
        let before = pod.clone();
        let refused = try_inject(&mut pod, &webhook, Sidecar::Native).unwrap_err();
        assert_eq!(pod, before, "a refused pod was changed");
        told.push_str(&format!("{}: {refused}\n", refused.reason()));
    }
    golden("reviews/refusals.txt", &told);
    // Without the redirect there is nothing to refuse.
    let mut mine = pod_with("/spec/containers/0/ports", json!([{ "containerPort": 5445 }]));
    inject(&mut mine, &settings(Sidecar::Native), None).unwrap();
    let udp = json!([{ "containerPort": 5445, "protocol": "UDP" }]);
    let mut other = pod_with("/spec/containers/0/ports", udp);
    try_inject(&mut other, &with_secret(), Sidecar::Native).unwrap();
}

/// No config has such a port: the check of `spec.webhook.port` refuses it.
#[test]
fn bad_i13_a_port_of_the_proxy_as_that_of_the_webhook_is_refused() {
    let configs = configs(&[config("blue", &with_secret())]);
    let draft = configs.of_pod("ns", &pod()).unwrap();
    for port in [5443, 5445] {
        let mut draft: ShardingDraft = draft.clone();
        draft.webhook.as_mut().unwrap().port = port.try_into().unwrap();
        let refused = inject(&mut pod(), &settings(Sidecar::Native), Some(&draft)).unwrap_err();
        assert_eq!(refused.reason(), "WebhookPort");
        assert!(refused.to_string().starts_with("ShardingConfig ns/blue: the webhook port: port"));
    }
}

#[test]
fn i13_env_mode_redirects_nothing_and_says_so() {
    let mut env = pod();
    env["metadata"]["annotations"] = json!({ "ctrlmesh.kusionstack.io/enable-iptables": "false" });
    let mut plain = env.clone();
    let did = try_inject(&mut env, &usual(), Sidecar::Native).unwrap();
    let Injected::Done { notes, .. } = did else { panic!("{did:?}") };
    assert_eq!(
        notes,
        [
            "ShardingConfig ns/blue: spec.webhook has no effect on the pod: nothing is redirected in \
         env mode, so its reviews are answered by the pod that gets them",
        ]
    );
    inject(&mut plain, &settings(Sidecar::Native), None).unwrap();
    assert_eq!(env, plain);
}

#[test]
fn the_names_of_the_volume_and_of_the_variable_are_reserved() {
    let volume = json!([{ "name": "ctrlmesh-webhook", "emptyDir": {} }]);
    let mut pod = pod_with("/spec/volumes", volume);
    let refused = inject(&mut pod, &settings(Sidecar::Native), None).unwrap_err();
    assert_eq!(refused.reason(), "ForeignName");
    let set = json!({ "ctrlmesh.kusionstack.io/env-sync": "POD_UID=1" });
    let mut pod = pod_with("/metadata/annotations", set);
    let refused = inject(&mut pod, &settings(Sidecar::Native), None).unwrap_err();
    assert!(refused.to_string().contains("POD_UID tells the proxy where it is"), "{refused}");
}

#[test]
fn i13_one_config_of_the_pods_namespace_counts_and_no_other() {
    let webhook = |name| config(name, &with_secret());
    // One that sorts before the keys of the namespace, one after them.
    let elsewhere = ["ns-2", "ns2"].map(|namespace| {
        let mut config = webhook("blue");
        config["metadata"]["namespace"] = json!(namespace);
        config
    });
    let mut others = webhook("red");
    others["spec"]["selector"]["matchLabels"]["shard"] = json!("red");
    let mut broken = webhook("green");
    broken["spec"]["limits"] = json!(3);
    let chosen = |all: &[Value]| {
        let configs = configs(all);
        configs.of_pod("ns", &pod()).map(|draft| draft.config.object.name.to_string())
    };
    let [before, after] = elsewhere;
    let one = [before, after, others, broken, webhook("blue")];
    assert_eq!(chosen(&one).as_deref(), Some("blue"));
    assert_eq!(chosen(&one[..4]), None, "no config of the namespace selects it");
    assert_eq!(chosen(&[webhook("blue"), webhook("green")]), None, "two select it");
    let configs = configs(&one);
    assert_eq!(configs.of_pod("ns", &json!({ "metadata": {} })), None);
    assert_eq!(configs.of_pod("ns", &json!({ "metadata": { "labels": { "a": 1 } } })), None);
}

#[test]
fn i13_the_configs_of_the_file_and_of_the_policy_count() {
    let files = Files::new();
    let template = serde_yaml::to_string(&pod()).unwrap();
    let yaml = |value: &Value| serde_yaml::to_string(value).unwrap();
    let mut shard = config("blue", &with_secret());
    shard["metadata"].as_object_mut().unwrap().remove("namespace");
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [shard] });
    let is_inbound = |output: &str| output.contains("--inbound=9443:5445\n");
    let alone = files.injected(&template, &["--namespace=ns"]);
    assert!(!is_inbound(&alone), "{alone}");
    // Whichever comes first in the file.
    for policy in [yaml(&shard), yaml(&list)] {
        for input in [format!("{policy}---\n{template}"), format!("{template}---\n{policy}")] {
            let output = files.injected(&input, &["--namespace=ns"]);
            assert!(is_inbound(&output) && output.contains("secretName: kept"), "{output}");
            assert_eq!(files.injected(&output, &["--namespace=ns"]), output);
        }
        let path = files.path("policy.yaml");
        std::fs::write(&path, policy).unwrap();
        let flag = format!("--policy={}", path.display());
        assert!(is_inbound(&files.injected(&template, &["--namespace=ns", &flag])));
    }
    let here = yaml(&config("blue", &with_secret()));
    assert!(!is_inbound(&files.injected(&format!("{here}---\n{template}"), &[])), "of default");
    let path = files.path("torn.yaml");
    std::fs::write(&path, "a: [b\n").unwrap();
    let output = files.run(&template, &[&format!("--policy={}", path.display())]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{told}");
    assert!(told.contains("torn.yaml: document 1"), "{told}");
    let output = files.run(&template, &["--policy=/nowhere"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("--policy /nowhere"));
}

#[test]
fn bad_lock_of_the_arguments_that_the_config_does_not_name_is_noted() {
    let mut config = config("blue", &with_secret());
    config["spec"]["controller"] = json!({
        "leaderElectionName": "op", "locks": [{ "name": "far-*", "namespace": "kube-system" }],
    });
    let configs = configs(&[config]);
    for (args, elects) in [
        (json!(["--leader-election-namespace=kube-system"]), None),
        (json!(["--leader-election-namespace", "kube-system", "--leader-election-id=far-1"]), None),
        (json!(["-leader-election-id=op", "--leader-election-namespace=$(POD_NAMESPACE)"]), None),
        (json!(["--leader-elect", "--other-namespace=ops"]), None),
        (json!(["--leader-election-namespace=ops"]), Some("a lock of the namespace ops")),
        (
            json!(["--leader-elect-resource-namespace", "ops", "--leader-elect-resource-name=op"]),
            Some("the lock ops/op"),
        ),
        (json!(["--leader-election-id=other"]), Some("the lock ns/other")),
    ] {
        let mut pod = pod_with("/spec/containers/0/args", args.clone());
        let config = configs.of_pod("ns", &pod).unwrap();
        let done = inject(&mut pod, &settings(Sidecar::Native), Some(config)).unwrap();
        let Injected::Done { notes, .. } = done else { panic!("{done:?}") };
        let says = elects.map(|elects| {
            format!(
                "ShardingConfig ns/blue: by its arguments, container app elects by {elects}, which \
                 spec.controller does not name: without it all shards have one leader; add it to \
                 spec.controller.locks"
            )
        });
        assert_eq!(notes, Vec::from_iter(says), "{args}");
    }
}
