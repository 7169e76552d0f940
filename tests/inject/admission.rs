//! Admission of pods: what the API server asks and is answered.

use base64::{Engine, engine::general_purpose::STANDARD};
use ctrlmesh::{
    inject::{Enforces, Injected, Settings, Sidecar, inject},
    manager::{
        admission::{Answer, BadReview, Verdict, review},
        configs::Configs,
    },
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    golden, named, names, pod,
    reviews::{config, configs},
};

const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn settings(namespaces: Enforces) -> Settings {
    super::settings(Sidecar::Native).at_admission(namespaces)
}

/// A pod as ServiceAccount admission leaves it, of a controller that gives it a name later.
fn admitted() -> Value {
    let mut pod = pod();
    pod["metadata"] = json!({
        "generateName": "op-",
        "labels": { "ctrlmesh.kusionstack.io/enable-proxy": "true" },
    });
    let token = "kube-api-access-x2v4n";
    pod["spec"]["volumes"] = json!([{ "name": token, "projected": { "sources": [] } }]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": token, "mountPath": PATH, "readOnly": true }]);
    pod["spec"]["serviceAccountName"] = json!("robot");
    pod["fieldFromTheFuture"] = json!({ "deep": [1.50, null] });
    pod
}

fn asked(pod: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "5b1a9f5e",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "requestKind": { "group": "", "version": "v1", "kind": "Pod" },
            "namespace": "operators",
            "operation": "CREATE",
            "userInfo": { "username": "system:serviceaccount:kube-system:replicaset-controller" },
            "object": pod,
            "oldObject": null,
            "dryRun": false,
            "options": { "apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions" },
        },
    })
}

fn answer(pod: &Value, namespaces: Enforces) -> (Answer, Value) {
    let answer =
        review(asked(pod).to_string().as_bytes(), &settings(namespaces), &Configs::default())
            .unwrap();
    let mut body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(body["kind"], "AdmissionReview");
    let response = body["response"].take();
    assert_eq!(response["uid"], "5b1a9f5e");
    (answer, response)
}

/// The pod that the API server makes of it, by RFC 6902.
fn patched(pod: &Value, response: &Value) -> Value {
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")));
    let mut pod = pod.clone();
    for operation in patch(response).as_array().unwrap() {
        assert_eq!(operation["op"], "add");
        let (object, member) = operation["path"].as_str().unwrap().rsplit_once('/').unwrap();
        pod.pointer_mut(object).unwrap()[member] = operation["value"].clone();
    }
    pod
}

fn patch(response: &Value) -> Value {
    let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    serde_json::from_slice(&patch).unwrap()
}

#[test]
fn i12_an_admitted_pod_becomes_what_inject_makes_of_it() {
    let pod = admitted();
    let (answer, mut response) = answer(&pod, Enforces::Privileged);
    assert_eq!((answer.pod.as_str(), answer.verdict), ("operators/op-", Verdict::Injected));
    let mut wanted = pod.clone();
    let did = inject(&mut wanted, &super::settings(Sidecar::Native), None).unwrap();
    assert!(matches!(did, Injected::Done { .. }));
    assert_eq!(patched(&pod, &response), wanted);
    assert_eq!(wanted["fieldFromTheFuture"], pod["fieldFromTheFuture"]);
    response["patch"] = patch(&response);
    golden("review.json", &(serde_json::to_string_pretty(&response).unwrap() + "\n"));
}

#[test]
fn i13_a_pod_is_admitted_with_the_webhook_of_the_config_that_selects_it() {
    let pod = admitted();
    let webhook = json!({ "certDir": "/certs", "port": 9443, "certSecret": "kept" });
    let admitted = |configs: &Configs| {
        let body = asked(&pod).to_string();
        let answer = review(body.as_bytes(), &settings(Enforces::Privileged), configs).unwrap();
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        patched(&pod, &body["response"])
    };
    let mut here = config("blue", &webhook);
    here["metadata"]["namespace"] = json!("operators");
    let plain = admitted(&Configs::default());
    let redirected = admitted(&configs(&[here, config("red", &webhook)]));
    let init = |pod: &Value| named(pod, "initContainers", "ctrlmesh-init")["args"].to_string();
    assert!(init(&redirected).contains("--inbound=9443:5445"), "{}", init(&redirected));
    assert!(!init(&plain).contains("--inbound"));
    assert_eq!(admitted(&configs(&[config("red", &webhook)])), plain, "of another namespace");
}

#[test]
fn i12_a_second_call_changes_nothing_whatever_came_between() {
    for namespaces in [Enforces::Privileged, Enforces::Baseline] {
        let pod = admitted();
        let once = patched(&pod, &answer(&pod, namespaces).1);
        let (_, response) = answer(&once, namespaces);
        assert_eq!(patched(&once, &response), once);

        // A foreign webhook adds its own; ServiceAccount admission mounts what it finds there.
        let mut foreign = once.clone();
        let bundle =
            json!({ "name": "kube-api-access-ctrlmesh", "mountPath": PATH, "readOnly": true });
        let sidecar = json!({ "name": "mesh", "image": "mesh", "volumeMounts": [bundle] });
        foreign["spec"]["containers"].as_array_mut().unwrap().insert(0, sidecar);
        let again = patched(&foreign, &answer(&foreign, namespaces).1);
        assert_eq!(names(&again, "containers"), ["mesh", "app"]);
        let inits = names(&again, "initContainers");
        assert_eq!(inits, names(&once, "initContainers"));
        let mounts = named(&again, "containers", "mesh")["volumeMounts"].as_array().unwrap();
        assert_eq!(mounts.len(), 1);
        assert_eq!(patched(&again, &answer(&again, namespaces).1), again);
    }
}

/// The API server gives containers the defaults of a LimitRange between two reviews, and never
/// after the last.
#[test]
fn i12_the_defaults_of_a_limit_range_outlive_a_second_call() {
    for namespaces in [Enforces::Privileged, Enforces::Baseline] {
        let pod = admitted();
        let mut defaulted = patched(&pod, &answer(&pod, namespaces).1);
        for container in defaulted["spec"]["initContainers"].as_array_mut().unwrap() {
            container["resources"]["limits"]["cpu"] = json!("500m");
            container["resources"]["limits"]["ephemeral-storage"] = json!("1Gi");
            container["resources"]["requests"]["ephemeral-storage"] = json!("1Gi");
        }
        let again = patched(&defaulted, &answer(&defaulted, namespaces).1);
        assert_eq!(again, defaulted);
        // What ours set is ours.
        let proxy = |pod: &Value| named(pod, "initContainers", "ctrlmesh-proxy").clone();
        let at = defaulted["spec"]["initContainers"].as_array().unwrap().len() - 1;
        defaulted["spec"]["initContainers"][at]["resources"]["limits"]["memory"] = json!("1Mi");
        let again = patched(&defaulted, &answer(&defaulted, namespaces).1);
        assert_eq!(proxy(&again)["resources"]["limits"]["memory"], "256Mi");
        assert_eq!(proxy(&again)["resources"]["limits"]["cpu"], "500m");
    }
}

#[test]
fn i12_a_restart_policy_that_another_webhook_dropped_is_noted() {
    let pod = admitted();
    let (_, response) = answer(&pod, Enforces::Privileged);
    assert_eq!(response["warnings"], Value::Null);
    let once = patched(&pod, &response);
    let mut broken = once.clone();
    broken["spec"]["initContainers"][1].as_object_mut().unwrap().remove("restartPolicy").unwrap();
    let (_, response) = answer(&broken, Enforces::Privileged);
    assert_eq!(patched(&broken, &response), once);
    let warnings = response["warnings"].as_array().unwrap();
    assert!(warnings[0].as_str().unwrap().contains("restartPolicy: Always"), "{warnings:?}");
}

#[test]
fn i12_an_account_that_gives_no_token_is_refused_as_the_pod_is() {
    let without = |pod: &mut Value| {
        pod["spec"]["volumes"] = json!([]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([]);
    };
    let mut pod = admitted();
    without(&mut pod);
    let (answer_, response) = answer(&pod, Enforces::Privileged);
    assert_eq!(answer_.verdict.reason(), "NoToken");
    let said = response["status"]["message"].as_str().unwrap();
    assert!(
        said.starts_with("the pod's ServiceAccount has automountServiceAccountToken"),
        "{said}"
    );
    pod["metadata"]["annotations"] = json!({ "kridge.kusionstack.io/mount-token": "true" });
    let (answer_, response) = answer(&pod, Enforces::Privileged);
    assert_eq!(answer_.verdict, Verdict::Injected);
    let once = patched(&pod, &response);
    assert_eq!(patched(&once, &answer(&once, Enforces::Privileged).1), once);
    // A file says nothing of the account.
    let mut file = super::pod();
    without(&mut file);
    assert!(inject(&mut file, &super::settings(Sidecar::Native), None).is_ok());
}

#[test]
fn i20_a_namespace_without_net_admin_gets_env_mode_and_is_told() {
    const KEY: &str = "ctrlmesh.kusionstack.io/enable-iptables";
    let with = |value: Option<&str>| {
        let mut pod = admitted();
        pod["metadata"]["annotations"] =
            value.map_or_else(|| json!({}), |value| json!({ KEY: value }));
        pod
    };
    let mut told = String::new();
    for (value, warnings) in [(None, 1), (Some("odd"), 1), (Some("false"), 0)] {
        let pod = with(value);
        let (_, response) = answer(&pod, Enforces::Baseline);
        let injected = patched(&pod, &response);
        assert!(!injected.to_string().contains("NET_ADMIN"), "{value:?}");
        assert_eq!(injected["metadata"]["annotations"]["ctrlmesh.kusionstack.io/injected"], "env");
        assert_eq!(response["warnings"].as_array().map_or(0, Vec::len), warnings, "{value:?}");
        told += &response["warnings"][0].as_str().map_or(String::new(), |text| format!("{text}\n"));
        let privileged = patched(&pod, &answer(&pod, Enforces::Privileged).1);
        assert_eq!(privileged.to_string().contains("NET_ADMIN"), value != Some("false"));
    }
    let (answer_, response) = answer(&with(Some("true")), Enforces::Baseline);
    assert_eq!(answer_.verdict.reason(), "PodSecurity");
    told += response["status"]["message"].as_str().unwrap();
    golden("pod-security.txt", &(told + "\n"));
}

#[test]
fn what_is_not_asked_for_or_not_possible_has_no_patch() {
    let mut pod = admitted();
    pod["metadata"]["labels"] = json!({});
    let (answer_, response) = answer(&pod, Enforces::Privileged);
    assert_eq!(answer_.verdict, Verdict::Unchanged);
    assert_eq!(response, json!({ "uid": "5b1a9f5e", "allowed": true }));

    let mut pod = admitted();
    pod["spec"]["hostNetwork"] = json!(true);
    let (answer_, response) = answer(&pod, Enforces::Privileged);
    assert_eq!(answer_.verdict.reason(), "HostNetwork");
    let status = &response["status"];
    assert_eq!((&response["allowed"], &response["patch"]), (&json!(false), &Value::Null));
    assert_eq!((&status["code"], &status["reason"]), (&json!(422), &json!("Invalid")));
    assert!(status["message"].as_str().unwrap().contains("hostNetwork"));
}

#[test]
fn a_review_of_anything_but_a_new_pod_is_refused() {
    let refused = |change: fn(&mut Value)| {
        let mut asked = asked(&admitted());
        change(&mut asked);
        review(asked.to_string().as_bytes(), &settings(Enforces::Privileged), &Configs::default())
            .unwrap_err()
    };
    assert!(matches!(refused(|a| a["request"] = json!(null)), BadReview::Malformed(_)));
    assert!(matches!(refused(|a| a["request"]["uid"] = json!(1)), BadReview::Malformed(_)));
    assert!(matches!(
        refused(|a| a["apiVersion"] = json!("admission.k8s.io/v2")),
        BadReview::Other { .. }
    ));
    assert!(matches!(refused(|a| a["kind"] = json!("Review")), BadReview::Other { .. }));
    assert!(matches!(
        refused(|a| a["request"]["operation"] = json!("UPDATE")),
        BadReview::Another { .. }
    ));
    assert!(matches!(
        refused(|a| a["request"]["kind"]["group"] = json!("apps")),
        BadReview::Another { .. }
    ));
    assert!(matches!(
        refused(|a| a["request"]["kind"]["kind"] = json!("Binding")),
        BadReview::Another { .. }
    ));
    for body in [&b""[..], b"{", b"[]", b"null", b"\xff"] {
        let error = review(body, &settings(Enforces::Privileged), &Configs::default()).unwrap_err();
        assert!(matches!(error, BadReview::Malformed(_)), "{error}");
    }
    let many = |count: usize| {
        let mut asked = asked(&admitted());
        asked["request"]["object"]["spec"]["more"] = json!(vec![1; count]);
        review(asked.to_string().as_bytes(), &settings(Enforces::Privileged), &Configs::default())
    };
    assert!(many(99_000).is_ok());
    assert!(matches!(many(100_000).unwrap_err(), BadReview::TooManyValues(_)));
    // Nothing of a pod is in a message.
    let said = refused(|a| a["request"]["operation"] = json!("DELETE")).to_string();
    assert_eq!(said, "DELETE of /v1 Pod: only the creation of a Pod of v1 is reviewed here");
}

/// The places of a review's JSON.
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    into.push(at.to_owned());
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            places(value, &format!("{at}/{key}"), into);
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, value)| places(value, &format!("{at}/{index}"), into)),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// A review with a field of another type is answered or refused. A pod is patched once and for
    /// all.
    #[test]
    fn i12_any_review_is_answered(
        at in any::<prop::sample::Index>(),
        odd in prop::sample::select(vec![
            json!(null), json!(true), json!(-1), json!(""), json!([]), json!({}), json!([null]), json!([{}]),
            json!({ "name": "x" }), json!("\u{0}"),
        ]),
        is_second in any::<bool>(),
    ) {
        let mut pod = admitted();
        if is_second {
            pod = patched(&pod, &answer(&pod, Enforces::Privileged).1);
        }
        let mut asked = asked(&pod);
        let mut all = Vec::new();
        places(&asked, "", &mut all);
        *asked.pointer_mut(&all[at.index(all.len())]).unwrap() = odd;
        let settings = settings(Enforces::Privileged);
        let Ok(answer) = review(asked.to_string().as_bytes(), &settings, &Configs::default()) else { return Ok(()) };
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        prop_assert_eq!(&body["response"]["uid"], &asked["request"]["uid"]);
        if answer.verdict == Verdict::Injected {
            let once = patched(&asked["request"]["object"], &body["response"]);
            asked["request"]["object"] = once.clone();
            let again = review(asked.to_string().as_bytes(), &settings, &Configs::default()).unwrap();
            let body: Value = serde_json::from_slice(&again.body).unwrap();
            prop_assert_eq!(patched(&once, &body["response"]), once);
        }
    }
}
