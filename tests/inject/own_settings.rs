//! The annotations of a pod, and what the injection makes of them.

use ctrlmesh::inject::{Injected, Sidecar, inject};
use serde_json::{Value, json};

use super::{done, golden, named, pod, refusal, settings};

const PREFIXES: [&str; 2] = ["ctrlmesh.kusionstack.io", "kridge.kusionstack.io"];

/// A pod with two containers and an init container, and an annotation.
fn annotated(key: &str, value: &str) -> Value {
    let mut pod = pod();
    pod["spec"]["containers"][0]["env"] = json!([
        { "name": "EMPTY", "value": "" },
        { "name": "ZONE", "value": "a" },
        { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
    ]);
    let second = json!({ "name": "second", "image": "app", "env": [
        { "name": "EMPTY", "value": "not here" },
        { "name": "ZONE", "value": "b" },
    ] });
    pod["spec"]["containers"].as_array_mut().unwrap().push(second);
    pod["spec"]["initContainers"] = json!([{ "name": "early", "image": "app" }]);
    pod["metadata"]["annotations"] = json!({ key: value });
    pod
}

/// The pod, injected under each prefix and kind of sidecar; twice is once.
fn injected(name: &str, value: &str) -> Vec<Value> {
    let both = [Sidecar::Native, Sidecar::Classic];
    let cases = PREFIXES.iter().flat_map(|prefix| both.map(|sidecar| (prefix, sidecar)));
    cases
        .map(|(prefix, sidecar)| {
            let once = done(annotated(&format!("{prefix}/{name}"), value), sidecar);
            assert_eq!(done(once.clone(), sidecar), once);
            once
        })
        .collect()
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let lists = ["initContainers", "containers"].map(|list| pod["spec"][list].as_array().unwrap());
    lists.into_iter().flatten().find(|container| container["name"] == name).unwrap()
}

/// The entries of a container's variables but those of the pod's fields that the proxy always has.
fn env(pod: &Value, name: &str) -> Vec<Value> {
    let own = ["POD_NAME", "POD_NAMESPACE", "POD_IP", "POD_UID"];
    let is_own = |entry: &&Value| !own.contains(&entry["name"].as_str().unwrap());
    container(pod, name)["env"].as_array().into_iter().flatten().filter(is_own).cloned().collect()
}

#[test]
fn the_proxys_resources_are_those_that_the_pod_asks_for() {
    let wanted = json!({ "requests": { "cpu": "1.5", "memory": "1e2Mi" },
                         "limits": { "memory": "512Mi", "ephemeral-storage": 1000 } });
    let text = wanted.to_string().replace("1e2Mi", "100Mi");
    for pod in injected("proxy-resource", &text) {
        let resources = &container(&pod, "ctrlmesh-proxy")["resources"];
        assert_eq!(resources.to_string(), text);
        assert_eq!(container(&pod, "ctrlmesh-init")["resources"]["limits"]["memory"], "64Mi");
        assert!(container(&pod, "app")["resources"].is_null());
    }
    for pod in injected("proxy-resource", "{}") {
        assert_eq!(container(&pod, "ctrlmesh-proxy")["resources"], json!({}));
    }
}

/// The grammar of `k8s.io/apimachinery/pkg/api/resource`, by examples from its tests.
#[test]
fn every_quantity_of_the_api_and_no_other_is_taken() {
    let is_taken = |quantity: &str| {
        let text = json!({ "limits": { "cpu": quantity } }).to_string();
        let mut pod = annotated("ctrlmesh.kusionstack.io/proxy-resource", &text);
        inject(&mut pod, &settings(Sidecar::Native), None).is_ok()
    };
    for good in [
        "0", "0n", "0u", "0m", "0Ki", "0k", "0Mi", "0M", "0Gi", "0G", "0Ti", "0T", "1Pi", "1P",
        "1Ei", "1E", "+1", "100m", "1.", ".1", "0.1", "1.25Gi", "1e3", "1E3", "1e-3", "12.3e+2",
        ".", " 1 ",
    ] {
        assert!(is_taken(good), "{good}");
    }
    for bad in [
        "", "-1", "-100m", "1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i", "-3.01i",
        "1 Mi", "1e", "1e3e", "256MB", "NaN", "inf", "--1", "++1", "1e+-3",
    ] {
        assert!(!is_taken(bad), "{bad}");
    }
}

#[test]
fn the_proxy_gets_the_variables_that_are_synchronised() {
    let value = "A=1, B=x=y=z,ZONE,, NODE ,EMPTY,A=2";
    for pod in injected("env-sync", value) {
        assert_eq!(
            env(&pod, "ctrlmesh-proxy"),
            [
                json!({ "name": "A", "value": "2" }),
                json!({ "name": "B", "value": "x=y=z" }),
                json!({ "name": "ZONE", "value": "a" }),
                json!({ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }),
                json!({ "name": "EMPTY", "value": "not here" }),
            ]
        );
        assert_eq!(env(&pod, "app").len(), 3);
    }
}

#[test]
fn variables_are_injected_into_the_containers_that_are_named() {
    let value = json!([
        { "name": "app", "env": [{ "key": "ZONE", "value": "c" }, { "key": "NODE", "value": "n" }] },
        { "name": "early", "env": [{ "name": "NEW", "value": "$(ZONE)" }] },
        { "name": "ctrlmesh-proxy", "env": [{ "key": "CTRLMESH_LOG", "value": "debug" }] },
    ]);
    for pod in injected("env-inject", &value.to_string()) {
        let entry = |name: &str, value: &str| json!({ "name": name, "value": value });
        assert_eq!(env(&pod, "app"), [entry("EMPTY", ""), entry("ZONE", "c"), entry("NODE", "n")]);
        assert_eq!(env(&pod, "early"), [entry("NEW", "$(ZONE)")]);
        assert_eq!(env(&pod, "second").len(), 2);
        assert_eq!(env(&pod, "ctrlmesh-proxy"), [entry("CTRLMESH_LOG", "debug")]);
    }
}

/// An injected variable is a variable of the pod to what copies it, and goes before it in the proxy.
#[test]
fn variables_are_injected_before_they_are_synchronised() {
    let mut pod = annotated("ctrlmesh.kusionstack.io/env-sync", "ZONE,LATE");
    pod["metadata"]["annotations"]["ctrlmesh.kusionstack.io/env-inject"] = json!(
        "[{\"name\":\"second\",\"env\":[{\"key\":\"LATE\",\"value\":\"1\"}]},\
          {\"name\":\"ctrlmesh-proxy\",\"env\":[{\"key\":\"ZONE\",\"value\":\"p\"}]}]"
    );
    let pod = done(pod, Sidecar::Native);
    let entry = |name: &str, value: &str| json!({ "name": name, "value": value });
    assert_eq!(env(&pod, "ctrlmesh-proxy"), [entry("ZONE", "p"), entry("LATE", "1")]);
    assert_eq!(done(pod.clone(), Sidecar::Native), pod);
}

fn logs(pod: &Value, name: &str) -> Vec<Value> {
    let mounts = container(pod, name)["volumeMounts"].as_array().unwrap().iter();
    let at = |mount: &&Value| mount["mountPath"].as_str().unwrap().starts_with("/var/log/app");
    mounts.filter(at).cloned().collect()
}

#[test]
fn containers_share_a_directory_of_logs() {
    for pod in injected("log-path", "/var/log/app/") {
        assert_eq!(named(&pod, "volumes", "app-shared-logs")["emptyDir"], json!({}));
        let mount = json!({ "name": "app-shared-logs", "mountPath": "/var/log/app" });
        for name in ["early", "app", "second"] {
            assert_eq!(logs(&pod, name), std::slice::from_ref(&mount), "{name}");
        }
        assert_eq!(logs(&pod, "ctrlmesh-proxy"), [json!(null); 0]);
    }
    let mut pod = annotated("ctrlmesh.kusionstack.io/log-path", "/var/log/app");
    pod["spec"]["volumes"] = json!([{ "name": "disk", "emptyDir": { "medium": "Memory" } }]);
    let mount = |path: &str| json!({ "name": "disk", "mountPath": path, "subPath": "x" });
    pod["spec"]["containers"][1]["volumeMounts"] = json!([mount("/var/log/app/")]);
    pod["spec"]["containers"][1]["volumeMounts"][0]["readOnly"] = json!(true);
    let shared = done(pod, Sidecar::Native);
    for name in ["early", "app"] {
        assert_eq!(logs(&shared, name), [mount("/var/log/app/")], "{name}");
    }
    assert_eq!(logs(&shared, "second")[0]["readOnly"], true);
    let volumes = shared["spec"]["volumes"].as_array().unwrap();
    assert!(volumes.iter().all(|volume| volume["name"] != "app-shared-logs"));
    assert_eq!(done(shared.clone(), Sidecar::Native), shared);
}

#[test]
fn an_annotation_that_cannot_be_obeyed_refuses_the_pod() {
    let at = |path: &str| json!([{ "name": path.replace('/', ""), "mountPath": "/var/log/app" }]);
    let cases = [
        ("proxy-resource", "cpu: 1"),
        ("proxy-resource", r#"{"limit":{"memory":"1Gi"}}"#),
        ("proxy-resource", r#"{"limits":{"memory":"256MB"}}"#),
        ("proxy-resource", r#"{"requests":{"cpu":-1}}"#),
        ("proxy-resource", r#"{"requests":{"cpu":null}}"#),
        ("env-sync", "MISSING"),
        ("env-sync", "A=1,POD_NAME=other"),
        ("env-sync", "KUBERNETES_SERVICE_HOST=127.0.0.1"),
        ("env-sync", "=1"),
        ("env-sync", "A\u{e9}=1"),
        ("env-inject", "A=1"),
        ("env-inject", r#"[{"name":"app","env":[{"key":"A","value":1}]}]"#),
        ("env-inject", r#"[{"name":"app","env":[{"key":"A","valueFrom":{}}]}]"#),
        ("env-inject", r#"[{"name":"ghost","env":[]}]"#),
        ("env-inject", r#"[{"name":"ctrlmesh-init","env":[]}]"#),
        ("env-inject", r#"[{"name":"app","env":[{"key":"A=","value":""}]}]"#),
        ("env-inject", r#"[{"name":"ctrlmesh-proxy","env":[{"key":"POD_IP","value":""}]}]"#),
        ("log-path", "logs"),
        ("log-path", ""),
        ("log-path", "/"),
        ("log-path", "/var/../etc"),
        ("log-path", "/a:b"),
        ("log-path", "/var/run/secrets"),
        ("log-path", "/var/run/secrets/kubernetes.io/serviceaccount/logs"),
    ];
    let mut told = String::new();
    let mut tell = |pod: &Value| {
        for sidecar in [Sidecar::Native, Sidecar::Classic] {
            let refused = refusal(pod, sidecar);
            assert_eq!(refused.reason(), "Annotation");
            told = format!("{}{refused}\n", told.replace(&format!("{refused}\n"), ""));
        }
    };
    for (name, value) in cases {
        tell(&annotated(&format!("ctrlmesh.kusionstack.io/{name}"), value));
    }
    let mut pod = annotated("kridge.kusionstack.io/log-path", "/var/log/app");
    pod["spec"]["containers"][0]["volumeMounts"] = at("/one");
    pod["spec"]["containers"][1]["volumeMounts"] = at("/other");
    tell(&pod);
    golden("annotations.txt", &told);
    // To give a container another API server is refused as in the pod itself.
    let env = r#"[{"name":"app","env":[{"key":"KUBERNETES_SERVICE_HOST","value":"10.0.0.1"}]}]"#;
    let refused = refusal(&annotated("ctrlmesh.kusionstack.io/env-inject", env), Sidecar::Native);
    assert_eq!(refused.reason(), "ApiServerVariable");
}

#[test]
fn a_key_without_meaning_is_noted() {
    let mut pod = annotated("kridge.kusionstack.io/kubeconfig-volume", "kube");
    pod["metadata"]["labels"]["ctrlmesh.kusionstack.io/watching"] = json!("true");
    pod["metadata"]["labels"]["ctrlmesh.kusionstack.io/disable-fake-kubeconfig-arg"] =
        json!("true");
    pod["metadata"]["labels"]["ctrlmesh.kusionstack.io/disable-fake-kubeconfig-env"] =
        json!("true");
    let Ok(Injected::Done { notes, .. }) = inject(&mut pod, &settings(Sidecar::Native), None)
    else {
        panic!("{pod}");
    };
    golden("notes.txt", &(notes.join("\n") + "\n"));
    let mut quiet = annotated("example.com/watching", "true");
    let did = inject(&mut quiet, &settings(Sidecar::Native), None).unwrap();
    assert!(matches!(did, Injected::Done { notes, .. } if notes.is_empty()));
}
