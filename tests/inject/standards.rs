//! The Pod Security Standards, for the containers that we add. They are from the text on
//! kubernetes.io, "Pod Security Standards", as of Kubernetes 1.34. The real evaluator judges the
//! same in `tests/e2e/tests/injected.rs`.

use std::ops::RangeInclusive;

use ctrlmesh::inject::{Settings, Sidecar, inject};
use serde_json::{Value, json};

use super::{done, golden, named, pod, pod_with};

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

pub(super) fn broken(pod: &Value, container: &Value) -> Vec<&'static str> {
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

/// What OpenShift's Security Context Constraints say of a container, as far as they differ
/// (openshift/cluster-kube-apiserver-operator, `bindata/bootkube/scc-manifests`).
struct Constraints {
    name: &'static str,
    /// The users: `None` for any but root.
    users: Option<RangeInclusive<u64>>,
    /// Capabilities that may be added; `None` for any.
    capabilities: Option<&'static [&'static str]>,
    drops_all: bool,
    seccomp: &'static str,
}

fn constraints() -> [Constraints; 3] {
    let net_bind = Some(&["NET_BIND_SERVICE"][..]);
    let v2 = |name, users| Constraints {
        name,
        users,
        capabilities: net_bind,
        drops_all: true,
        seccomp: "RuntimeDefault",
    };
    [
        // The namespace's range, as `openshift.io/sa.scc.uid-range` says it.
        v2("restricted-v2", Some(1_000_650_000..=1_000_659_999)),
        v2("nonroot-v2", None),
        Constraints {
            name: "privileged",
            users: Some(0..=u64::from(u32::MAX)),
            capabilities: None,
            drops_all: false,
            seccomp: "*",
        },
    ]
}

/// The reasons for which a container is refused.
fn refused(constraints: &Constraints, container: &Value) -> Vec<&'static str> {
    let context = &container["securityContext"];
    let user = context["runAsUser"].as_u64().unwrap();
    let may_run = match &constraints.users {
        Some(range) => range.contains(&user),
        None => user != 0,
    };
    let may_add =
        |name: &&str| constraints.capabilities.is_none_or(|allowed| allowed.contains(name));
    let rules = [
        ("runAsUser", may_run),
        ("capabilities", added(container).iter().all(may_add)),
        ("drop ALL", !constraints.drops_all || context["capabilities"]["drop"] == json!(["ALL"])),
        (
            "seccomp",
            ["*", context["seccompProfile"]["type"].as_str().unwrap()]
                .contains(&constraints.seccomp),
        ),
        ("privilege escalation", context["allowPrivilegeEscalation"] == false),
        ("privileged", context["privileged"] == false),
    ];
    rules.into_iter().filter(|(_, is_kept)| !is_kept).map(|(name, _)| name).collect()
}

/// OpenShift's admission knows none of the Pod Security Standards' levels.
#[test]
fn i20_openshift_admits_the_proxy_by_its_user_and_the_rules_by_privileged_alone() {
    let with_uid = |uid: &str| {
        let image = || "x".parse().unwrap();
        let settings = Settings::new(image(), image(), Sidecar::Native, uid.parse().unwrap());
        let mut pod = pod();
        inject(&mut pod, &settings.unwrap(), None).unwrap();
        pod
    };
    let mut table = String::new();
    for (uid, who) in [("1359", "the default user"), ("1000650001", "a user of the namespace")] {
        let injected = with_uid(uid);
        for constraints in constraints() {
            for name in ["ctrlmesh-proxy", "ctrlmesh-init"] {
                let container = named(&injected, "initContainers", name);
                let reasons = refused(&constraints, container);
                let verdict = match reasons.is_empty() {
                    true => "admitted".to_owned(),
                    false => reasons.join(", "),
                };
                table += &format!("{}, {who}: {name}: {verdict}\n", constraints.name);
            }
        }
    }
    golden("openshift.txt", &table);
}
