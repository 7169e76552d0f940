//! Each finding, by a cluster in which one thing is not well.

mod reviews;
mod rights;
mod scene;

use serde_json::{Value, json};
use strum::VariantArray;

use self::scene::{
    NOW, at, binding, ca_bundle, config, deployment, found, healthy, lease, metrics, namespace,
    now, object, one, pod, readyz, right, status, webhooks,
};
use super::judge;
use crate::{
    doctor::{
        Answer, CannotLook, Check, Facts, OwnFile,
        Severity::{Error, Ok as Good, Warning},
        json as to_json, text,
    },
    golden,
};

#[test]
fn all_is_well_in_a_healthy_cluster_and_most_checks_say_so() {
    let findings = judge(&healthy());
    let bad: Vec<_> = findings.iter().filter(|finding| finding.severity != Good).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let silent = |check: &&Check| findings.iter().all(|finding| finding.check != **check);
    let silent: Vec<_> = Check::VARIANTS.iter().filter(silent).collect();
    // A level, a LimitRange and the proxy's own files are not there, and no pod is in a ring or elects.
    let wanted = [
        &Check::LimitRange,
        &Check::PodSecurity,
        &Check::Files,
        &Check::LeasesRight,
        &Check::Locks,
        &Check::LocksRight,
        &Check::Writes,
        &Check::Related,
    ];
    assert_eq!(silent, wanted);
}

#[test]
fn ids_are_stable() {
    let ids: Vec<_> = Check::VARIANTS.iter().map(|check| check.id()).collect();
    let wanted: Vec<_> = (1..=37).map(|number| format!("D{number:02}")).collect();
    assert_eq!(ids, wanted);
    assert_eq!([Check::Bundle, Check::Readyz].map(Check::id), ["D09", "D22"]);
}

#[test]
fn an_api_server_that_does_not_answer_is_the_only_finding() {
    let gone = |facts: &mut Facts| {
        facts.server = Err(CannotLook::Failed("connection refused".into()));
        (facts.cluster, facts.pod) = (None, None);
    };
    one(Check::ApiServer, Error, "does not answer: connection refused", gone);
    let mut facts = healthy();
    gone(&mut facts);
    assert_eq!(judge(&facts).len(), 1);
}

#[test]
fn clocks_may_differ_by_a_minute() {
    let here = |seconds| move |facts: &mut Facts| facts.here = object(json!(at(seconds)));
    one(Check::Clock, Good, "within 60 s", here(60));
    one(Check::Clock, Good, "within 60 s", here(-60));
    one(Check::Clock, Warning, "61 s ahead of", here(61));
    one(Check::Clock, Warning, "600 s behind", here(-600));
    one(Check::Clock, Warning, "no Date", |facts| {
        facts.server.as_mut().unwrap().date = None;
    });
}

#[test]
fn definition_and_webhooks_are_there() {
    one(Check::Definition, Error, "does not know", |f| f.manager().has_definition = Ok(false));
    one(Check::Webhooks, Error, "is not there", |f| f.manager().webhooks = Ok(None));
    one(Check::Webhooks, Error, "has no webhook", |f| {
        f.manager().webhooks = Ok(Some(object(json!({ "metadata": {} }))));
    });
    assert_eq!(found(Check::CaBundle, |f| f.manager().webhooks = Ok(None)), []);
}

#[test]
fn each_webhook_has_a_ca_bundle_that_is_valid() {
    let with = |ca_bundle: Value| {
        let mut webhooks = webhooks();
        webhooks["webhooks"][1]["clientConfig"]["caBundle"] = ca_bundle;
        let found = found(Check::CaBundle, |f| f.manager().webhooks = Ok(Some(object(webhooks))));
        assert_eq!(found[0].0, Good, "the first is another");
        found[1].clone()
    };
    for (ca_bundle, severity, says) in [
        (ca_bundle(1), Good, "webhook baseline: its caBundle is valid until 2030-01-01T00:00:01Z"),
        (ca_bundle(0), Error, "ended at 2030-01-01T00:00:00Z, so pods that ask"),
        (Value::Null, Error, "its caBundle is empty"),
        (json!(""), Error, "its caBundle is empty"),
        (json!("eA=="), Error, "has no certificate"),
    ] {
        let (is, said) = with(ca_bundle);
        assert_eq!(is, severity, "{said}");
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn the_manager_runs_and_leads() {
    let ready =
        |ready| move |f: &mut Facts| f.manager().deployment = Ok(Some(object(deployment(ready))));
    one(Check::Deployment, Good, "2 of 2", ready(2));
    one(Check::Deployment, Warning, "1 of 2", ready(1));
    one(Check::Deployment, Error, "0 of 2 replicas are ready: new pods are refused", ready(0));
    one(Check::Deployment, Error, "is not there", |f| f.manager().deployment = Ok(None));
    let held =
        |holder, age| move |f: &mut Facts| f.manager().lease = Ok(Some(object(lease(holder, age))));
    one(Check::Lease, Good, "is held by a", held("a", 30));
    one(Check::Lease, Error, "a has not renewed it for 31 s", held("a", 31));
    one(Check::Lease, Error, "no one holds it", held("", 2));
    one(Check::Lease, Error, "is not there", |f| f.manager().lease = Ok(None));
    // By the API server's clock, not by this machine's.
    one(Check::Lease, Good, "is held by", |f| f.here = object(json!(at(9000))));
}

#[test]
fn the_mesh_has_namespaces_and_those_that_are_asked_for_are_there() {
    one(Check::Namespaces, Good, "looked at namespace operators", |_| {});
    one(Check::Namespaces, Warning, "no namespace has", |f| {
        f.cluster.as_mut().unwrap().namespaces = Ok(Vec::new());
    });
    one(Check::Namespaces, Warning, "needs the right to list things in namespace operators", |f| {
        f.cluster.as_mut().unwrap().namespaces = right();
    });
    let found = found(Check::Namespaces, |f| f.namespace().namespace = Ok(None));
    assert_eq!(found[1], (Error, "namespace operators: is not there".to_owned()));
}

#[test]
fn a_namespace_of_the_mesh_has_its_bundle() {
    let bundle =
        |bundle: Option<Value>| move |f: &mut Facts| f.namespace().bundle = Ok(bundle.map(object));
    one(Check::Bundle, Error, "operators/ctrlmesh-ca-bundle: is not there", bundle(None));
    let foreign =
        json!({ "metadata": { "labels": {} }, "data": { "ca.crt": "BEGIN CERTIFICATE" } });
    one(Check::Bundle, Error, "someone else's", bundle(Some(foreign)));
    let mut empty = scene::bundle();
    empty["data"] = json!({ "ca.crt": "x" });
    one(Check::Bundle, Error, "has no certificate in ca.crt", bundle(Some(empty)));
    let no_member = |f: &mut Facts| {
        bundle(None)(f);
        f.namespace().configs = Ok(Vec::new());
        f.pods(Vec::new());
    };
    assert_eq!(found(Check::Bundle, no_member), [], "no one needs it");
    assert_eq!(found(Check::Quota, no_member), [], "no one is refused");
    let namespaces = found(Check::Namespaces, no_member);
    let says = "namespace operators: has no ShardingConfig and no pod with the label";
    assert_eq!(namespaces[1], (Warning, says.to_owned()));
}

#[test]
fn accounts_of_injected_pods_have_their_rights() {
    let bound = |name: &'static str, role: &'static str, account: &'static str| {
        move |f: &mut Facts| f.namespace().bindings = Ok(vec![object(binding(name, role, account))])
    };
    one(Check::Rights, Good, "binds account robot", |_| {});
    // By `ctrlmesh inject`, for each account.
    one(Check::Rights, Good, "binds", bound("ctrlmesh-proxy-robot", "ctrlmesh-proxy", "robot"));
    one(
        Check::Rights,
        Error,
        "does not bind account robot",
        bound("ctrlmesh-proxy", "ctrlmesh-proxy", "x"),
    );
    one(
        Check::Rights,
        Error,
        "does not bind account robot",
        bound("ctrlmesh-proxy", "other", "robot"),
    );
    let mut elsewhere = binding("ctrlmesh-proxy", "ctrlmesh-proxy", "robot");
    elsewhere["subjects"][0]["namespace"] = json!("other");
    one(Check::Rights, Error, "does not bind", |f| {
        f.namespace().bindings = Ok(vec![object(elsewhere)])
    });
}

#[test]
fn pods_that_ask_for_injection_are_injected() {
    let mut plain = pod("op-1");
    plain["metadata"]["annotations"] = json!({});
    let mut old = plain.clone();
    old["metadata"]["creationTimestamp"] = json!(at(-7201));
    let mut ended = plain.clone();
    ended["status"]["phase"] = json!("Succeeded");
    let check = Check::NotInjected;
    one(check, Good, "all with the label are injected: 1 pod", |_| {});
    one(check, Error, "pod op-1, labelled after", |f| f.pods(vec![plain.clone(), pod("op-0")]));
    one(check, Error, "pod op-1, older than the webhooks", |f| f.pods(vec![old]));
    assert_eq!(found(check, |f| f.pods(vec![ended])), []);
    one(check, Error, "op-1, in a namespace that the webhooks leave out", |f| {
        f.pods(vec![plain.clone()]);
        let labels = json!({ "kubernetes.io/metadata.name": "kube-system" });
        let namespace = json!({ "metadata": { "labels": labels } });
        f.namespace().namespace = Ok(Some(object(namespace)));
    });
    // The pod that was asked for alone.
    one(check, Good, "1 pod", |f| {
        f.namespace().pods = Ok(vec![object(plain), object(pod("op-0"))])
    });
}

#[test]
fn pods_that_a_config_selects_have_the_label() {
    let mut plain = pod("op-1");
    plain["metadata"]["annotations"] = json!({});
    plain["metadata"]["labels"] = json!({ "shard": "blue" });
    let mut other = plain.clone();
    other["metadata"]["labels"] = json!({ "shard": "green" });
    let check = Check::NotLabelled;
    one(check, Good, "none is selected", |f| f.pods(vec![other]));
    let two = vec![object(config("blue", "blue")), object(config("more", "blue"))];
    one(check, Error, "selected but not injected: pod op-1", |f| f.pods(vec![plain.clone()]));
    one(check, Error, "selected but not injected: pod op-1", |f| {
        f.pods(vec![plain]);
        f.namespace().configs = Ok(two);
    });
}

#[test]
fn one_config_selects_an_injected_pod() {
    let check = Check::Choice;
    let configs = |configs: Vec<Value>| {
        move |f: &mut Facts| f.namespace().configs = Ok(configs.into_iter().map(object).collect())
    };
    one(check, Good, "1 pod injected, each selected by one", |_| {});
    one(
        check,
        Error,
        "pod op-0: no ShardingConfig in namespace operators selects",
        configs(vec![]),
    );
    let two = vec![config("blue", "blue"), config("more", "blue")];
    let says = "ShardingConfig operators/blue, ShardingConfig operators/more: exactly one";
    one(check, Error, says, configs(two));
    let pods = (0..7).map(|at| pod(&format!("op-{at}"))).collect();
    one(check, Error, "pods op-0, op-1, op-2, op-3, op-4 and 2 more: no", |f| {
        configs(vec![])(f);
        f.pods(pods);
    });
}

#[test]
fn malformed_configs_are_named_with_their_fields() {
    let mut bad = config("bad", "green");
    bad["spec"]["selector"] = json!({ "matchLabel": {} });
    one(Check::Malformed, Good, "1 config is well formed", |_| {});
    let says = "ShardingConfig operators/bad: spec: unknown field `matchLabel`";
    one(Check::Malformed, Error, says, |f| {
        f.namespace().configs.as_mut().unwrap().push(object(bad))
    });
}

#[test]
fn bad_shards_that_do_not_lead_are_told() {
    let with = |status: &str, reason: &str| {
        let mut config = config("blue", "blue");
        let message = "no pod of the shard has held the lock kube-system/op";
        config["status"] = json!({ "conditions": [{
            "type": "LocksRenamed", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": NOW,
        }] });
        move |f: &mut Facts| f.namespace().configs = Ok(vec![object(config)])
    };
    let says = "ShardingConfig operators/blue: no pod of the shard has held";
    one(Check::Locks, Error, says, with("False", "NotHeld"));
    one(Check::Locks, Error, says, with("False", "Forbidden"));
    one(Check::Locks, Warning, says, with("False", "NotNamed"));
    one(Check::Locks, Good, "its shard holds its locks", with("True", "Held"));
    one(Check::Locks, Warning, "locks: the controller renews leases kube-system/op", |f| {
        let mut answer = readyz();
        answer.body.push_str("[+]locks ok: the controller renews leases kube-system/op, which\n");
        f.one().readyz = Ok(answer);
    });
}

#[test]
fn bad_related_resources_that_no_limit_names_are_told() {
    let with = |status: &str| {
        let mut config = config("blue", "blue");
        config["status"] = json!({ "conditions": [{
            "type": "RelatedResourcesLimited", "status": status, "reason": "NotLimited",
            "message": "pod op-0: the controller watches secrets", "lastTransitionTime": NOW,
        }] });
        move |f: &mut Facts| f.namespace().configs = Ok(vec![object(config)])
    };
    let says = "ShardingConfig operators/blue: pod op-0: the controller watches secrets";
    one(Check::Related, Warning, says, with("False"));
    one(Check::Related, Good, "its limits name all that belongs together", with("True"));
    one(Check::Related, Warning, "related: the controller watches secrets", |f| {
        let mut answer = readyz();
        answer.body.push_str("[+]related ok: the controller watches secrets\n");
        f.one().readyz = Ok(answer);
    });
}

#[test]
fn bad_writes_into_namespaces_of_other_shards_are_told() {
    let with = |status: &str, reason: &str| {
        let mut config = config("blue", "blue");
        let message =
            "pod op-0: writes into namespaces of other shards were refused, for example: x";
        config["status"] = json!({ "conditions": [{
            "type": "WritesRefused", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": NOW,
        }] });
        move |f: &mut Facts| f.namespace().configs = Ok(vec![object(config)])
    };
    let says = "ShardingConfig operators/blue: pod op-0: writes into namespaces of other shards";
    one(Check::Writes, Warning, says, with("True", "NotInShard"));
    one(Check::Writes, Warning, says, with("False", "Warned"));
    one(Check::Writes, Good, "into its own namespaces alone", with("False", "NoForeignWrites"));
    one(Check::Writes, Warning, "writes: writes into namespaces of other shards", |f| {
        let mut answer = readyz();
        answer.body.push_str("[+]writes ok: writes into namespaces of other shards were refused\n");
        f.one().readyz = Ok(answer);
    });
}

fn limit_range(cpu: &str) -> Value {
    let limit = json!({ "type": "Container", "default": { "cpu": cpu } });
    json!({ "metadata": { "name": "limits" }, "spec": { "limits": [limit] } })
}

fn with_limit(f: &mut Facts) {
    let mut deployment = deployment(2);
    let args = json!(["manager", "--proxy-resources={\"limits\":{\"cpu\":\"1\"}}"]);
    deployment["spec"]["template"]["spec"]["containers"][0]["args"] = args;
    f.manager().deployment = Ok(Some(object(deployment)));
}

#[test]
fn a_quota_on_cpu_limits_refuses_our_containers() {
    let quota = |hard: Value| {
        let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": hard } });
        move |f: &mut Facts| f.namespace().quotas = Ok(vec![object(quota)])
    };
    let on_cpu = || quota(json!({ "limits.cpu": "10" }));
    let check = Check::Quota;
    one(check, Good, "none refuses", quota(json!({ "requests.cpu": "10" })));
    one(check, Error, "ResourceQuota operators/q: is on limits.cpu", on_cpu());
    one(check, Good, "none refuses", |f| {
        on_cpu()(f);
        f.namespace().limit_ranges = Ok(vec![object(limit_range("1"))]);
    });
    // The init container has none of it.
    one(check, Error, "is on limits.cpu", |f| {
        on_cpu()(f);
        with_limit(f);
    });
    one(check, Good, "none refuses", |f| {
        on_cpu()(f);
        with_limit(f);
        f.namespace().namespace = Ok(Some(object(namespace(Some("restricted")))));
    });
}

#[test]
fn a_default_limit_would_slow_the_proxy() {
    let range = |cpu: &'static str| {
        move |f: &mut Facts| f.namespace().limit_ranges = Ok(vec![object(limit_range(cpu))])
    };
    let check = Check::LimitRange;
    one(check, Good, "set no default", range("500m"));
    one(check, Warning, "LimitRange operators/limits: its default of 100m CPU", range("100m"));
    let covered = |f: &mut Facts| {
        range("100m")(f);
        with_limit(f);
    };
    assert_eq!(found(check, covered), [], "the proxy has a limit of its own");
}

#[test]
fn a_pod_security_level_admits_no_redirect_rules() {
    let check = Check::PodSecurity;
    let with = |level: &'static str, change: fn(&mut Value)| {
        move |f: &mut Facts| {
            let mut pod = pod("op-0");
            change(&mut pod);
            f.pods(vec![pod]);
            f.namespace().namespace = Ok(Some(object(namespace(Some(level)))));
        }
    };
    let env = |pod: &mut Value| {
        pod["metadata"]["annotations"]["ctrlmesh.kusionstack.io/injected"] = json!("env");
    };
    let insists = |pod: &mut Value| {
        pod["metadata"]["annotations"]["kridge.kusionstack.io/enable-iptables"] = json!("true");
    };
    one(check, Good, "enforces restricted: pods are injected in env mode", with("restricted", env));
    one(check, Warning, "pod op-0 with redirect rules", with("baseline", |_| {}));
    one(check, Error, "pod op-0 would be refused", with("baseline", insists));
    assert_eq!(found(check, with("privileged", insists)), []);
}

#[test]
fn pods_that_were_refused_are_told_by_their_events() {
    let event = |message: &str, age: i64| {
        json!({
            "metadata": {},
            "reason": "FailedCreate",
            "message": message,
            "lastTimestamp": at(-age),
            "involvedObject": { "kind": "StatefulSet", "name": "op" },
        })
    };
    let check = Check::Refused;
    let with = |events: Vec<Value>| {
        move |f: &mut Facts| f.namespace().refused = Ok(events.into_iter().map(object).collect())
    };
    let ours = "admission webhook \"pods.ctrlmesh.kusionstack.io\" denied\nthe request: x";
    one(
        check,
        Error,
        "StatefulSet operators/op: admission webhook \"pods.ctrlmesh.kusionstack.io\" denied the",
        with(vec![event(ours, 600)]),
    );
    one(check, Good, "no pod was refused", with(vec![event(ours, 601), event("quota", 1)]));
}

#[test]
fn a_pod_is_there_and_injected() {
    one(Check::Pod, Good, "pod operators/op-0: is injected, in mode iptables", |_| {});
    one(Check::Pod, Error, "is not there", |f| f.one().pod = Ok(None));
    let mut plain = pod("op-0");
    plain["metadata"]["annotations"] = json!({});
    one(Check::Pod, Error, "is not injected", |f| f.asked(plain));
    let found = found(Check::Readyz, |f| f.one().pod = Ok(None));
    assert_eq!(found, [], "no one to ask");
}

/// The pod with other states of a container of ours.
fn states(at: usize, name: &str, state: Value, last: Value) -> Value {
    let mut pod = pod("op-0");
    pod["status"]["initContainerStatuses"][at] = status(name, state, last);
    pod
}

#[test]
fn the_init_container_has_ended_well_or_its_code_has_a_remedy() {
    let ended = |code: i32, message: &str| {
        let end = json!({ "terminated": { "exitCode": code, "message": message } });
        states(0, "ctrlmesh-init", end, json!({}))
    };
    one(Check::Init, Good, "has put the redirect rules", |_| {});
    for (code, remedy) in [
        (64, "--help lists"),
        (69, "nf_tables"),
        (77, "NET_ADMIN"),
        (95, "socketLB"),
        (1, "kubectl describe"),
    ] {
        let pod = ended(code, "exit: why\nnot");
        one(Check::Init, Error, &format!("exited with {code}: exit: why not"), |f| {
            f.asked(pod.clone())
        });
        let mut facts = healthy();
        facts.asked(pod);
        let init = judge(&facts).into_iter().find(|finding| finding.check == Check::Init).unwrap();
        assert!(init.fix.unwrap().contains(remedy), "{code}");
    }
    // Between two attempts.
    let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    let last = json!({ "terminated": { "exitCode": 95 } });
    let again = states(0, "ctrlmesh-init", waiting, last);
    one(Check::Init, Error, "exited with 95", |f| f.asked(again));
    let pull = json!({ "waiting": { "reason": "ErrImagePull", "message": "no such\nimage" } });
    let pull = states(0, "ctrlmesh-init", pull, json!({}));
    one(Check::Init, Warning, "has not ended, ErrImagePull: no such image", |f| f.asked(pull));
    let mut env = pod("op-0");
    env["metadata"]["annotations"]["ctrlmesh.kusionstack.io/injected"] = json!("env");
    assert_eq!(found(Check::Init, |f| f.asked(env)), [], "there is none in env mode");
}

#[test]
fn the_proxys_container_runs() {
    let proxy = |state: Value, last: Value| states(1, "ctrlmesh-proxy", state, last);
    let check = Check::Proxy;
    one(check, Good, "ctrlmesh-proxy runs", |_| {});
    let last = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
    let killed = proxy(json!({ "running": {} }), last);
    one(check, Warning, "for want of memory", |f| f.asked(killed));
    let last = json!({ "terminated": { "exitCode": 70, "message": "why" } });
    let again = proxy(json!({ "running": {} }), last.clone());
    one(check, Warning, "runs, and exited with 70: why before", |f| f.asked(again));
    let waits = proxy(json!({ "waiting": { "reason": "CrashLoopBackOff" } }), last);
    one(check, Error, "does not run, CrashLoopBackOff, exited with 70: why", |f| {
        f.asked(waits.clone())
    });
    assert_eq!(found(Check::Readyz, |f| f.asked(waits)), [], "no one to ask");
    let mut pending = pod("op-0");
    pending["status"] = json!({ "phase": "Pending" });
    one(check, Error, "has not started: the pod is Pending", |f| f.asked(pending.clone()));
    let why = json!({ "type": "PodScheduled", "status": "False", "message": "no nodes" });
    pending["status"]["conditions"] = json!([why]);
    one(check, Error, "the pod is Pending: no nodes", |f| f.asked(pending));
}

#[test]
fn the_proxy_answers_and_says_what_is_missing() {
    let page = |code: u16, body: &str| Answer { code, body: body.to_owned() };
    let answers = |answer: Answer| move |f: &mut Facts| f.one().readyz = Ok(answer);
    one(Check::Readyz, Good, "answers: ready", |_| {});
    let away = page(503, "error trying to reach service: dial tcp");
    one(Check::Readyz, Error, "has the code 503: error trying to reach", answers(away.clone()));
    assert_eq!(found(Check::NotAfter, answers(away)), []);

    let none = "[-]policy failed: none yet\n[+]certificate ok: valid\n";
    one(Check::Policy, Error, "policy: none yet", answers(page(503, none)));
    one(Check::Readyz, Good, "not ready", answers(page(503, none)));
    let stays = "[+]policy ok: blue epoch 2 stays in force: two\n[+]certificate ok: valid\n";
    one(Check::Policy, Warning, "blue epoch 2 stays in force: two", answers(page(200, stays)));

    let away =
        "[+]policy ok: x\n[-]certificate failed: the manager m.svc:443: connection refused\n";
    one(
        Check::Certificate,
        Error,
        "certificate: the manager m.svc:443: connection refused",
        answers(page(503, away)),
    );
    let mut facts = healthy();
    answers(page(503, away))(&mut facts);
    let of_certificate = |check| judge(&facts).into_iter().find(|finding| finding.check == check);
    let fix = of_certificate(Check::Certificate).unwrap().fix.unwrap();
    assert!(fix.contains("see that the manager is ready"), "{fix}");
    let old = "[+]policy ok: x\n[+]certificate ok: valid until T, and not renewed: why\n";
    one(Check::Certificate, Warning, "not renewed: why", answers(page(200, old)));
}

#[test]
fn the_end_of_the_certificate_is_told() {
    let check = Check::NotAfter;
    let at = |seconds| move |f: &mut Facts| f.one().metrics = Ok(metrics(seconds));
    one(check, Good, "valid until 2030-01-01T01:00:00Z", at(3600));
    one(check, Warning, "ends in 3599 s", at(3599));
    one(check, Error, "ended at 2030-01-01T00:00:00Z", at(0));
    one(check, Error, "has no certificate yet", at(-now().as_second()));
    one(check, Warning, "no end", |f| {
        f.one().metrics = Ok(Answer { code: 404, body: String::new() });
    });
}

#[test]
fn no_other_container_runs_as_the_proxys_user() {
    let check = Check::User;
    one(check, Good, "as user 1359", |_| {});
    let same = |pointer: &str| {
        let mut pod = pod("op-0");
        let pointer = format!("/spec/{pointer}");
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[key] = json!({ "runAsUser": 1359 });
        move |f: &mut Facts| f.asked(pod)
    };
    one(check, Error, "container app runs as user 1359", same("containers/0/securityContext"));
    one(check, Error, "container app runs as user 1359", same("securityContext"));
    let mut pod = pod("op-0");
    let debug = json!({ "name": "debug", "securityContext": { "runAsUser": 1359 } });
    pod["spec"]["ephemeralContainers"] = json!([debug]);
    one(check, Error, "container debug runs as", |f| f.asked(pod));
}

#[test]
fn the_files_of_the_proxy_can_be_used() {
    let file = |problem: Option<&str>| {
        let problem = problem.map(str::to_owned);
        move |f: &mut Facts| f.files = vec![OwnFile { path: "/etc/x".to_owned(), problem }]
    };
    one(Check::Files, Good, "/etc/x: can be used", file(None));
    one(Check::Files, Error, "/etc/x: is empty", file(Some("is empty")));
}

/// Takes away each right in turn.
#[test]
fn a_missing_right_is_a_warning_and_hides_no_other_finding() {
    type Take = (Check, fn(&mut Facts));
    let cases: [Take; 20] = [
        (Check::Definition, |f| f.manager().has_definition = right()),
        (Check::Webhooks, |f| f.manager().webhooks = right()),
        (Check::Deployment, |f| f.manager().deployment = right()),
        (Check::Lease, |f| f.manager().lease = right()),
        (Check::Bundle, |f| f.namespace().bundle = right()),
        (Check::Rights, |f| f.namespace().bindings = right()),
        (Check::Network, |f| f.namespace().network_policies = right()),
        (Check::Services, |f| f.cluster.as_mut().unwrap().hooks = right()),
        (Check::Services, |f| f.namespace().services = right()),
        (Check::PodsRight, |f| f.manager().proxy_role = right()),
        (Check::LeasesRight, |f| {
            f.namespace().configs = Ok(vec![object(rights::in_ring("blue"))]);
            f.manager().proxy_role = right();
        }),
        (Check::NotInjected, |f| f.namespace().pods = right()),
        (Check::Malformed, |f| f.namespace().configs = right()),
        (Check::Quota, |f| f.namespace().quotas = right()),
        (Check::LimitRange, |f| f.namespace().limit_ranges = right()),
        (Check::Refused, |f| f.namespace().refused = right()),
        (Check::Pod, |f| f.one().pod = right()),
        (Check::Readyz, |f| f.one().readyz = right()),
        (Check::NotAfter, |f| f.one().metrics = right()),
        (Check::Namespaces, |f| f.namespace().namespace = right()),
    ];
    let all = judge(&healthy()).len();
    for (check, take) in cases {
        let warnings = found(check, take).into_iter().filter(|(severity, _)| *severity == Warning);
        let warnings: Vec<_> = warnings.map(|(_, says)| says).collect();
        let [says] = &warnings[..] else { panic!("{check:?}: {warnings:?}") };
        assert!(says.contains("cannot look, needs the right to list things"), "{says}");
        let mut facts = healthy();
        take(&mut facts);
        let findings = judge(&facts);
        assert!(
            findings.iter().all(|finding| finding.severity != Error),
            "{check:?}: {findings:#?}"
        );
        assert!(findings.len() + 7 > all, "{check:?}: {} of {all}", findings.len());
    }
    let mut facts = healthy();
    facts.namespace().bundle = Err(CannotLook::Failed("no answer in 10 s".into()));
    let bundle = judge(&facts).into_iter().find(|finding| finding.check == Check::Bundle).unwrap();
    assert_eq!(bundle.says, "cannot look: no answer in 10 s");
    assert!(bundle.fix.unwrap().starts_with("run this again"));
}

/// A cluster with a finding of each severity, as text and as JSON.
#[test]
fn findings_are_printed() {
    let mut facts = healthy();
    facts.here = object(json!(at(612)));
    facts.manager().lease = Ok(Some(object(lease("", 2))));
    facts.manager().deployment = Ok(Some(object(deployment(0))));
    facts.namespace().bundle = Ok(None);
    facts.namespace().bindings = right();
    facts.namespace().limit_ranges = Ok(vec![object(limit_range("100m"))]);
    facts.namespace().configs = Ok(vec![object(config("a", "blue")), object(config("b", "blue"))]);
    let body =
        "[-]policy failed: none yet\n[-]certificate failed: the manager m.svc:443: refused\n";
    facts.one().readyz = Ok(Answer { code: 503, body: body.to_owned() });
    facts.one().metrics = Ok(metrics(-now().as_second()));
    let findings = judge(&facts);
    golden::check("doctor.txt", &text(&findings));
    golden::check("doctor.json", &to_json(&findings).unwrap());
    let end = text(&findings[..1]);
    assert!(end.ends_with("0 errors, 0 warnings, 1 ok\n"), "{end}");
}
