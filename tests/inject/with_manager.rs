//! Injection where a manager signs the proxies' certificates.

use ctrlmesh::{
    inject::{Injected, NotInjected, Settings, Sidecar, inject},
    sidecar::AUDIENCE,
};
use serde_json::{Value, json};

use super::{golden, named, names, pod, pod_with, settings, standards::broken};

const BOTH: [Sidecar; 2] = [Sidecar::Native, Sidecar::Classic];

fn managed(sidecar: Sidecar) -> Settings {
    settings(sidecar).with_manager("ctrlmesh-manager.ctrlmesh-system.svc:9443".parse().unwrap())
}

fn injected(mut pod: Value, settings: &Settings) -> Value {
    match inject(&mut pod, settings, None) {
        Ok(Injected::Done { .. }) => pod,
        other => panic!("{other:?}"),
    }
}

fn proxy(pod: &Value, sidecar: Sidecar) -> &Value {
    let list = if sidecar == Sidecar::Native { "initContainers" } else { "containers" };
    named(pod, list, "ctrlmesh-proxy")
}

#[test]
fn whole_pods() {
    for (sidecar, name) in BOTH.into_iter().zip(["native", "classic"]) {
        for (mode, is_iptables) in [("iptables", "true"), ("env", "false")] {
            let mut pod = pod();
            pod["metadata"]["annotations"] =
                json!({ "ctrlmesh.kusionstack.io/enable-iptables": is_iptables });
            let once = injected(pod, &managed(sidecar));
            golden(&format!("manager/{name}-{mode}.yaml"), &serde_yaml::to_string(&once).unwrap());
        }
    }
}

#[test]
fn i12_no_container_but_the_proxy_has_a_key_a_token_for_the_manager_or_the_mesh_cas_secret() {
    let ours = ["ctrlmesh-enrolment", "ctrlmesh-leaf"];
    for sidecar in BOTH {
        let init = json!([{ "name": "migrate", "image": "migrate" }]);
        let pod = injected(pod_with("/spec/initContainers", init), &managed(sidecar));
        assert!(!pod.to_string().contains("ctrlmesh-mesh-ca"));
        for list in ["initContainers", "containers"] {
            for name in names(&pod, list) {
                let mounts = named(&pod, list, &name)["volumeMounts"].to_string();
                for volume in ours {
                    let has = mounts.contains(&format!("\"{volume}\""));
                    assert_eq!(has, name == "ctrlmesh-proxy", "{name}: {volume}");
                }
            }
        }
        let enrolment = named(&pod, "volumes", "ctrlmesh-enrolment");
        let token = &enrolment["projected"]["sources"][0]["serviceAccountToken"];
        assert_eq!(token["audience"], AUDIENCE);
        // The tokens of all other volumes are for the API server.
        let audiences = pod.to_string().matches("\"audience\"").count();
        assert_eq!(audiences, 1);
        let leaf = named(&pod, "volumes", "ctrlmesh-leaf");
        assert_eq!(leaf["emptyDir"], json!({ "medium": "Memory", "sizeLimit": "1Mi" }));
    }
}

#[test]
fn i20_the_volumes_of_an_enrolment_are_of_kinds_that_every_standard_admits() {
    for sidecar in BOTH {
        let pod = injected(pod(), &managed(sidecar));
        assert_eq!(broken(&pod, proxy(&pod, sidecar)), [""; 0]);
    }
}

#[test]
fn i12_twice_is_once_and_the_way_from_one_trust_to_the_other_is_free() {
    for sidecar in BOTH {
        let (managed, secret) = (managed(sidecar), settings(sidecar));
        let once = injected(pod(), &managed);
        assert_eq!(injected(once.clone(), &managed), once);
        assert_eq!(injected(injected(pod(), &secret), &managed), once);
        assert_eq!(injected(once, &secret), injected(pod(), &secret));
    }
}

#[test]
fn the_names_of_its_volumes_are_reserved() {
    for name in ["ctrlmesh-enrolment", "ctrlmesh-leaf"] {
        let volume = pod_with("/spec/volumes", json!([{ "name": name, "emptyDir": {} }]));
        let mount = json!([{ "name": name, "mountPath": "/keys" }]);
        let mount = pod_with("/spec/containers/0/volumeMounts", mount);
        for mut pod in [volume, mount] {
            for settings in [managed(Sidecar::Native), settings(Sidecar::Native)] {
                let refused = inject(&mut pod, &settings, None).unwrap_err();
                assert_eq!(refused.reason(), "ForeignName", "{pod:#}");
            }
        }
    }
}

#[test]
fn secrets_to_pull_with_are_added_to_those_of_the_pod_once() {
    let settings = managed(Sidecar::Native).with_pull_secrets(vec!["own".into(), "mesh".into()]);
    let secrets = |pod: &Value| pod["spec"]["imagePullSecrets"].clone();
    let with = |value: Value| injected(pod_with("/spec/imagePullSecrets", value), &settings);
    let once = with(json!([{ "name": "apps" }, { "name": "own" }]));
    let all = json!([{ "name": "apps" }, { "name": "own" }, { "name": "mesh" }]);
    assert_eq!(secrets(&once), all);
    assert_eq!(secrets(&injected(once, &settings)), all);
    let own = json!([{ "name": "own" }, { "name": "mesh" }]);
    assert_eq!(secrets(&injected(pod(), &settings)), own);
    assert_eq!(secrets(&with(json!(null))), own);
    assert_eq!(secrets(&injected(pod(), &managed(Sidecar::Native))), Value::Null);
    let mut malformed = pod_with("/spec/imagePullSecrets", json!("apps"));
    let before = malformed.clone();
    let refused = inject(&mut malformed, &settings, None).unwrap_err();
    assert!(matches!(refused, NotInjected::Malformed { .. }), "{refused}");
    assert!(refused.to_string().contains("spec.imagePullSecrets"), "{refused}");
    assert_eq!(malformed, before);
}

#[test]
fn the_proxys_resources_are_the_pods_then_the_platforms_then_ours() {
    let resources = json!({ "requests": { "cpu": "1" } });
    let settings =
        managed(Sidecar::Native).with_proxy_resources(Some(resources.to_string().parse().unwrap()));
    let of = |pod: &Value| proxy(pod, Sidecar::Native)["resources"].clone();
    assert_eq!(of(&injected(pod(), &settings)), resources);
    let ours = of(&injected(pod(), &managed(Sidecar::Native)));
    assert_eq!(ours["limits"], json!({ "memory": "256Mi" }));
    let mut own = pod();
    own["metadata"]["annotations"] =
        json!({ "ctrlmesh.kusionstack.io/proxy-resource": "{\"limits\":{\"cpu\":\"2\"}}" });
    assert_eq!(of(&injected(own, &settings)), json!({ "limits": { "cpu": "2" } }));
}
