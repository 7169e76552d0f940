//! Two shards of one controller, each with a leader of its own.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy, python_client};
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
    bed::{Bed, LIMIT, Way, names, policy},
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
    // A lock of another namespace is nobody's business.
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
