//! cert-manager from its chart, in two shards by hand: two copies of its Deployment, a label, two
//! configs. Its lock is in `kube-system`, and its Role there names it.
//!
//! Its webhook and its injector of CAs do not run: they are no part of what is sharded.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Installed, cert_manager, go_module, until};
use serde_json::{Value, json};

const NAMESPACE: &str = "cert-manager";
const SHARDS: [&str; 2] = ["cm-a", "cm-b"];
const LIMIT: Duration = Duration::from_secs(180);
/// Namespaces, each with two certificates.
const TENANTS: usize = 12;
/// The hash where the second shard begins.
const HALF: &str = "0x8000000000000000";

/// Installs the chart, and takes its own Deployment out of service.
fn install(scene: &Installed) -> Result<()> {
    let node = scene.node();
    node.import_image(&cert_manager()?)?;
    let module = go_module("github.com/cert-manager/cert-manager", "v1.21.1")?;
    let mut helm = scene.helm_command()?;
    helm.args(["install", "cert-manager", "--create-namespace", "--namespace", NAMESPACE]);
    helm.arg(module.join("deploy/charts/cert-manager"));
    for value in [
        "crds.enabled=true",
        "image.repository=localhost/cert-manager",
        "image.tag=e2e",
        "startupapicheck.enabled=false",
        "cainjector.enabled=false",
        "webhook.replicaCount=0",
    ] {
        helm.args(["--set", value]);
    }
    let output = helm.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        node.kubectl(&["delete", kind, "cert-manager-webhook"])?;
    }
    let rollout = ["rollout", "status", "deployment/cert-manager", "--timeout=120s"];
    node.kubectl(&[&["--namespace", NAMESPACE][..], &rollout].concat())?;
    let scale = ["scale", "deployment/cert-manager", "--replicas=0"];
    node.kubectl(&[&["--namespace", NAMESPACE][..], &scale].concat()).map(drop)
}

/// A copy of the chart's Deployment for a shard, and the shard's config.
fn shard(scene: &Installed, name: &str, from: &str, to: &str) -> Result<()> {
    let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/cert-manager");
    let original = scene.node().api().client().get(&path)?.json()?;
    let mut spec = original["spec"].clone();
    spec["replicas"] = json!(1);
    spec["selector"]["matchLabels"]["shard"] = name.into();
    spec["template"]["metadata"]["labels"]["shard"] = name.into();
    spec["template"]["metadata"]["labels"]["ctrlmesh.kusionstack.io/enable-proxy"] = "true".into();
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec,
    });
    let config = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "selector": { "matchLabels": { "shard": name } },
            "controller": { "locks": [
                { "name": "cert-manager-controller", "namespace": "kube-system" },
            ] },
            "limits": [{
                "relateResources": [
                    {
                        "apiGroups": ["cert-manager.io"],
                        "resources": ["certificates", "certificaterequests", "issuers"],
                    },
                    {
                        "apiGroups": ["acme.cert-manager.io"],
                        "resources": ["orders", "challenges"],
                    },
                ],
                "hash": {
                    "of": "namespace",
                    "function": "Fnv1aMixed",
                    "ranges": [{ "from": from, "to": to }],
                },
                "clusterScoped": "Exclude",
            }],
        },
    });
    for object in [config, deployment] {
        scene.node().apply(&object.to_string())?;
    }
    Ok(())
}

/// Both shards hold a lock of their own in the pods' namespace, and none is in `kube-system`.
fn both_lead(scene: &Installed) -> Result<()> {
    let client = scene.node().api().client();
    let leases = "/apis/coordination.k8s.io/v1/namespaces";
    for name in SHARDS {
        let own = format!("cert-manager-controller.kube-system---{name}");
        let path = format!("{leases}/{NAMESPACE}/leases/{own}");
        until(&format!("{name} leads"), LIMIT, || {
            let lease = client.get(&path)?;
            Ok((lease.status == 200).then_some(()))
        })?;
        let holder = client.get(&path)?.json()?["spec"]["holderIdentity"].clone();
        let is_its = holder.as_str().is_some_and(|holder| holder.starts_with(name));
        ensure!(is_its, "{own} is held by {holder}");
    }
    // The chart's own, which was given up as it was scaled down.
    let path = format!("{leases}/kube-system/leases/cert-manager-controller");
    let lease = client.get(&path)?.json()?;
    ensure!(lease["spec"]["holderIdentity"] == "", "{lease}");
    Ok(())
}

fn make_tenant(scene: &Installed, at: usize) -> Result<()> {
    let namespace = format!("tenant-{at}");
    scene.node().kubectl(&["create", "namespace", &namespace])?;
    let api = "cert-manager.io/v1";
    let of = |name: &str| json!({ "name": name, "namespace": namespace });
    let issuer = json!({
        "apiVersion": api, "kind": "Issuer", "metadata": of("self"), "spec": { "selfSigned": {} },
    });
    scene.node().apply(&issuer.to_string())?;
    for name in ["one", "two"] {
        let certificate = json!({
            "apiVersion": api, "kind": "Certificate", "metadata": of(name),
            "spec": {
                "secretName": name,
                "dnsNames": [format!("{name}.{namespace}.example")],
                "issuerRef": { "name": "self" },
            },
        });
        scene.node().apply(&certificate.to_string())?;
    }
    Ok(())
}

fn ready_certificates(scene: &Installed) -> Result<usize> {
    let list = scene.node().api().client().get("/apis/cert-manager.io/v1/certificates")?.json()?;
    let is_ready = |certificate: &&Value| {
        let mut all = certificate["status"]["conditions"].as_array().into_iter().flatten();
        all.any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    Ok(list["items"].as_array().context("items")?.iter().filter(is_ready).count())
}

/// Who wrote in each tenant's namespace, by the addresses of pods in the audit log.
fn writers(scene: &Installed) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let user = format!("system:serviceaccount:{NAMESPACE}:cert-manager");
    let mut writers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in scene.node().api().audit().entries()? {
        let of = entry.object_ref.unwrap_or_default();
        let is_write = ["create", "update", "patch", "delete"].contains(&entry.verb.as_str());
        let is_tenants = of.namespace.starts_with("tenant-") && of.resource != "events";
        if is_write && is_tenants && entry.user.username == user {
            writers.entry(of.namespace).or_default().extend(entry.source_ips);
        }
    }
    Ok(writers)
}

#[test]
fn cert_manager_in_two_shards_reconciles_each_certificate_once() -> Result<()> {
    let scene = Installed::start(Binaries::from_env()?, &[])?;
    install(&scene)?;
    shard(&scene, SHARDS[0], "0x0000000000000000", HALF)?;
    shard(&scene, SHARDS[1], HALF, "")?;
    for name in SHARDS {
        let pod = format!("--selector=shard={name}");
        let of = ["--namespace", NAMESPACE, "wait", "pod", &pod, "--for=condition=Ready"];
        until(&format!("{name} has a pod"), LIMIT, || {
            let list = ["--namespace", NAMESPACE, "get", "pods", &pod, "--output=name"];
            Ok((!scene.node().kubectl(&list)?.is_empty()).then_some(()))
        })?;
        scene.node().kubectl(&[&of[..], &["--timeout=120s"]].concat())?;
    }
    both_lead(&scene)?;
    for at in 0..TENANTS {
        make_tenant(&scene, at)?;
    }
    let count = 2 * TENANTS;
    let mut ready = 0;
    let all = until("all certificates are ready", LIMIT, || {
        ready = ready_certificates(&scene)?;
        Ok((ready == count).then_some(()))
    });
    all.with_context(|| format!("{ready} of {count}"))?;
    let writers = writers(&scene)?;
    let both: BTreeSet<&String> = writers.values().flatten().collect();
    ensure!(writers.len() == TENANTS && writers.values().all(|of| of.len() == 1), "{writers:?}");
    ensure!(both.len() == 2, "{writers:?}");
    println!("cert-manager: {count} certificates of {TENANTS} namespaces, one writer each, of two");
    Ok(())
}
