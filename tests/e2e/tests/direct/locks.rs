//! Two shards of one controller, each with a leader of its own.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy, ServiceAccount, go_clients, python_client, until};
use futures_util::{TryStreamExt, pin_mut};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{
        DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent,
        WatchParams,
    },
};
use serde_json::{Value, json};

use crate::direct::{
    bed::{Bed, LIMIT, Way, names, policy, sharding_config, until_ready_says},
    clients::kube_client,
};

const LOCK: &str = "operator";
const SHARDS: [&str; 2] = ["blue", "green"];

/// A proxy a shard, with the same lock name.
fn shards(bed: &Bed) -> Result<[Proxy; 2]> {
    let start = |shard: &str| {
        Proxy::builder(shard, &policy(shard, Some(LOCK), &[]))
            .flag(&format!("--pod-namespace={}", bed.namespace))
            .start(&bed.api)
    };
    Ok([start(SHARDS[0])?, start(SHARDS[1])?])
}

fn objects_of(bed: &Bed, kind: &str) -> Result<Value> {
    let path = match kind {
        "leases" => format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", bed.namespace),
        kind => bed.path(kind),
    };
    bed.api.client().get(&path)?.json()
}

/// Both lead and renew at the same time, under a name of their own.
fn both_lead(bed: &Bed, kind: &str, candidates: [Program; 2]) -> Result<()> {
    for (shard, candidate) in SHARDS.iter().zip(&candidates) {
        candidate
            .wait_until(LIMIT, |lines| {
                let count =
                    |event: &str| lines.iter().filter(|line| line["event"] == event).count();
                (count("acquired") == 1 && count("renewed") >= 3).then_some(())
            })
            .with_context(|| format!("shard {shard}"))?;
    }
    let list = objects_of(bed, kind)?;
    let locks: Vec<String> =
        names(&list).into_iter().filter(|name| name.starts_with(LOCK)).collect();
    ensure!(locks == ["operator---blue", "operator---green"], "{locks:?}");
    let items = list["items"].as_array().context("items")?;
    for shard in SHARDS {
        let name = format!("{LOCK}---{shard}");
        let lock = items.iter().find(|item| item["metadata"]["name"] == *name).context("seen")?;
        let record =
            lock["metadata"]["annotations"]["control-plane.alpha.kubernetes.io/leader"].as_str();
        let record: Value = record.map(serde_json::from_str).transpose()?.unwrap_or_default();
        let holder =
            lock["spec"]["holderIdentity"].as_str().or_else(|| record["holderIdentity"].as_str());
        ensure!(holder == Some(shard), "{name} is held by {holder:?}");
    }
    for candidate in &candidates {
        ensure!(
            !candidate
                .lines()
                .iter()
                .any(|line| line["event"] == "lost" || line["event"] == "refused")
        );
        candidate.terminate()?;
    }
    Ok(())
}

#[test]
fn t72_client_go_leads_in_both_shards() -> Result<()> {
    let bed = Bed::new("t72_go")?;
    let proxies = shards(&bed)?;
    let elect = |at: usize, encoding: &str| {
        let args = ["--lock", LOCK, "--identity", SHARDS[at], "--seconds", "60", encoding];
        bed.clients(&Way::Through(&proxies[at]), "elect", &args)
    };
    both_lead(&bed, "leases", [elect(0, "--protobuf")?, elect(1, "--json")?])
}

#[test]
fn t72_python_leads_in_both_shards() -> Result<()> {
    let bed = Bed::new("t72_python")?;
    let proxies = shards(&bed)?;
    let (python, program) = python_client()?;
    for (flag, kind) in [("lease", "leases"), ("configmap", "configmaps")] {
        let elect = |at: usize| {
            let mut command = Command::new(&python);
            command.arg(&program).args([
                "elect",
                "--lock",
                LOCK,
                "--lock-kind",
                flag,
                "--seconds",
                "60",
            ]);
            command.args(["--identity", SHARDS[at], "--namespace", &bed.namespace, "--kubeconfig"]);
            command.arg(proxies[at].kubeconfig(&bed.api, bed.token())?);
            bed.program("python-elect", &command)
        };
        both_lead(&bed, kind, [elect(0)?, elect(1)?])?;
    }
    Ok(())
}

#[test]
fn t72_kubectl_sees_the_shards_own_lock_by_its_short_name() -> Result<()> {
    let bed = Bed::new("t72_kubectl")?;
    let proxies = shards(&bed)?;
    for (shard, proxy) in SHARDS.iter().zip(&proxies) {
        let kubectl = proxy.kubectl(&bed.api, bed.token())?;
        let run = |args: &[&str]| kubectl.run(&[&["--namespace", &bed.namespace], args].concat());
        let own = format!("lease.coordination.k8s.io/{LOCK}---{shard}");
        let manifest = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": LOCK, "namespace": bed.namespace },
            "spec": { "holderIdentity": shard },
        });
        let created =
            kubectl.run_with_input(&["create", "-f", "-", "-o", "name"], &manifest.to_string())?;
        ensure!(created.trim() == own, "{created}");
        ensure!(run(&["get", "lease", LOCK, "-o", "name"])?.trim() == own);
        ensure!(run(&["get", "lease", &format!("{LOCK}---{shard}"), "-o", "name"])?.trim() == own);
        let selected = run(&[
            "get",
            "lease",
            "--field-selector",
            &format!("metadata.name={LOCK}"),
            "-o",
            "name",
        ])?;
        ensure!(selected.trim() == own, "{selected}");
        run(&["patch", "lease", LOCK, "--type=merge", "-p", r#"{"spec":{"leaseTransitions":1}}"#])?;
        run(&[
            "patch",
            "lease",
            LOCK,
            "--type=json",
            "-p",
            r#"[{"op":"replace","path":"/spec/leaseTransitions","value":2}]"#,
        ])?;
        let seen = run(&[
            "get",
            "lease",
            LOCK,
            "-o",
            "jsonpath={.spec.holderIdentity} {.spec.leaseTransitions}",
        ])?;
        ensure!(seen == format!("{shard} 2"), "{seen}");
    }
    ensure!(names(&objects_of(&bed, "leases")?) == ["operator---blue", "operator---green"]);
    let kubectl = proxies[0].kubectl(&bed.api, bed.token())?;
    kubectl.run(&["--namespace", &bed.namespace, "delete", "lease", LOCK])?;
    ensure!(
        names(&objects_of(&bed, "leases")?) == ["operator---green"],
        "it deleted its own alone"
    );
    // A lock of another namespace is no one's business.
    let elsewhere = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": LOCK, "namespace": "default" },
    });
    let created =
        kubectl.run_with_input(&["apply", "-f", "-", "-o", "name"], &elsewhere.to_string())?;
    ensure!(created.trim() == "lease.coordination.k8s.io/operator", "{created}");
    bed.api.kubectl(&["delete", "lease", LOCK, "--namespace=default"])?;
    Ok(())
}

/// What an elector written with kube-rs does, by apply and by replace.
async fn lead(leases: &Api<Lease>, shard: &str) -> Result<()> {
    let own = format!("{LOCK}---{shard}");
    let now = || MicroTime(Timestamp::now());
    let spec = |renewals: i32| LeaseSpec {
        holder_identity: Some(shard.to_owned()),
        lease_duration_seconds: Some(15),
        renew_time: Some(now()),
        lease_transitions: Some(renewals),
        ..LeaseSpec::default()
    };
    ensure!(leases.get_opt(LOCK).await?.is_none(), "the lock of the other shard is seen");
    // By server-side apply: the first creates.
    for renewals in 0..3 {
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": LOCK }, "spec": spec(renewals),
        });
        let params = PatchParams::apply("elector").force();
        let lease = leases.patch(LOCK, &params, &Patch::Apply(&body)).await?;
        ensure!(lease.name_any() == own, "{lease:?}");
    }
    leases.delete(LOCK, &DeleteParams::default()).await?;
    // By create and replace, with whichever name.
    let metadata = ObjectMeta { name: Some(LOCK.to_owned()), ..ObjectMeta::default() };
    let lease = Lease { metadata, spec: Some(spec(0)) };
    let mut lease = leases.create(&PostParams::default(), &lease).await?;
    ensure!(lease.name_any() == own, "{lease:?}");
    for (at, (path, body)) in
        [(LOCK, LOCK), (LOCK, &own), (&own, &own), (&own, LOCK)].into_iter().enumerate()
    {
        lease.metadata.name = Some(body.to_owned());
        lease.spec = Some(spec(i32::try_from(at)?));
        lease = leases
            .replace(path, &PostParams::default(), &lease)
            .await
            .with_context(|| format!("replacing {path} by a body named {body}"))?;
        ensure!(lease.name_any() == own, "{lease:?}");
    }
    let patch = json!({ "spec": { "leaseTransitions": 9 } });
    leases.patch(LOCK, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    let found =
        leases.list(&ListParams::default().fields(&format!("metadata.name={LOCK}"))).await?;
    ensure!(found.items.len() == 1 && found.items[0].name_any() == own, "{found:?}");

    let params = WatchParams::default().fields(&format!("metadata.name={LOCK}"));
    let from = found.metadata.resource_version.context("a list has one")?;
    let events = leases.watch(&params, &from).await?;
    pin_mut!(events);
    leases.patch(LOCK, &PatchParams::default(), &Patch::Merge(&patch_of(10))).await?;
    let event = events.try_next().await?.context("the renewal")?;
    ensure!(matches!(&event, WatchEvent::Modified(lease) if lease.name_any() == own), "{event:?}");
    Ok(())
}

fn patch_of(renewals: i32) -> Value {
    json!({ "spec": { "leaseTransitions": renewals } })
}

#[test]
fn t72_kube_rs_leads_in_both_shards() -> Result<()> {
    let bed = Bed::new("t72_rust")?;
    let proxies = shards(&bed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (shard, proxy) in SHARDS.iter().zip(&proxies) {
        let kubeconfig = proxy.kubeconfig(&bed.api, bed.token())?;
        runtime.block_on(async {
            let leases = Api::namespaced(kube_client(&kubeconfig).await?, &bed.namespace);
            lead(&leases, shard).await.with_context(|| format!("shard {shard}"))
        })?;
    }
    let list = objects_of(&bed, "leases")?;
    ensure!(names(&list) == ["operator---blue", "operator---green"], "{:?}", names(&list));
    for (shard, item) in SHARDS.iter().zip(list["items"].as_array().context("items")?) {
        ensure!(item["spec"]["holderIdentity"] == *shard, "{item}");
    }
    Ok(())
}

/// The rights that charts give, which name the controller's own locks, and those of the mesh.
fn chart_account(bed: &Bed) -> Result<ServiceAccount> {
    let account = bed.api.service_account(&bed.namespace, "chart", &[])?;
    let leases = |verbs: &[&str], names: &[&str]| {
        json!({
            "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
            "verbs": verbs, "resourceNames": names,
        })
    };
    let chart = [leases(&["get", "update", "patch"], &[LOCK]), leases(&["create"], &[])];
    let mesh = [leases(&["get", "list", "watch", "create", "update", "patch", "delete"], &[])];
    for (namespace, name, rules) in [
        ("kube-system", format!("{}-chart", bed.namespace), &chart[..]),
        (&bed.namespace, "chart".to_owned(), &chart[..]),
        (&bed.namespace, "ctrlmesh-proxy".to_owned(), &mesh[..]),
    ] {
        let group = "rbac.authorization.k8s.io";
        let metadata = json!({ "name": name, "namespace": namespace });
        let version = format!("{group}/v1");
        let role = json!({
            "apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules,
        });
        let binding = json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": group, "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": "chart", "namespace": bed.namespace }],
        });
        bed.api.apply(&format!("{role}\n---\n{binding}\n"))?;
    }
    let review = json!({ "spec": { "resourceAttributes": {
        "group": "coordination.k8s.io", "resource": "leases", "verb": "update",
        "namespace": bed.namespace, "name": "any",
    } } });
    let client = bed.api.client().with_token(&account.token);
    until("the account has its rights", LIMIT, || {
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = client.post(path, &review)?.json()?;
        Ok((answer["status"]["allowed"] == true).then_some(()))
    })?;
    Ok(account)
}

/// The holders of the Leases of a namespace whose names begin as the lock's.
fn holders(bed: &Bed, namespace: &str) -> Result<Vec<(String, String)>> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let list = bed.api.client().get(&path)?.json()?;
    let items = list["items"].as_array().context("items")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = items
        .iter()
        .map(|item| (text(&item["metadata"]["name"]), text(&item["spec"]["holderIdentity"])));
    let mut all: Vec<_> = all.filter(|(name, _)| name.starts_with(LOCK)).collect();
    all.sort();
    Ok(all)
}

/// cert-manager's lock is in `kube-system`, and its Role names it: as many charts have it.
#[test]
fn t72_two_elections_of_each_shard_by_the_rights_of_a_chart() -> Result<()> {
    let bed = Bed::new("t72_chart")?;
    let account = chart_account(&bed)?;
    let mut electors = Vec::new();
    let mut proxies = Vec::new();
    for shard in SHARDS {
        let mut config = sharding_config(shard, &[]);
        config["spec"]["controller"] = json!({
            "leaderElectionName": LOCK,
            "locks": [{ "name": LOCK, "namespace": "kube-system" }],
        });
        let proxy = Proxy::builder(shard, &config.to_string())
            .flag(&format!("--pod-namespace={}", bed.namespace))
            .start(&bed.api)?;
        for (namespace, encoding) in [("kube-system", "--protobuf"), (&bed.namespace, "--json")] {
            let mut elect = Command::new(go_clients()?);
            elect.args(["elect", "--namespace", namespace, "--kubeconfig"]);
            elect.arg(proxy.kubeconfig(&bed.api, &account.token)?);
            elect.args(["--lock", LOCK, "--identity", &format!("{shard} of {namespace}")]);
            elect.args(["--seconds", "60", encoding]);
            electors.push(bed.program("elect", &elect)?);
        }
        proxies.push(proxy);
    }
    for elector in &electors {
        elector.wait_until(LIMIT, |lines| {
            let renewed = lines.iter().filter(|line| line["event"] == "renewed").count();
            (renewed >= 3).then_some(())
        })?;
    }
    let own = SHARDS.map(|shard| {
        let of = |namespace: &str| format!("{shard} of {namespace}");
        [
            (format!("{LOCK}---{shard}"), of(&bed.namespace)),
            (format!("{LOCK}.kube-system---{shard}"), of("kube-system")),
        ]
    });
    let mut own = own.concat();
    own.sort();
    assert_eq!(holders(&bed, &bed.namespace)?, own);
    assert_eq!(holders(&bed, "kube-system")?, []);
    for elector in &electors {
        let is_bad = |line: &Value| line["event"] == "lost" || line["event"] == "refused";
        ensure!(!elector.lines().iter().any(is_bad), "{:?}", elector.lines());
        elector.terminate()?;
    }
    let released = own.into_iter().map(|(name, _)| (name, String::new())).collect::<Vec<_>>();
    until("they are given back", LIMIT, || {
        Ok((holders(&bed, &bed.namespace)? == released).then_some(()))
    })
}

/// Each way not to lead is notified by the proxy, as soon as the elector has tried twice.
#[test]
fn bad_elections_without_a_lock_of_the_shard_are_told() -> Result<()> {
    let bed = Bed::new("t72_told")?;
    let elect = |proxy: &Proxy, namespace: &str, token: &str| {
        let mut elect = Command::new(go_clients()?);
        elect.args(["elect", "--namespace", namespace, "--lock", "unnamed", "--seconds", "60"]);
        elect.arg("--kubeconfig").arg(proxy.kubeconfig(&bed.api, token)?);
        bed.program("elect", &elect)
    };
    let start = |controller: &Value| {
        let mut config = sharding_config("blue", &[]);
        config["spec"]["controller"] = controller.clone();
        Proxy::builder("blue", &config.to_string())
            .flag(&format!("--pod-namespace={}", bed.namespace))
            .start(&bed.api)
    };
    // In a namespace that no one thought of.
    let proxy = start(&json!({ "leaderElectionName": "unnamed" }))?;
    let elector = elect(&proxy, "kube-system", bed.token())?;
    until_ready_says(&proxy, "the controller renews leases kube-system/unnamed")?;
    elector.terminate()?;
    // By an account without the right to the shard's own.
    let proxy = start(&json!({ "locks": [{ "name": "unnamed", "namespace": "kube-system" }] }))?;
    let account = bed.api.service_account(&bed.namespace, "without", &[])?;
    let elector = elect(&proxy, "kube-system", &account.token)?;
    until_ready_says(&proxy, "may not write the lock kube-system/unnamed")?;
    elector.terminate().map(drop)
}
