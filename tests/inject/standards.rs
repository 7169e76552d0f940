//! The Pod Security Standards, from their text (kubernetes.io, "Pod Security Standards", as of
//! Kubernetes 1.34), for the containers that we add. The real evaluator judges the same in
//! `tests/e2e/tests/injected.rs`.

use ctrlmesh::manager::inject::Sidecar;
use serde_json::{Value, json};

use super::{done, named, pod, pod_with};

/// A rule: its name in the text, and whether a container of the pod keeps it.
type Rule = (&'static str, fn(pod: &Value, container: &Value) -> bool);

fn context<'a>(container: &'a Value, field: &str) -> &'a Value {
    &container["securityContext"][field]
}

fn added(container: &Value) -> Vec<&str> {
    let add = container["securityContext"]["capabilities"]["add"].as_array();
    add.into_iter().flatten().map(|name| name.as_str().unwrap()).collect()
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

const BASELINE: [Rule; 9] = [
    ("HostProcess", |_, c| context(c, "windowsOptions").is_null()),
    ("Privileged Containers", |_, c| *context(c, "privileged") != true),
    ("Capabilities", |_, c| added(c).iter().all(|name| DEFAULT_CAPABILITIES.contains(name))),
    ("Host Ports", |_, c| {
        let ports = c["ports"].as_array().into_iter().flatten();
        ports.into_iter().all(|port| port["hostPort"].is_null())
    }),
    ("Host Probes / Lifecycle Hooks", |_, c| !c.to_string().contains("\"host\"")),
    ("AppArmor", |_, c| context(c, "appArmorProfile").is_null()),
    ("SELinux", |_, c| context(c, "seLinuxOptions").is_null()),
    ("/proc Mount Type", |_, c| *context(c, "procMount") == "Default"),
    ("HostPath Volumes", |pod, _| !pod["spec"]["volumes"].to_string().contains("hostPath")),
];

const RESTRICTED: [Rule; 6] = [
    ("Volume Types", |pod, _| {
        let allowed =
            ["name", "configMap", "csi", "downwardAPI", "emptyDir", "projected", "secret"];
        let volumes = pod["spec"]["volumes"].as_array().unwrap().iter();
        volumes
            .flat_map(|volume| volume.as_object().unwrap().keys())
            .all(|k| allowed.contains(&&**k))
    }),
    ("Privilege Escalation", |_, c| *context(c, "allowPrivilegeEscalation") == false),
    ("Running as Non-root", |_, c| *context(c, "runAsNonRoot") == true),
    ("Running as Non-root user", |_, c| *context(c, "runAsUser") != 0),
    ("Seccomp", |_, c| context(c, "seccompProfile")["type"] == "RuntimeDefault"),
    ("Capabilities (restricted)", |_, c| {
        c["securityContext"]["capabilities"]["drop"] == json!(["ALL"])
            && added(c).iter().all(|name| *name == "NET_BIND_SERVICE")
    }),
];

fn broken(pod: &Value, container: &Value) -> Vec<&'static str> {
    let rules = BASELINE.iter().chain(&RESTRICTED);
    rules.filter(|(_, is_kept)| !is_kept(pod, container)).map(|(name, _)| *name).collect()
}

#[test]
fn i20_the_proxy_keeps_every_standard_and_init_breaks_what_net_admin_needs() {
    // What a pod may say for all of its containers must not reach ours.
    let hostile = pod_with(
        "/spec/securityContext",
        json!({
            "runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": false,
            "seccompProfile": { "type": "Unconfined" },
        }),
    );
    for pod in [pod(), hostile] {
        for (sidecar, list) in
            [(Sidecar::Native, "initContainers"), (Sidecar::Classic, "containers")]
        {
            let injected = done(pod.clone(), sidecar);
            let proxy = named(&injected, list, "ctrlmesh-proxy");
            assert_eq!(broken(&injected, proxy), [""; 0]);
            let init = named(&injected, "initContainers", "ctrlmesh-init");
            assert_eq!(
                broken(&injected, init),
                [
                    "Capabilities",
                    "Running as Non-root",
                    "Running as Non-root user",
                    "Capabilities (restricted)",
                ]
            );
            assert_eq!(added(init), ["NET_ADMIN"]);
        }
    }
}

#[test]
fn i20_every_field_is_explicit() {
    let injected = done(pod(), Sidecar::Native);
    let wanted = |uid: u32, capabilities: Value| {
        json!({
            "allowPrivilegeEscalation": false,
            "capabilities": capabilities,
            "privileged": false,
            "procMount": "Default",
            "readOnlyRootFilesystem": true,
            "runAsGroup": uid,
            "runAsNonRoot": uid != 0,
            "runAsUser": uid,
            "seccompProfile": { "type": "RuntimeDefault" },
        })
    };
    let of = |name: &str| &named(&injected, "initContainers", name)["securityContext"];
    let net_admin = json!({ "drop": ["ALL"], "add": ["NET_ADMIN"] });
    assert_eq!(of("ctrlmesh-init"), &wanted(0, net_admin));
    assert_eq!(of("ctrlmesh-proxy"), &wanted(1359, json!({ "drop": ["ALL"] })));
}
