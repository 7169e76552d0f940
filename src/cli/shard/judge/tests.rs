use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{judgement::Because, *};
use crate::{
    doctor::CannotLook,
    golden,
    shard::{
        args::By,
        before,
        facts::{CustomKind, Hook, MeshFacts, Workload},
        may_apply,
        read::{
            release,
            rights::{Account, Rights, Roles},
        },
        root, text,
    },
};
use ctrlmesh_api::{RootTarget, TargetKind};
use ctrlmesh_policy::{Draft, Kind, draft};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The rights of the account `cm/op` by these rules of a ClusterRole, and to a lock of kube-system.
fn rights(rules: &Value) -> Rights {
    let subject = json!([{"kind": "ServiceAccount", "name": "op", "namespace": "cm"}]);
    let role =
        |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "op"});
    let of_lock = json!({"metadata": {"name": "op", "namespace": "kube-system"}});
    let lock = json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                      "resourceNames": ["op-lock"], "verbs": ["get", "update", "patch"]});
    let with = |mut object: Value, fields: Value| {
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    let roles = Roles {
        cluster_bindings: vec![read(json!({"metadata": {"name": "op"}, "subjects": subject,
                                           "roleRef": role("ClusterRole")}))],
        bindings: vec![read(with(
            of_lock.clone(),
            json!({"subjects": subject, "roleRef": role("Role")}),
        ))],
        cluster_roles: vec![read(json!({"metadata": {"name": "op"}, "rules": rules}))],
        roles: vec![read(with(of_lock, json!({"rules": [lock]})))],
    };
    Rights::of(Account { namespace: "cm", name: "op" }, &roles)
}

fn object() -> Value {
    let labels = json!({"app": "op"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "op", "namespace": "cm",
            "annotations": {"meta.helm.sh/release-name": "cm", "meta.helm.sh/release-namespace": "cm"},
        },
        "spec": {
            "replicas": 1,
            "strategy": {"type": "RollingUpdate",
                         "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"serviceAccountName": "op",
                         "containers": [{"name": "controller", "image": "op", "args": ["--v=2"]}]},
            },
        },
    })
}

fn kind(plural: &str, name: &str, is_namespaced: bool, spec: &Value) -> CustomKind {
    CustomKind {
        group: "example.com".to_owned(),
        plural: plural.to_owned(),
        kind: name.to_owned(),
        is_namespaced,
        schema: json!({"properties": {"spec": spec}}),
        objects: Some([("a".to_owned(), 2), ("b".to_owned(), 3)].into()),
    }
}

/// A Deployment of an operator with a lock in kube-system, by a chart of Helm.
fn facts() -> Facts {
    let text = json!({"type": "string"});
    let reference =
        json!({"properties": {"parentRef": {"properties": {"name": text, "namespace": text}}}});
    let template =
        "replicas: {{ .Values.replicaCount }}\n{{ .Values.strategy }}\n{{ .Values.podLabels }}";
    let stored = release::tests::stored(template);
    let lease = json!({"metadata": {"name": "op-lock", "namespace": "kube-system"},
                       "spec": {"holderIdentity": "op-5d4f-x2x-controller"}});
    let other = json!({"metadata": {"name": "other", "namespace": "cm"},
                       "spec": {"holderIdentity": "op-5d4f-x2xy_1"}});
    Facts {
        workload: Workload {
            namespace: "cm".to_owned(),
            target: RootTarget { kind: TargetKind::Deployment, name: "op".to_owned() },
            object: object(),
        },
        mesh: MeshFacts {
            has_definition: Ok(true),
            has_pods_policy: Ok(true),
            injected_namespaces: Ok(Some(vec![read(json!({"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]},
            ]}))])),
        },
        namespace: Ok([("kubernetes.io/metadata.name".to_owned(), "cm".to_owned())].into()),
        pods: Ok(vec![read(json!({"metadata": {"name": "op-5d4f-x2x", "namespace": "cm"}}))]),
        rights: Ok(rights(&json!([
            {"apiGroups": ["example.com"], "resources": ["widgets", "widgets/status", "issuers/status", "issuers"],
             "verbs": ["get", "list", "watch", "update"]},
            {"apiGroups": ["example.com"], "resources": ["monitors"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["secrets", "events"], "verbs": ["*"]},
        ]))),
        leases: Ok(vec![read(lease), read(other)]),
        hooks: Ok(Vec::new()),
        budgets: Ok(Vec::new()),
        autoscalers: Ok(Vec::new()),
        configs: Ok(Vec::new()),
        kinds: Ok(vec![
            kind("widgets", "Widget", true, &reference),
            kind("issuers", "Issuer", false, &json!({})),
            kind("monitors", "Monitor", true, &json!({})),
        ]),
        release: Ok(release::read(&stored, "Deployment", "cert-manager")),
    }
}

fn wanted() -> Wanted {
    Wanted { shards: 3, by: By::Namespace, resources: Vec::new() }
}

/// The remarks about these facts of this weight.
fn said(facts: &Facts, weight: Weight) -> Vec<String> {
    let judgement = judge(facts, &wanted());
    let of = judgement.remarks.into_iter().filter(|remark| remark.weight == weight);
    of.map(|remark| format!("{}: {}", remark.says, remark.fix)).collect()
}

/// A check that one of these remarks has this text.
#[track_caller]
fn says(facts: &Facts, weight: Weight, expected: &str) {
    let said = said(facts, weight);
    assert!(said.iter().any(|says| says.contains(expected)), "{expected}: {said:#?}");
    assert!(!self::said(&self::facts(), weight).iter().any(|says| says.contains(expected)));
}

/// A root that is printed is one that proxies take.
#[track_caller]
fn is_taken(facts: &Facts, wanted: &Wanted) -> Value {
    let judgement = judge(facts, wanted);
    let text = root::text(&facts.workload, &judgement, wanted);
    let object: Value = serde_yaml::from_str(&text).unwrap();
    let config = read(object.clone());
    let checked = draft(Kind::ShardingConfig, &config);
    assert!(matches!(checked, Ok(Draft::Root(_))), "{checked:?}\n{text}");
    assert!(before::is_ours(&config, &facts.workload.target));
    object
}

#[test]
fn a_workload_is_printed_with_its_root_and_patch() {
    let facts = facts();
    is_taken(&facts, &wanted());
    golden::check("shard.txt", &text(&facts, &judge(&facts, &wanted()), &wanted()));
    let by_uid = Wanted { by: By::Uid, ..wanted() };
    let root = is_taken(&facts, &by_uid);
    assert_eq!(root["spec"]["root"]["auto"]["by"], "Uid");
    let mut all = facts;
    all.workload.object["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] =
        json!("op:apps");
    all.hooks = Ok(vec![hook("widgets", "Fail")]);
    all.workload.object["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "certs", "secret": {"secretName": "op-tls"}}]);
    all.workload.object["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "certs", "mountPath": "/certs/"}]);
    all.leases = Err(CannotLook::Failed("no answer in 10 s".to_owned()));
    let selector = json!({"properties": {"monitorNamespaceSelector": {"type": "object"}}});
    all.kinds.as_mut().unwrap()[0] = kind("widgets", "Widget", true, &selector);
    is_taken(&all, &wanted());
    golden::check("shard-all.txt", &text(&all, &judge(&all, &wanted()), &wanted()));
}

#[test]
fn the_locks_are_those_that_a_pod_holds_or_a_role_names() {
    let mut facts = facts();
    let names = |facts: &Facts| -> Vec<(String, Option<String>)> {
        let locks = judge(facts, &wanted()).locks.into_iter();
        locks.map(|lock| (lock.part.name, lock.part.namespace)).collect()
    };
    let lock = ("op-lock".to_owned(), Some("kube-system".to_owned()));
    let is_it = |facts: &Facts| names(facts) == std::slice::from_ref(&lock);
    assert!(is_it(&facts), "and not that of a pod with a longer name");
    facts.leases = Ok(Vec::new());
    assert!(is_it(&facts), "its role names it");
    facts.rights = Ok(Rights::default());
    assert_eq!(names(&facts), []);
    says(&facts, Weight::Unknown, "its locks are not known");
    let root = is_taken(&facts, &wanted());
    assert_eq!((&root["spec"]["ring"], &root["spec"]["controller"]), (&json!("op"), &Value::Null));
    let held = |name: &str| {
        read(json!({"metadata": {"name": name, "namespace": "cm"},
                                        "spec": {"holderIdentity": "op-5d4f-x2x_9a"}}))
    };
    facts.leases = Ok(vec![held("two"), held("one")]);
    assert_eq!(names(&facts), [("one".to_owned(), None), ("two".to_owned(), None)]);
    says(&facts, Weight::Warning, "it has 2 locks: one, two");
}

fn hook(resource: &str, policy: &str) -> Hook {
    Hook {
        of: "ValidatingWebhookConfiguration op".to_owned(),
        rules: vec![read(json!({"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"],
                                "resources": [resource]}))],
        namespaces: None,
        fails_closed: policy != "Ignore",
        service: read(json!({"spec": {"ports": [{"port": 443, "targetPort": 9443}]}})),
        port: 443,
    }
}

#[test]
fn bad_an_operator_that_refuses_the_start_of_its_own_pods_is_refused() {
    let with = |hook: Hook| Facts { hooks: Ok(vec![hook]), ..facts() };
    let refuses = "refuses the start of its own pods";
    says(&with(hook("pods", "Fail")), Weight::Refused, refuses);
    says(&with(hook("*", "Fail")), Weight::Refused, refuses);
    says(&with(hook("leases", "Fail")), Weight::Refused, refuses);
    let exempt = json!({"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["cm"]}]});
    let exempt = Hook { namespaces: Some(read(exempt)), ..hook("pods", "Fail") };
    for hook in [hook("pods", "Ignore"), hook("widgets", "Fail"), exempt] {
        assert_eq!(said(&with(hook), Weight::Refused), [""; 0]);
    }
    says(
        &with(hook("widgets", "Fail")),
        Weight::Warning,
        "the API server refuses those requests while",
    );
    says(&with(hook("widgets", "Ignore")), Weight::Warning, "their certificate is in no volume");
}

#[test]
fn bad_what_stands_in_the_way_is_refused() {
    let with = |at: &str, value: Value| {
        let mut facts = facts();
        let (of, field) = at.rsplit_once('/').unwrap();
        facts.workload.object.pointer_mut(of).unwrap()[field] = value;
        facts
    };
    let pod = "/spec/template/spec";
    for (at, value, expected) in [
        (
            format!("{pod}/hostNetwork"),
            json!(true),
            "its pods can have no proxy: the pod has hostNetwork",
        ),
        ("/spec/paused".to_owned(), json!(true), "the Deployment is paused"),
        (
            format!("{pod}/containers/0/args"),
            json!(["--client-certificate=/c"]),
            "the proxy cannot show a client's certificate",
        ),
    ] {
        says(&with(&at, value), Weight::Refused, expected);
    }
    for (at, value, expected) in [
        (
            format!("{pod}/containers/0/args"),
            json!(["--kubeconfig=/k"]),
            "container controller has --kubeconfig=/k",
        ),
        (
            format!("{pod}/containers/0/env"),
            json!([{"name": "KUBECONFIG", "value": "/k"}]),
            "has KUBECONFIG",
        ),
        (
            format!("{pod}/volumes"),
            json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]),
            "all pods mount PersistentVolumeClaim data",
        ),
        (
            "/metadata/managedFields".to_owned(),
            json!([{"manager": "kustomize", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]),
            "kustomize applies replicas",
        ),
        (
            "/metadata/labels".to_owned(),
            json!({"kustomize.toolkit.fluxcd.io/name": "apps"}),
            "Flux (apps) writes it",
        ),
    ] {
        says(&with(&at, value), Weight::Warning, expected);
    }
}

#[test]
fn bad_a_workload_that_another_config_has_is_refused() {
    let named = |name: &str, spec: Value| -> Facts {
        let config = json!({"metadata": {"name": name, "namespace": "cm"}, "spec": spec});
        Facts { configs: Ok(vec![read(config)]), ..facts() }
    };
    let limits = json!([{"relateResources": [{"apiGroups": [""], "resources": ["pods"]}],
                         "selector": {"matchLabels": {"a": "b"}}}]);
    let by_hand = json!({"selector": {"matchLabels": {"app": "op"}}, "limits": limits});
    says(&named("blue", by_hand), Weight::Refused, "ShardingConfig blue has its pods");
    let other = json!({"selector": {"matchLabels": {"app": "x"}}, "limits": limits});
    says(&named("op", other.clone()), Weight::Refused, "another ShardingConfig has the name op");
    assert_eq!(said(&named("x", other), Weight::Refused), [""; 0]);
    let target = json!({"kind": "Deployment", "name": "op"});
    let root = json!({"root": {"prefix": "o", "target": target,
                               "auto": {"everyShardReplicas": 1, "by": "Namespace"}}});
    says(&named("mine", root), Weight::Refused, "ShardingConfig mine has its pods");
}

#[test]
fn bad_a_mesh_that_does_not_inject_is_refused() {
    let with = |change: fn(&mut MeshFacts)| {
        let mut facts = facts();
        change(&mut facts.mesh);
        facts
    };
    says(
        &with(|mesh| mesh.has_definition = Ok(false)),
        Weight::Refused,
        "the cluster has no ShardingConfigs",
    );
    says(&with(|mesh| mesh.has_pods_policy = Ok(false)), Weight::Refused, "--set deployments=true");
    says(
        &with(|mesh| mesh.injected_namespaces = Ok(None)),
        Weight::Refused,
        "no webhook injects pods",
    );
    let labels = [("kubernetes.io/metadata.name".to_owned(), "kube-system".to_owned())].into();
    let system = Facts { namespace: Ok(labels), ..facts() };
    says(&system, Weight::Refused, "the manager injects no pods of namespace cm");
}

#[test]
fn bad_what_cannot_be_read_is_unknown() {
    let right = CannotLook::Right {
        verb: "list",
        resource: "clusterroles.rbac.authorization.k8s.io".to_owned(),
        place: String::new(),
    };
    let facts = Facts { rights: Err(right), kinds: Ok(Vec::new()), ..facts() };
    says(
        &facts,
        Weight::Unknown,
        "the rights of its account: cannot look, needs the right to list clusterroles",
    );
    is_taken(&facts, &wanted());
    assert!(may_apply(&facts, &judge(&facts, &wanted())).is_ok(), "a pod holds its lock");
    let leases = Err(CannotLook::Failed("no answer in 10 s".to_owned()));
    let unread = Facts { leases, ..facts.clone() };
    let refused = may_apply(&unread, &judge(&unread, &wanted())).unwrap_err().to_string();
    assert!(
        refused.contains("and they are not known: cannot look: no answer in 10 s"),
        "{refused}"
    );
    let by_uid = judge(&facts, &Wanted { by: By::Uid, ..wanted() });
    assert!(by_uid.is_refused(), "{by_uid:?}");
}

#[test]
fn bad_an_autoscaler_or_a_budget_that_does_not_fit_is_a_warning() {
    let autoscaler = |max: i32| {
        let of = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "op"});
        let spec = json!({"scaleTargetRef": of, "minReplicas": 1, "maxReplicas": max});
        Facts {
            autoscalers: Ok(vec![read(json!({"metadata": {"name": "op"}, "spec": spec}))]),
            ..facts()
        }
    };
    says(&autoscaler(2), Weight::Warning, "with 1 to 2 replicas, allows no such number of shards");
    says(&autoscaler(5), Weight::Warning, "with 1 to 5 replicas, changes the number of shards");
    let spec = json!({"selector": {"matchLabels": {"app": "op"}}, "maxUnavailable": 0});
    let budget = json!({"metadata": {"name": "never"}, "spec": spec});
    let with = Facts { budgets: Ok(vec![read(budget)]), ..facts() };
    says(&with, Weight::Warning, "PodDisruptionBudget never forbids every eviction");
}

#[test]
fn whole_namespaces_that_do_not_suit_are_named() {
    let with = |change: fn(&mut Vec<CustomKind>)| {
        let mut facts = facts();
        change(facts.kinds.as_mut().unwrap());
        facts
    };
    let in_one = with(|kinds| {
        let one: BTreeMap<_, _> = [("argocd".to_owned(), 7)].into();
        kinds[0].objects = Some(one);
        kinds[1].objects = None;
    });
    says(&in_one, Weight::Warning, "all 7 objects that it reconciles are in namespace argocd");
    let gathers = with(|kinds| {
        let selectors =
            json!({"properties": {"monitorNamespaceSelector": {}, "podNamespaceSelector": {}}});
        kinds[0] = kind("widgets", "Widget", true, &selectors);
    });
    says(
        &gathers,
        Weight::Warning,
        "objects of several namespaces are gathered by Widget's spec.podNamespaceSelector",
    );
    let shared = judge(&gathers, &wanted()).shared;
    let [Because { part, .. }] = &*shared else { panic!("{shared:?}") };
    assert_eq!(
        (&*part.resources, &*part.namespaces),
        (&["monitors".to_owned()][..], &["*".to_owned()][..])
    );
    assert_eq!(part.write, None);
    is_taken(&gathers, &wanted());
    let mut creates = facts();
    creates.rights = Ok(rights(&json!([
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["create"]}])));
    says(&creates, Weight::Warning, "it may create namespaces");
}
