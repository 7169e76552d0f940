//! Random pods: injecting twice is injecting once, and nothing that was there is lost.

use ctrlmesh::{
    inject::{Enforces, Injected, Sidecar, inject},
    manager::configs::Configs,
};
use proptest::{option, prelude::*, sample::select};
use serde_json::{Map, Value, json};

use super::{
    reviews::{config, configs},
    settings,
};

const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Variables that no container has.
const ENV_INJECT: &str = r#"[{"name":"a","env":[{"key":"C","value":"2"}]},
    {"name":"ctrlmesh-proxy","env":[{"key":"C","value":"3"}]}]"#;

fn maybe(
    key: &'static str,
    value: impl Strategy<Value = Value>,
) -> impl Strategy<Value = Map<String, Value>> {
    option::of(value)
        .prop_map(move |value| value.map(|value| (key.to_owned(), value)).into_iter().collect())
}

fn all(parts: Vec<Map<String, Value>>) -> Value {
    Value::Object(parts.into_iter().flatten().collect())
}

/// A field that no version of Kubernetes has.
fn unknown() -> impl Strategy<Value = Map<String, Value>> {
    let odd = select(vec![json!(null), json!([1, { "x": [] }]), json!({ "deep": { "er": 1.5 } })]);
    maybe("fieldFromTheFuture", odd)
}

fn mounts() -> impl Strategy<Value = Value> {
    let mount = select(vec![
        json!({ "name": "v", "mountPath": "/v", "recursiveReadOnly": "IfPossible" }),
        json!({ "name": "kube-api-access-abcde", "mountPath": PATH, "readOnly": true }),
        json!({ "name": "kube-api-access-abcde", "mountPath": "/elsewhere" }),
        json!({ "name": "v", "mountPath": PATH }),
        json!({ "name": "ctrlmesh-state", "mountPath": "/state" }),
    ]);
    prop::collection::vec(mount, 0..3).prop_map(Value::from)
}

fn env() -> impl Strategy<Value = Value> {
    let entry = select(vec![
        json!({ "name": "A", "value": "1" }),
        json!({ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }),
        json!({ "name": "B", "value": "$(KUBERNETES_SERVICE_HOST)" }),
        json!({ "name": "KUBERNETES_SERVICE_PORT", "value": "5443" }),
    ]);
    // The last is refused: seldom, so that most pods are injected.
    prop::collection::vec(entry, 0..2).prop_map(Value::from)
}

fn container(name: &'static str) -> impl Strategy<Value = Value> {
    let context = select(vec![json!({}), json!({ "runAsUser": 7 }), json!({ "privileged": true })]);
    let ports = prop_oneof![
        6 => select(vec![json!([]), json!([{ "containerPort": 80 }]), json!(null)]),
        1 => Just(json!([{ "containerPort": 443 }])),
    ];
    let policy = select(vec![json!("Always")]);
    let from = select(vec![
        json!([{ "configMapRef": { "name": "shared" } }]),
        json!([{ "prefix": "APP_", "secretRef": { "name": "s" } }, { "prefix": 3 }, null]),
        json!("none"),
    ]);
    let parts = (
        maybe("env", env()),
        maybe("volumeMounts", mounts()),
        maybe("securityContext", context),
        maybe("ports", ports),
        maybe("restartPolicy", policy),
        maybe("envFrom", from),
        unknown(),
    );
    parts.prop_map(move |(a, b, c, d, e, f, g)| {
        let name = Map::from_iter([("name".to_owned(), json!(name))]);
        all(vec![name, a, b, c, d, e, f, g])
    })
}

fn containers(least: usize) -> impl Strategy<Value = Value> {
    let container = prop_oneof![
        8 => container("a"), 8 => container("b"), 8 => container("z"), 1 => container("ctrlmesh-init")
    ];
    prop::collection::vec(container, least..4).prop_map(Value::from)
}

fn volumes() -> impl Strategy<Value = Value> {
    let volume = prop_oneof![
        4 => Just(json!({ "name": "v", "emptyDir": {} })),
        4 => Just(json!({ "name": "v", "secret": { "secretName": "s", "defaultMode": 256 } })),
        8 => Just(json!({ "name": "kube-api-access-abcde", "projected": { "sources": [] } })),
        1 => Just(json!({ "name": "ctrlmesh-mesh-ca", "emptyDir": {} })),
    ];
    prop::collection::vec(volume, 0..3).prop_map(Value::from)
}

/// Aliases; the last two are for names of the API server.
fn host_aliases() -> impl Strategy<Value = Value> {
    let alias = prop_oneof![
        8 => select(vec![
            json!({ "ip": "127.0.0.1", "hostnames": ["a.example", "kubernetes.example"] }),
            json!({ "ip": "127.0.0.1", "hostnames": [] }),
            json!({ "ip": "127.0.0.1" }),
            json!({ "ip": "10.0.0.1", "hostnames": ["b.example"] }),
        ]),
        1 => select(vec![
            json!({ "ip": "127.0.0.1", "hostnames": ["kubernetes", "kubernetes.default"] }),
            json!({ "ip": "10.0.0.1", "hostnames": ["kubernetes.default.svc.example"] }),
        ]),
    ];
    prop::collection::vec(alias, 0..3).prop_map(Value::from)
}

/// The pod's securityContext; two have a sysctl of ours.
fn security() -> impl Strategy<Value = Value> {
    let ports = json!({ "name": "net.ipv4.ip_unprivileged_port_start", "value": "0" });
    let other = json!({ "name": "net.ipv4.tcp_syncookies", "value": "1" });
    prop_oneof![
        4 => select(vec![json!({}), json!({ "fsGroup": 1 }), json!({ "sysctls": [other] })]),
        1 => select(vec![json!({ "sysctls": [ports] }), json!({ "sysctls": [other, ports] })]),
    ]
}

fn pods() -> impl Strategy<Value = Value> {
    let flags = select(vec![json!("false"), json!("true")]);
    let annotations = (
        maybe("ctrlmesh.kusionstack.io/enable-iptables", flags),
        maybe("ctrlmesh.kusionstack.io/env-sync", select(vec![json!("A"), json!("C=1,D=$(C)")])),
        maybe("kridge.kusionstack.io/env-inject", select(vec![json!("[]"), json!(ENV_INJECT)])),
        maybe("kridge.kusionstack.io/log-path", select(vec![json!("/v"), json!("/logs")])),
        unknown_text(),
    )
        .prop_map(|(a, b, c, d, e)| all(vec![a, b, c, d, e]));
    let spec = (
        containers(1),
        maybe("initContainers", containers(0)),
        maybe("volumes", volumes()),
        maybe("hostNetwork", Just(json!(false))),
        maybe("hostAliases", host_aliases()),
        maybe("securityContext", security()),
        unknown(),
    )
        .prop_map(|(containers, a, b, c, d, e, f)| {
            let containers = Map::from_iter([("containers".to_owned(), containers)]);
            all(vec![containers, a, b, c, d, e, f])
        });
    (maybe("annotations", annotations), spec, unknown()).prop_map(|(annotations, spec, unknown)| {
        let labels = json!({ "kridge.kusionstack.io/enable-proxy": "true" });
        let metadata = all(vec![Map::from_iter([("labels".to_owned(), labels)]), annotations]);
        let pod = Map::from_iter([("metadata".to_owned(), metadata), ("spec".to_owned(), spec)]);
        all(vec![pod, unknown])
    })
}

fn unknown_text() -> impl Strategy<Value = Map<String, Value>> {
    maybe("example.com/note", select(vec![json!(""), json!("x"), json!("é\n")]))
}

/// Whether nothing of `before` is lost in `after`: list items may have got company, and keep their
/// order; admission's own token gives way.
fn keeps(after: &Value, before: &Value) -> bool {
    match (after, before) {
        (Value::Object(after), Value::Object(before)) => before.iter().all(|(key, value)| {
            let is_empty = value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(Map::is_empty);
            match after.get(key) {
                None => is_empty || is_token_list(value),
                Some(after) => is_empty || keeps(after, value),
            }
        }),
        (Value::Array(after), Value::Array(before)) => {
            let mut rest = after.iter();
            before.iter().filter(|item| !is_token(item)).all(|item| rest.any(|a| keeps(a, item)))
        }
        (after, before) => after == before,
    }
}

fn is_token(item: &Value) -> bool {
    item["name"] == "kube-api-access-abcde"
        && (item["mountPath"] == PATH || item["projected"].is_object())
}

fn is_token_list(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(is_token))
}

fn levels() -> impl Strategy<Value = Enforces> {
    select(vec![Enforces::Privileged, Enforces::Baseline])
}

fn sidecars() -> impl Strategy<Value = Sidecar> {
    select(vec![Sidecar::Native, Sidecar::Classic])
}

/// The config of the pods, with a webhook server or not.
fn webhooks() -> impl Strategy<Value = Configs> {
    let webhook = select(vec![
        json!(null),
        json!({ "certDir": "/v", "port": 9443 }),
        json!({ "certDir": "/v/certs", "port": 443 }),
        json!({ "certDir": "/v", "port": 9443, "certSecret": "s" }),
    ]);
    webhook.prop_map(|webhook| {
        let mut config = config("blue", &webhook);
        config["spec"]["selector"]["matchLabels"] =
            json!({ "kridge.kusionstack.io/enable-proxy": "true" });
        configs(&[config])
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// The level of a namespace may change, and with it the mode.
    #[test]
    fn i20_nothing_of_one_mode_is_left_in_the_other(
        pod in pods(), first in levels(), then in levels(),
    ) {
        let at = |level| settings(Sidecar::Native).at_admission(level);
        let (mut once, mut twice) = (pod.clone(), pod);
        let did = inject(&mut once, &at(then), None);
        if !matches!(inject(&mut twice, &at(first), None), Ok(Injected::Done { .. })) {
            return Ok(());
        }
        prop_assert_eq!(&inject(&mut twice, &at(then), None), &did);
        if did.is_ok() {
            prop_assert_eq!(twice, once);
        }
    }

    #[test]
    fn i12_twice_is_once(
        pod in pods(),
        (first, before) in (sidecars(), webhooks()),
        (then, after) in (sidecars(), webhooks()),
    ) {
        let chosen = |configs: &Configs| configs.of_pod("ns", &pod).cloned();
        let (before, after) = (chosen(&before), chosen(&after));
        let mut once = pod.clone();
        let did = inject(&mut once, &settings(then), after.as_ref());
        if did.is_err() {
            prop_assert_eq!(&once, &pod);
        }
        let mut twice = pod.clone();
        if !matches!(inject(&mut twice, &settings(first), before.as_ref()), Ok(Injected::Done { .. })) {
            return Ok(());
        }
        prop_assert!(keeps(&twice, &pod), "{twice:#}");
        let again = inject(&mut twice, &settings(then), after.as_ref());
        prop_assert_eq!(&again, &did);
        if did.is_ok() {
            prop_assert_eq!(twice, once);
        }
    }
}
