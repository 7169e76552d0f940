//! What `ctrlmesh inject` prints, judged by a real API server: its validation, its admission of
//! ServiceAccounts, its Pod Security evaluator, and kubectl's reading of YAML.

use anyhow::{Context, Result, ensure};
use ctrlmesh::{
    cli::yaml,
    inject::{
        Injected, Settings, Sidecar,
        companions::{self, Trust},
        inject,
        workload::PodPath,
    },
    manager::enrolment::{Claim, NotAHolder},
    sidecar::AUDIENCE,
};
use ctrlmesh_e2e::ApiServer;
use k8s_openapi::api::{authentication::v1::TokenReview, core::v1::Pod};
use serde_json::{Value, json};

const SIDECARS: [Sidecar; 2] = [Sidecar::Native, Sidecar::Classic];
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn injected(mut object: Value, sidecar: Sidecar) -> Result<Value> {
    let (proxy, init) = ("localhost/ctrlmesh:1".parse()?, "localhost/ctrlmesh-init:1".parse()?);
    let settings = Settings::new(proxy, init, sidecar, "1359".parse()?)?;
    let pod = PodPath::of(&object).context("a known kind")?.find(&mut object);
    let did = inject(pod.context("a pod")?, &settings, None)?;
    ensure!(matches!(did, Injected::Done { .. }));
    Ok(object)
}

/// A pod that keeps the standard `restricted` by itself. Its `envFrom` gives the init container
/// variables with names of their own.
fn pod(namespace: &str, is_env: bool) -> Value {
    let container = |name: &str| {
        json!({
            "name": name,
            "image": "localhost/app:1",
            "envFrom": [
                { "configMapRef": { "name": "shared-1" } },
                { "prefix": "KUBERNETES_", "secretRef": { "name": "a.b", "optional": true } },
            ],
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
        })
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "one",
            "namespace": namespace,
            "labels": {
                "ctrlmesh.kusionstack.io/enable-proxy": "true",
                "ctrlmesh.kusionstack.io/enable-iptables": if is_env { "false" } else { "true" },
            },
        },
        "spec": {
            "initContainers": [container("early")],
            "containers": [container("app"), container("helper")],
        },
    })
}

fn workload(version: &str, kind: &str) -> Value {
    let pod = pod("default", false);
    let mut template = json!({ "metadata": pod["metadata"], "spec": pod["spec"] });
    template["metadata"]["labels"]["app"] = json!("one");
    for key in ["name", "namespace"] {
        template["metadata"].as_object_mut().map(|metadata| metadata.remove(key));
    }
    let mut spec = json!({ "selector": { "matchLabels": { "app": "one" } }, "template": template });
    match kind {
        "StatefulSet" => spec["serviceName"] = json!("one"),
        "Job" => {
            spec["template"]["spec"]["restartPolicy"] = json!("Never");
            spec.as_object_mut().map(|spec| spec.remove("selector"));
        }
        _ => {}
    }
    json!({ "apiVersion": version, "kind": kind, "metadata": { "name": "one" }, "spec": spec })
}

/// What the API server would store.
fn dry_run(api: &ApiServer, object: &Value) -> Result<Value> {
    let args = ["create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-"];
    let stored = api.kubectl_client().run_with_input(&args, &yaml::print(object))?;
    Ok(serde_json::from_str(&stored)?)
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let items = pod["spec"][list].as_array().into_iter().flatten();
    items.map(|item| item["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_api_server_takes_what_is_printed_and_adds_no_token() -> Result<()> {
    let api = ApiServer::start()?;
    api.kubectl(&["create", "serviceaccount", "default"])?;
    let trust = Trust {
        mesh_ca: api.ca_pem().to_owned(),
        mesh_ca_key: "key".to_owned(),
        cluster_ca: api.ca_pem().to_owned(),
    };
    for object in companions::of_namespace("default", &trust) {
        dry_run(&api, &object)?;
    }
    api.apply(&yaml::print(&companions::of_namespace("default", &trust)[2]))?;
    dry_run(&api, &companions::of_service_account("default", "default"))?;

    for sidecar in SIDECARS {
        for kind in ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"] {
            dry_run(&api, &injected(workload("apps/v1", kind), sidecar)?)?;
        }
        for is_env in [false, true] {
            let sent = injected(pod("default", is_env), sidecar)?;
            let stored = dry_run(&api, &sent)?;
            // Admission of ServiceAccounts finds its path taken in every container.
            ensure!(names(&stored, "volumes") == names(&sent, "volumes"), "{stored:#}");
            // What the server filled in is no obstacle to injecting again.
            let again = injected(stored.clone(), sidecar)?;
            ensure!(names(&again, "initContainers") == names(&sent, "initContainers"));
            ensure!(
                dry_run(&api, &without_status(again))?["spec"] == stored["spec"],
                "{sidecar:?}"
            );
        }
    }
    dry_run(&api, &injected(workload("batch/v1", "Job"), Sidecar::Native)?)?;
    Ok(())
}

fn without_status(mut pod: Value) -> Value {
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.retain(|key, _| ["name", "namespace", "labels", "annotations"].contains(&&**key));
    }
    pod.as_object_mut().map(|pod| pod.remove("status"));
    pod
}

/// As admission sees a pod: the API server has added its token already.
#[test]
fn the_token_that_admission_added_gives_way_to_the_bundle() -> Result<()> {
    let api = ApiServer::start()?;
    api.kubectl(&["create", "serviceaccount", "default"])?;
    let stored = dry_run(&api, &pod("default", false))?;
    let added = names(&stored, "volumes");
    ensure!(added.len() == 1 && added[0].starts_with("kube-api-access-"), "{added:?}");
    let sent = injected(without_status(stored), Sidecar::Native)?;
    ensure!(!names(&sent, "volumes").contains(&added[0]));
    let stored = dry_run(&api, &sent)?;
    for container in stored["spec"]["containers"].as_array().context("containers")? {
        let mounts = container["volumeMounts"].as_array().context("mounts")?;
        let volumes: Vec<&Value> = mounts
            .iter()
            .filter(|mount| mount["mountPath"] == TOKEN_PATH)
            .map(|mount| &mount["name"])
            .collect();
        ensure!(volumes == ["kube-api-access-ctrlmesh"], "{container:#}");
    }
    Ok(())
}

#[test]
fn i20_the_pod_security_evaluator_takes_env_mode_and_names_what_net_admin_needs() -> Result<()> {
    let api = ApiServer::start()?;
    for level in ["restricted", "baseline"] {
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": level,
                "labels": { "pod-security.kubernetes.io/enforce": level },
            },
        });
        api.apply(&yaml::print(&namespace))?;
        api.kubectl(&["create", "serviceaccount", "default", "-n", level])?;
        for sidecar in SIDECARS {
            let mut in_env_mode = pod(level, true);
            if sidecar == Sidecar::Classic {
                // Else the API server's names would lead nowhere at first.
                in_env_mode["spec"]["initContainers"] = json!([]);
            }
            let stored = dry_run(&api, &injected(in_env_mode, sidecar)?)?;
            ensure!(stored["spec"]["hostAliases"][0]["ip"] == "127.0.0.1", "{stored:#}");
            ensure!(stored["spec"]["securityContext"]["sysctls"][0]["value"] == "0", "{stored:#}");
            let refused = dry_run(&api, &injected(pod(level, false), sidecar)?);
            let told = format!("{:#}", refused.err().context("NET_ADMIN was let in")?);
            ensure!(told.contains("ctrlmesh-init") && !told.contains("ctrlmesh-proxy"), "{told}");
            let wanted: &[&str] = match level {
                "baseline" => &["non-default capabilities", "NET_ADMIN"],
                _ => &["unrestricted capabilities", "runAsNonRoot != true", "runAsUser=0"],
            };
            ensure!(wanted.iter().all(|wanted| told.contains(wanted)), "{told}");
            for other in ["seccompProfile", "allowPrivilegeEscalation", "volumes", "privileged"] {
                ensure!(!told.contains(other), "{told}");
            }
        }
    }
    Ok(())
}

/// The tokens of one pod, as the API server reviews them.
#[test]
fn a_leaf_is_for_the_token_of_an_injected_pod_while_it_is_there() -> Result<()> {
    let api = ApiServer::start()?;
    api.kubectl(&["create", "serviceaccount", "default"])?;
    let sent = yaml::print(&injected(pod("default", false), Sidecar::Native)?);
    api.apply(&sent)?;
    let get = || -> Result<Pod> {
        Ok(serde_json::from_str(&api.kubectl(&["get", "pod", "one", "-o", "json"])?)?)
    };
    let there = get()?;
    let uid = there.metadata.uid.clone().context("a uid")?;
    let by_uid = format!("--bound-object-uid={uid}");
    let bound = ["--bound-object-kind=Pod", "--bound-object-name=one", &by_uid];
    let claim = |flags: &[&str]| -> Result<Result<Claim, NotAHolder>> {
        let token = api.kubectl(&[&["create", "token", "default"], flags].concat())?;
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {},
            "spec": { "token": token.trim(), "audiences": [AUDIENCE] },
        });
        let args = ["create", "-o", "json", "-f", "-"];
        let answer = api.kubectl_client().run_with_input(&args, &yaml::print(&review))?;
        let review: TokenReview = serde_json::from_str(&answer)?;
        Ok(Claim::of_review(review.status.context("a status")?))
    };
    let ours = format!("--audience={AUDIENCE}");
    let own = claim(&[&bound[..], &[&*ours]].concat())??;
    ensure!(own.clone().holder(Some(&there))?.to_string().ends_with(&format!("/pod/one/{uid}")));
    // What an app container has: the same account and pod, the API server's audience.
    let app = claim(&bound)?;
    ensure!(app.err().context("signed for an app")?.reason() == "NotAuthenticated");
    ensure!(claim(&[&ours])?.err().context("bound to no pod")?.reason() == "NoPod");

    api.kubectl(&["delete", "pod", "one", "--wait=true"])?;
    ensure!(own.clone().holder(None).is_err_and(|gone| gone.reason() == "PodGone"));
    api.apply(&sent)?;
    let refused = own.holder(Some(&get()?)).err().context("signed for the next of that name")?;
    ensure!(refused.to_string() == "pod default/one has another uid than the token says");
    Ok(())
}

/// A quantity of `proxy-resource` is one to us and to the API server, or to neither.
#[test]
fn a_quantity_is_taken_that_the_api_server_takes() -> Result<()> {
    let api = ApiServer::start()?;
    api.kubectl(&["create", "serviceaccount", "default"])?;
    let mut differ = Vec::new();
    for quantity in [
        ".", "0", "1", "+1", "100m", "1.", ".1", "0.5", "1.25Gi", "1e3", "1E3", "1e-3", "12.3e+2",
        "5n", "5u", "5k", "5M", "5G", "5T", "5P", "5E", "5Ki", "5Mi", "5Ti", "5Pi", "5Ei", "",
        "-1", "-0.5", "1.1.M", "1+1.0M", "0.1mi", "1i", "1 Mi", " 1", "1e", "1e3e", "256MB", "NaN",
        "inf", "++1", "1e+-3", "1ee3", "0x10", "1_000", "\u{0661}",
    ] {
        let mut pod = pod("default", false);
        let resources = json!({ "limits": { "memory": quantity } });
        pod["metadata"]["annotations"] =
            json!({ "ctrlmesh.kusionstack.io/proxy-resource": resources.to_string() });
        let ours = injected(pod, Sidecar::Native);
        let mut pod = self::pod("default", false);
        pod["spec"]["containers"][0]["resources"] = resources;
        let theirs = dry_run(&api, &pod);
        let is_taken = theirs.is_ok();
        if ours.is_ok() != is_taken {
            differ.push(format!("{quantity:?}: {:?}, {:?}", ours.err(), theirs.err()));
        } else if let Ok(ours) = ours {
            dry_run(&api, &ours)?;
        }
    }
    ensure!(differ.is_empty(), "{differ:#?}");
    Ok(())
}

const SCALARS: &[&str] = &[
    "yes",
    "Yes",
    "yEs",
    "n",
    "N",
    "on",
    "OFF",
    "true",
    "TRUE",
    "tRUE",
    "~",
    "null",
    "Null",
    "nULL",
    "0644",
    "0o17",
    "0O17",
    "017",
    "08",
    "089",
    "0x1F",
    "0X1f",
    "-0x1f",
    "0b11",
    "0B11",
    "-0b11",
    "1_000",
    "0_7",
    "_1",
    "1_",
    "+5",
    "-5",
    "--5",
    "+-5",
    "5.",
    ".5",
    "-.5",
    "+.5",
    "1e3",
    "1E-3",
    "1.5e2",
    "1e400",
    ".",
    "..",
    "1.2.3",
    "10m",
    "1Gi",
    "2024-01-02",
    "2024-01-02T03:04:05Z",
    "12:30",
    "12:30:45",
    "9223372036854775807",
    "18446744073709551616",
    "-9223372036854775808",
    "-9223372036854775809",
    "0.1",
    "123456789.125",
    "1e21",
    "=",
    "<",
    "'yes'",
    "\"0644\"",
    "!!str yes",
    "a b",
    "é",
];

/// Our reading of plain scalars against kubectl's own. (It prints what an `i64` does not hold as a
/// rounded float, so such numbers are not here.)
#[test]
fn yaml_means_what_it_means_to_kubectl() -> Result<()> {
    let api = ApiServer::start()?;
    let mut differences = String::new();
    for scalar in SCALARS {
        let value = yaml::parse(&format!("v: {scalar}")).ok().flatten();
        let is_key = value.is_some_and(|read| {
            read["v"].is_i64() || read["v"].is_string() || read["v"].is_boolean()
        });
        let key = if is_key && !scalar.starts_with(['=', '<', '!']) { scalar } else { "k" };
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: odd}}\nodd: {{v: {scalar}, {key}: k}}\n",
        );
        let args = ["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-"];
        let theirs = api.kubectl_client().run_with_input(&args, &text);
        let ours = yaml::parse(&text);
        let theirs = match theirs {
            Ok(json) => Some(serde_json::from_str::<Value>(&json)?["odd"].clone()),
            Err(_) => None,
        };
        let ours = ours.ok().flatten().map(|object| object["odd"].clone());
        if theirs != ours {
            differences.push_str(&format!("{scalar}: {theirs:?}, and ours {ours:?}\n"));
        }
    }
    ensure!(differences.is_empty(), "kubectl reads\n{differences}");
    Ok(())
}
