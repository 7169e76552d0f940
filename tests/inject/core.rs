//! The injection itself: order, privileges of names and users, refusals.

use ctrlmesh::{
    inject::{CaptureMode, Injected, Sidecar, inject},
    net::ManagerAddr,
    sidecar::{self, LeafPlan, ProxyPlan},
};
use ctrlmesh_init::{EnvFrom, Plan};
use serde_json::{Value, json};

use super::{done, golden, named, names, pod, pod_with, refusal, settings};

const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const ANNOTATIONS: &str = "/metadata/annotations";
const BOTH: [Sidecar; 2] = [Sidecar::Native, Sidecar::Classic];

fn env_mode(mut pod: Value) -> Value {
    pod["metadata"]["annotations"]["ctrlmesh.kusionstack.io/enable-iptables"] = json!("false");
    pod
}

fn with_init(names: &[&str]) -> Value {
    let inits: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
    pod_with("/spec/initContainers", json!(inits))
}

#[test]
fn i12_native_rules_then_proxy_then_everything_else() {
    let injected = done(with_init(&["a", "b"]), Sidecar::Native);
    assert_eq!(names(&injected, "initContainers"), ["ctrlmesh-init", "ctrlmesh-proxy", "a", "b"]);
    assert_eq!(names(&injected, "containers"), ["app"]);
    let injected = done(env_mode(with_init(&["a", "b"])), Sidecar::Native);
    assert_eq!(names(&injected, "initContainers"), ["ctrlmesh-proxy", "a", "b"]);
    let proxy = named(&injected, "initContainers", "ctrlmesh-proxy");
    assert_eq!(proxy["restartPolicy"], "Always");
    assert_eq!(proxy["startupProbe"]["httpGet"]["path"], "/startupz");
    assert!(proxy.get("livenessProbe").is_none() && proxy.get("lifecycle").is_none());
}

#[test]
fn i12_classic_rules_last_proxy_first() {
    let injected = done(with_init(&["a", "b"]), Sidecar::Classic);
    assert_eq!(names(&injected, "initContainers"), ["a", "b", "ctrlmesh-init"]);
    assert_eq!(names(&injected, "containers"), ["ctrlmesh-proxy", "app"]);
    let proxy = named(&injected, "containers", "ctrlmesh-proxy");
    for (hook, what) in [("postStart", "--for=started"), ("preStop", "--for=no-clients")] {
        let wait = proxy["lifecycle"][hook]["exec"]["command"].as_array().unwrap();
        assert_eq!(wait[..3], ["/ctrlmesh", "wait", what]);
    }
    assert!(proxy.get("restartPolicy").is_none() && proxy.get("startupProbe").is_none());
    let injected = done(env_mode(pod()), Sidecar::Classic);
    assert_eq!(names(&injected, "initContainers"), [""; 0]);
    assert_eq!(names(&injected, "containers"), ["ctrlmesh-proxy", "app"]);
}

#[test]
fn i12_a_foreign_injector_before_or_after_changes_no_order() {
    for (sidecar, inits, containers) in [
        (
            Sidecar::Native,
            &["ctrlmesh-init", "ctrlmesh-proxy", "mesh-init", "a"][..],
            &["mesh-proxy", "app"][..],
        ),
        (
            Sidecar::Classic,
            &["mesh-init", "a", "ctrlmesh-init"],
            &["ctrlmesh-proxy", "mesh-proxy", "app"],
        ),
    ] {
        let foreign = |pod: &mut Value| {
            for (list, name) in [("initContainers", "mesh-init"), ("containers", "mesh-proxy")] {
                let list = pod["spec"][list].as_array_mut().unwrap();
                list.insert(0, json!({ "name": name, "image": "mesh" }));
            }
        };
        let mut before = with_init(&["a"]);
        foreign(&mut before);
        let mut after = done(with_init(&["a"]), sidecar);
        foreign(&mut after);
        let (before, after) = (done(before, sidecar), done(after, sidecar));
        for injected in [&before, &after, &done(after.clone(), sidecar)] {
            assert_eq!(names(injected, "initContainers"), inits);
            assert_eq!(names(injected, "containers"), containers);
        }
    }
}

#[test]
fn i12_what_another_webhook_dropped_from_our_containers_comes_back() {
    let injected = done(pod(), Sidecar::Native);
    let mut broken = injected.clone();
    let proxy = &mut broken["spec"]["initContainers"][1];
    proxy.as_object_mut().unwrap().remove("restartPolicy").unwrap();
    assert_eq!(done(broken, Sidecar::Native), injected);
}

#[test]
fn i09_the_proxys_user_is_refused_to_everybody_else() {
    let who = [
        ("/spec/containers/0/securityContext", "container `app`"),
        ("/spec/initContainers/0/securityContext", "container `added-0`"),
        ("/spec/securityContext", "the pod's securityContext"),
    ];
    for (place, told) in who {
        for sidecar in BOTH {
            let refused = refusal(&pod_with(place, json!({ "runAsUser": 1359 })), sidecar);
            assert_eq!(refused.reason(), "ProxyUser", "{place}");
            assert!(refused.to_string().contains(told), "{refused}");
            done(pod_with(place, json!({ "runAsUser": 1360 })), sidecar);
        }
    }
    // Another user for the proxy makes room, and reaches proxy and rules alike.
    let mut moved = pod_with("/spec/securityContext", json!({ "runAsUser": 1359 }));
    let image = || "x".parse().unwrap();
    let uid = "4000".parse().unwrap();
    let settings = ctrlmesh::inject::Settings::new(image(), image(), Sidecar::Native, uid).unwrap();
    inject(&mut moved, &settings, None).unwrap();
    let proxy = named(&moved, "initContainers", "ctrlmesh-proxy");
    assert_eq!(proxy["securityContext"]["runAsUser"], 4000);
    let args = named(&moved, "initContainers", "ctrlmesh-init")["args"].as_array().unwrap();
    let plan = Plan::from_args(args.iter().map(|arg| arg.as_str().unwrap())).unwrap();
    assert_eq!(plan.proxy_uid(), uid);
    assert!(plan.upstreams().is_empty() && plan.outbound_port().get() == 5443);
}

#[test]
fn i12_the_proxy_reads_its_plan_and_each_path_of_it_is_mounted() {
    let modes = [(pod(), sidecar::Mode::Iptables), (env_mode(pod()), sidecar::Mode::Direct)];
    let address = "ctrlmesh-manager.mesh.svc:9443".parse::<ManagerAddr>().unwrap();
    let manager = settings(Sidecar::Native).with_manager(address.clone());
    let trusts = [
        (settings(Sidecar::Native), LeafPlan::mesh_ca_of_pod()),
        (manager, LeafPlan::manager_of_pod(address)),
    ];
    for ((mut injected, mode), (settings, leaf)) in modes
        .into_iter()
        .flat_map(|mode| trusts.clone().into_iter().map(move |trust| (mode.clone(), trust)))
    {
        assert!(matches!(inject(&mut injected, &settings, None), Ok(Injected::Done { .. })));
        let proxy = named(&injected, "initContainers", "ctrlmesh-proxy");
        let args = proxy["args"].as_array().unwrap();
        let args: Vec<_> = args.iter().map(|arg| arg.as_str().unwrap()).collect();
        let plan = ProxyPlan {
            listen_names: (mode == sidecar::Mode::Direct).then_some(sidecar::LISTEN_NAMES),
            ..ProxyPlan::of_pod(mode, "cluster.local".parse().unwrap(), leaf.clone())
        };
        assert_eq!(args, plan.to_args());
        let mounts = proxy["volumeMounts"].as_array().unwrap();
        let is_mounted = |path: &str| {
            mounts.iter().any(|mount| {
                let rest = path.strip_prefix(mount["mountPath"].as_str().unwrap());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        let ProxyPlan { upstream_ca, pod_labels, state_dir, .. } = plan;
        let of_leaf = match leaf {
            LeafPlan::MeshCa { dir } => vec![dir],
            LeafPlan::Manager { ca, token, bundle, leaf, .. } => vec![ca, token, bundle, leaf],
        };
        for path in [upstream_ca, pod_labels, state_dir].into_iter().chain(of_leaf) {
            assert!(is_mounted(&path), "{path} is in no volume of the proxy");
        }
    }
}

#[test]
fn every_refusal_says_what_would_be_right() {
    use Sidecar::{Classic, Native};
    let mount = |path: &str, volume: &str| json!([{ "name": volume, "mountPath": path }]);
    let mounts = "/spec/containers/0/volumeMounts";
    let cases = [
        (Native, pod_with("/spec", json!("x"))),
        (Native, pod_with("/spec/containers", json!([]))),
        (Native, pod_with("/spec/containers/0", json!({ "image": "nameless" }))),
        (Native, pod_with("/spec/containers/0/env", json!({ "A": "b" }))),
        (Native, pod_with("/spec/volumes", json!(["x"]))),
        (Native, pod_with("/metadata/labels/ctrlmesh.kusionstack.io~1enable-proxy", json!(true))),
        (
            Native,
            pod_with(ANNOTATIONS, json!({ "ctrlmesh.kusionstack.io/enable-iptables": false })),
        ),
        (Native, pod_with("/spec/hostNetwork", json!(true))),
        (Native, pod_with("/spec/shareProcessNamespace", json!(true))),
        (Native, pod_with("/spec/hostPID", json!(true))),
        (Native, pod_with("/spec/os", json!({ "name": "windows" }))),
        (Native, pod_with("/spec/nodeSelector", json!({ "kubernetes.io/os": "windows" }))),
        (Native, pod_with("/spec/nodeSelector", json!({ "beta.kubernetes.io/os": "windows" }))),
        (Native, pod_with("/spec/securityContext", json!({ "runAsUser": 1359 }))),
        (Native, pod_with("/spec/containers/0/ports", json!([{ "containerPort": 5441 }]))),
        (
            Native,
            pod_with(
                "/spec/initContainers/0/ports",
                json!([{ "containerPort": 5443, "protocol": "TCP" }]),
            ),
        ),
        (Native, pod_with("/spec/automountServiceAccountToken", json!(false))),
        (Native, pod_with("/spec/containers/1", json!({ "name": "ctrlmesh-proxy" }))),
        (Native, with_init(&["ctrlmesh-other"])),
        (Native, pod_with("/spec/volumes", json!([{ "name": "ctrlmesh-state", "emptyDir": {} }]))),
        (Native, pod_with(mounts, mount("/steal", "ctrlmesh-mesh-ca"))),
        (Native, pod_with("/spec/volumes", token_for("ctrlmesh.kusionstack.io"))),
        (Native, pod_with("/spec/serviceAccountName", json!(true))),
        (Native, pod_with(mounts, mount(PATH, "token"))),
        (Native, pod_with(mounts, mount(&format!("{PATH}/"), "token"))),
        (Native, pod_with(mounts, mount(&format!("{PATH}/ca.crt"), "ca"))),
        (
            Native,
            pod_with(
                "/spec/containers/0/env",
                json!([{ "name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1" }]),
            ),
        ),
        (Classic, pod_with("/spec/initContainers/0/restartPolicy", json!("Always"))),
        (Classic, pod_with("/spec/restartPolicy", json!("OnFailure"))),
    ];
    let mut told = String::new();
    let mut reasons = std::collections::BTreeSet::new();
    for (sidecar, pod) in cases {
        let refused = refusal(&pod, sidecar);
        reasons.insert(refused.reason());
        told.push_str(&format!("{}: {refused}\n", refused.reason()));
    }
    golden("refusals.txt", &told);
    assert_eq!(reasons.len(), 13, "{reasons:?}");
}

/// A volume with a token of this audience, behind another source.
fn token_for(audience: &str) -> Value {
    let token = json!({ "serviceAccountToken": { "audience": audience, "path": "token" } });
    let sources = json!([{ "configMap": { "name": "shared" } }, token]);
    json!([{ "name": "vault", "projected": { "sources": sources } }])
}

#[test]
fn what_only_looks_like_a_refusal_is_injected() {
    let mounts = "/spec/containers/0/volumeMounts";
    for pod in [
        pod_with("/spec/hostNetwork", json!(false)),
        pod_with("/spec/shareProcessNamespace", json!(false)),
        pod_with("/spec/hostPID", json!(false)),
        pod_with("/spec/containers/0/envFrom", json!([{ "configMapRef": { "name": "shared" } }])),
        pod_with("/spec/os", json!({ "name": "linux" })),
        pod_with("/spec/restartPolicy", json!("Never")),
        pod_with("/spec/initContainers/0/restartPolicy", json!("Always")),
        pod_with(
            "/spec/containers/0/ports",
            json!([{ "containerPort": 5443, "protocol": "UDP" }, { "containerPort": 5442 }]),
        ),
        pod_with(mounts, json!([{ "name": "v", "mountPath": format!("{PATH}-too") }])),
        pod_with(mounts, json!([{ "name": "v", "mountPath": "/var/run/secrets" }])),
        pod_with("/spec/volumes", token_for("vault.example.com")),
    ] {
        done(pod, Sidecar::Native);
    }
    let mut without_token = pod_with("/spec/automountServiceAccountToken", json!(false));
    without_token["metadata"]["annotations"] =
        json!({ "ctrlmesh.kusionstack.io/mount-token": "true" });
    done(without_token, Sidecar::Native);
}

#[test]
fn a_pod_that_does_not_ask_stays_as_it_is() {
    for value in ["false", "", "True", "yes"] {
        let mut pod =
            pod_with("/metadata/labels/ctrlmesh.kusionstack.io~1enable-proxy", json!(value));
        let before = pod.clone();
        let did = inject(&mut pod, &settings(Sidecar::Native), None);
        assert_eq!((did, pod), (Ok(Injected::NotAsked), before));
    }
}

#[test]
fn annotation_or_label_in_either_spelling_chooses_the_mode() {
    let choose = |place: &str, key: &str, value: &str| {
        let mut pod = pod();
        pod["metadata"][place][key] = json!(value);
        match inject(&mut pod, &settings(Sidecar::Native), None) {
            Ok(Injected::Done { mode, .. }) => mode,
            other => panic!("{other:?}"),
        }
    };
    for place in ["annotations", "labels"] {
        for key in
            ["ctrlmesh.kusionstack.io/enable-iptables", "kridge.kusionstack.io/enable-iptables"]
        {
            assert_eq!(choose(place, key, "false"), CaptureMode::Env);
            assert_eq!(choose(place, key, "true"), CaptureMode::Iptables);
        }
    }
}

/// The value of a variable in a container.
fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let mut env = container["env"].as_array().into_iter().flatten();
    env.find(|entry| entry["name"] == name)?["value"].as_str()
}

#[test]
fn env_mode_gives_the_proxys_address_to_whoever_runs_beside_it() {
    let address = |container: &Value| {
        let names = ["HOST", "PORT", "PORT_HTTPS"].map(|n| format!("KUBERNETES_SERVICE_{n}"));
        names.map(|name| variable(container, &name).map(str::to_owned))
    };
    let proxys = ["127.0.0.1", "5443", "5443"].map(|value| Some(value.to_owned()));
    let none = [None, None, None];
    for (sidecar, for_init) in [(Sidecar::Native, &proxys), (Sidecar::Classic, &none)] {
        let injected = done(env_mode(with_init(&["early"])), sidecar);
        assert_eq!(address(named(&injected, "containers", "app")), proxys);
        assert_eq!(&address(named(&injected, "initContainers", "early")), for_init);
        let place = if sidecar == Sidecar::Native { "initContainers" } else { "containers" };
        let proxy = named(&injected, place, "ctrlmesh-proxy");
        assert_eq!(address(proxy), none, "the proxy would dial itself");
        assert!(proxy["args"].as_array().unwrap().contains(&json!("--mode=direct")));
        assert!(!injected.to_string().contains("NET_ADMIN"));
        let natted = done(with_init(&["early"]), sidecar);
        assert_eq!(address(named(&natted, "containers", "app")), none);
    }
}

/// The kubelet puts `env` before `envFrom`, and both before its own word on the API server.
#[test]
fn i12_what_an_env_from_may_set_is_shown_to_the_init_container() {
    let map =
        |prefix: &str, name: &str| json!({ "prefix": prefix, "configMapRef": { "name": name } });
    let mut from_all = with_init(&["early"]);
    from_all["spec"]["initContainers"][0]["envFrom"] =
        json!([{ "secretRef": { "name": "a.b", "optional": true } }]);
    from_all["spec"]["containers"][0]["envFrom"] = json!([
        map("KUBERNETES_SERVICE_", "some"),
        map("KUBERNETES_SERVICE_", "some"),
        map("APP_", "harmless"),
        map("KUBERNETES_SERVICE_HOST", "no-key-is-empty"),
        map("KUBERNETES_SERVICE_PORT_", "https"),
    ]);
    for sidecar in BOTH {
        let injected = done(from_all.clone(), sidecar);
        let init = named(&injected, "initContainers", "ctrlmesh-init");
        let looks: Vec<&Value> = init["env"].as_array().unwrap().iter().collect();
        let looks: Vec<String> = looks
            .iter()
            .filter_map(|entry| EnvFrom::of_variable(entry["name"].as_str()?).zip(Some(entry)))
            .map(|(from, entry)| {
                let (reference, key) =
                    entry["valueFrom"].as_object().unwrap().iter().next().unwrap();
                let wanted = json!({ "name": from.name, "key": from.key, "optional": true });
                assert_eq!((key, reference.ends_with("KeyRef")), (&wanted, true));
                format!("{reference} {} {}", from.name, from.key)
            })
            .collect();
        assert_eq!(
            looks,
            [
                "configMapKeyRef https HTTPS",
                "configMapKeyRef some HOST",
                "configMapKeyRef some PORT",
                "configMapKeyRef some PORT_HTTPS",
                "secretKeyRef a.b KUBERNETES_SERVICE_HOST",
                "secretKeyRef a.b KUBERNETES_SERVICE_PORT",
                "secretKeyRef a.b KUBERNETES_SERVICE_PORT_HTTPS",
            ]
        );
        assert_eq!(done(injected.clone(), sidecar), injected);
        // In env mode the address stands in `env`, which no envFrom overrules.
        let in_env = done(env_mode(from_all.clone()), sidecar);
        assert!(!in_env.to_string().contains("CTRLMESH_ENV_FROM_"));
        assert!(variable(named(&in_env, "containers", "app"), "KUBERNETES_SERVICE_HOST").is_some());
    }
}

/// What a container finds at the ServiceAccount's path.
fn token_volume<'a>(pod: &'a Value, container: &Value) -> &'a Value {
    let mut mounts = container["volumeMounts"].as_array().unwrap().iter();
    let mount = mounts.find(|mount| mount["mountPath"] == PATH).unwrap();
    assert_eq!(mount["readOnly"], true);
    named(pod, "volumes", mount["name"].as_str().unwrap())
}

#[test]
fn apps_trust_the_bundle_and_the_proxy_the_cluster() {
    for sidecar in BOTH {
        for pod in [with_init(&["early"]), env_mode(with_init(&["early"]))] {
            let injected = done(pod, sidecar);
            for (list, container) in ["initContainers", "containers"].iter().flat_map(|list| {
                injected["spec"][list].as_array().into_iter().flatten().map(move |c| (list, c))
            }) {
                let volume = token_volume(&injected, container);
                let map = &volume["projected"]["sources"][1]["configMap"]["name"];
                match container["name"].as_str().unwrap() {
                    "ctrlmesh-init" => assert!(volume["emptyDir"].is_object()),
                    "ctrlmesh-proxy" => assert_eq!(map, "kube-root-ca.crt"),
                    app => assert_eq!(map, "ctrlmesh-ca-bundle", "{list} {app}"),
                }
            }
        }
    }
}

#[test]
fn nobody_but_the_proxy_mounts_the_mesh_ca() {
    for sidecar in BOTH {
        let mut injected = done(with_init(&["early"]), sidecar);
        let steal = json!([{ "name": "ctrlmesh-mesh-ca", "mountPath": "/steal" }]);
        let at = injected["spec"]["containers"].as_array().unwrap().len() - 1;
        injected["spec"]["containers"][at]["volumeMounts"] = steal;
        let injected = done(injected, sidecar);
        let lists = ["initContainers", "containers"];
        let with_key: Vec<&str> = lists
            .iter()
            .flat_map(|list| injected["spec"][list].as_array().into_iter().flatten())
            .filter(|c| c["volumeMounts"].to_string().contains("ctrlmesh-mesh-ca"))
            .map(|container| container["name"].as_str().unwrap())
            .collect();
        assert_eq!(with_key, ["ctrlmesh-proxy"]);
        let secret = &named(&injected, "volumes", "ctrlmesh-mesh-ca")["secret"];
        assert_eq!(secret["defaultMode"], 0o444);
    }
}

#[test]
fn the_service_account_is_told() {
    for (field, value, wanted) in [
        ("serviceAccountName", "robot", "robot"),
        ("serviceAccount", "old", "old"),
        ("serviceAccountName", "", "default"),
        ("priority", "x", "default"),
    ] {
        let mut pod = pod();
        pod["spec"][field] = json!(value);
        match inject(&mut pod, &settings(Sidecar::Native), None) {
            Ok(Injected::Done { service_account, .. }) => assert_eq!(service_account, wanted),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn kubectl_goes_on_choosing_the_pods_own_container() {
    const KEY: &str = "kubectl.kubernetes.io/default-container";
    for sidecar in BOTH {
        let annotation = |pod| done(pod, sidecar)["metadata"]["annotations"][KEY].clone();
        assert_eq!(annotation(pod()), "app");
        assert_eq!(annotation(pod_with(ANNOTATIONS, json!({ KEY: "chosen" }))), "chosen");
    }
}

#[test]
fn a_token_volume_that_somebody_still_mounts_elsewhere_stays() {
    let token = "kube-api-access-abcde";
    let mut pod = pod_with(
        "/spec/volumes",
        json!([{ "name": token, "projected": { "sources": [] } }, { "name": "v", "emptyDir": {} }]),
    );
    let mount = |path: &str| json!({ "name": token, "mountPath": path, "readOnly": true });
    pod["spec"]["containers"][0]["volumeMounts"] = json!([mount(PATH)]);
    let alone = done(pod.clone(), Sidecar::Native);
    assert!(!names(&alone, "volumes").contains(&token.to_owned()));
    assert!(names(&alone, "volumes").contains(&"v".to_owned()));
    pod["spec"]["containers"][0]["volumeMounts"] = json!([mount(PATH), mount("/elsewhere")]);
    let both = done(pod, Sidecar::Native);
    assert!(names(&both, "volumes").contains(&token.to_owned()));
    let mounts = both["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    let paths: Vec<_> = mounts.iter().map(|mount| mount["mountPath"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/elsewhere", PATH]);
}
