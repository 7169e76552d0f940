//! Pods as hardened charts write them: resources of the whole pod, tokens projected by hand.

use ctrlmesh::inject::{Injected, Sidecar, inject};
use serde_json::{Value, json};

use super::{done, named, pod, pod_with, settings};

const BOTH: [Sidecar; 2] = [Sidecar::Native, Sidecar::Classic];
const ADDED: &str = "ctrlmesh.kusionstack.io/added-resources";

#[test]
fn the_pods_own_resources_cover_the_injected_containers() {
    let own = json!({
        "requests": { "cpu": "100m", "memory": "64Mi" },
        "limits": { "cpu": 1, "memory": "128Mi", "hugepages-2Mi": "2Mi" },
    });
    for sidecar in BOTH {
        let once = done(pod_with("/spec/resources", own.clone()), sidecar);
        let sum = json!({
            "requests": { "cpu": "120m", "memory": "96Mi" },
            "limits": { "cpu": "1020m", "memory": "384Mi", "hugepages-2Mi": "2Mi" },
        });
        assert_eq!(once["spec"]["resources"], sum, "the proxy has no limit of CPU, but a request");
        assert_eq!(done(once.clone(), sidecar), once, "twice is once");

        // The template is edited after its injection.
        let mut edited = once.clone();
        edited["spec"]["resources"]["requests"]["cpu"] = "520m".into();
        edited["spec"]["resources"]["limits"].as_object_mut().unwrap().remove("cpu");
        let again = done(edited, sidecar);
        assert_eq!(again["spec"]["resources"]["requests"]["cpu"], "520m");
        assert_eq!(
            again["spec"]["resources"]["limits"],
            json!({ "memory": "384Mi", "hugepages-2Mi": "2Mi" })
        );
    }
}

#[test]
fn the_init_container_alone_may_need_more() {
    let mut small =
        pod_with("/spec/resources", json!({ "requests": { "cpu": "1m", "memory": "1Mi" } }));
    let proxy = json!({ "requests": { "cpu": "2m", "memory": "20Mi" } }).to_string();
    small["metadata"]["annotations"] = json!({ "ctrlmesh.kusionstack.io/proxy-resource": proxy });
    for sidecar in BOTH {
        let once = done(small.clone(), sidecar);
        assert_eq!(
            once["spec"]["resources"]["requests"],
            json!({ "cpu": "10m", "memory": "21Mi" })
        );
        assert_eq!(done(once.clone(), sidecar), once);
    }
}

#[test]
fn what_was_raised_is_noted_and_what_the_pod_has_not_is_not_made() {
    let mut raised = pod_with("/spec/resources", json!({ "requests": { "cpu": "1" } }));
    let result = inject(&mut raised, &settings(Sidecar::Native), None).unwrap();
    let Injected::Done { notes, .. } = result else { panic!("{result:?}") };
    let note =
        "spec.resources covers the injected containers, too: it was raised in requests.cpu by 20m";
    assert!(notes.iter().any(|said| said == note), "{notes:?}");
    assert_eq!(raised["spec"]["resources"], json!({ "requests": { "cpu": "1020m" } }));
    for own in
        [Value::Null, json!({}), json!({ "requests": {} }), json!({ "limits": { "cpu": "odd" } })]
    {
        let once = done(pod_with("/spec/resources", own.clone()), Sidecar::Native);
        assert_eq!(once["spec"]["resources"], own);
        assert_eq!(once["metadata"]["annotations"].get(ADDED), None);
    }
}

/// A pod whose first container has a token that its author projected, and whose second has none.
fn by_hand() -> Value {
    let mut pod = pod();
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod["spec"]["volumes"] = json!([{ "name": "token", "projected": { "defaultMode": 292, "sources": [
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } },
        { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
    ] } }]);
    let path = "/var/run/secrets/kubernetes.io/serviceaccount";
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "token", "mountPath": path, "readOnly": true }]);
    let other = json!({ "name": "other", "image": "app" });
    pod["spec"]["containers"].as_array_mut().unwrap().push(other);
    pod
}

#[test]
fn a_token_that_is_projected_by_hand_comes_with_the_bundle() {
    for sidecar in BOTH {
        let before = by_hand();
        let once = done(before.clone(), sidecar);
        let volume = named(&once, "volumes", "token");
        let mut expected = before["spec"]["volumes"][0].clone();
        expected["projected"]["sources"][1]["configMap"]["name"] = "ctrlmesh-ca-bundle".into();
        assert_eq!(*volume, expected, "all but the CA is the author's");
        let mounts = |name: &str| named(&once, "containers", name).get("volumeMounts").cloned();
        assert_eq!(mounts("app"), before["spec"]["containers"][0].get("volumeMounts").cloned());
        assert_eq!(mounts("other"), None, "no container gets a token that it had not");
        assert_eq!(done(once.clone(), sidecar), once);
    }
}

#[test]
fn a_token_for_another_audience_is_none() {
    let mut pod = by_hand();
    pod["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["audience"] =
        "vault".into();
    let refused = super::refusal(&pod, Sidecar::Native).to_string();
    assert!(refused.contains("automountServiceAccountToken: false"), "{refused}");
}
