//! cert-manager as its chart installs it, sharded by `ctrlmesh shard` alone. Its lock is in `kube-system`, and its
//! Role there names it.
//!
//! Its webhook and its injector of CAs do not run: they are not sharded.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Binaries, Installed, cert_manager, go_module, until};
use serde_json::{Value, json};

use super::sharded::{LIMIT, Operator, TENANTS, tenant};

const NAMESPACE: &str = "cert-manager";
/// The lock as a shard has it.
const LOCK: &str = "cert-manager-controller.kube-system";
const SPARE: [&str; 1] = ["spare-26"];
const CERTIFICATES: [&str; 4] = ["one", "two", "three", "four"];

/// Installs the chart as it is, with an image that the node can have.
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
    Ok(())
}

/// No one holds the lock that it had before.
fn nobody_leads_all(scene: &Installed) -> Result<()> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/cert-manager-controller";
    let lease = scene.node().api().client().get(path)?;
    let holder = lease.json()?["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
    ensure!(holder.is_empty(), "{}", lease.text);
    Ok(())
}

/// An issuer of the whole cluster, which one shard alone writes.
fn make_cluster_issuer(scene: &Installed) -> Result<()> {
    let issuer = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "ClusterIssuer",
        "metadata": { "name": "of-all" }, "spec": { "selfSigned": {} },
    });
    scene.node().apply(&issuer.to_string())?;
    until("it is ready", LIMIT, || {
        let issuer =
            scene.node().api().client().get("/apis/cert-manager.io/v1/clusterissuers/of-all")?;
        let mut all =
            issuer.json()?["status"]["conditions"].as_array().cloned().into_iter().flatten();
        Ok(all.any(|one| one["type"] == "Ready" && one["status"] == "True").then_some(()))
    })
}

fn make_tenant(scene: &Installed, namespace: &str) -> Result<()> {
    let api = "cert-manager.io/v1";
    let of = |name: &str| json!({ "name": name, "namespace": namespace });
    let issuer = json!({
        "apiVersion": api, "kind": "Issuer", "metadata": of("self"), "spec": { "selfSigned": {} },
    });
    scene.node().apply(&issuer.to_string())?;
    for name in CERTIFICATES {
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

fn wait_certificates(scene: &Installed) -> Result<()> {
    let count = CERTIFICATES.len() * TENANTS;
    let mut ready = 0;
    let all = until("all certificates are ready", LIMIT, || {
        ready = ready_certificates(scene)?;
        Ok((ready == count).then_some(()))
    });
    all.with_context(|| format!("{ready} of {count}"))
}

#[test]
fn cert_manager_is_sharded_by_one_command_and_is_as_before_after_another() -> Result<()> {
    let scene = Installed::start(Binaries::from_env()?, &[])?;
    install(&scene)?;
    let operator = Operator { scene: &scene, name: NAMESPACE, account: NAMESPACE, spare: &SPARE };
    operator.begin()?;
    let before = operator.spec()?;
    operator.ctrlmesh("shard", &["--shards", "2"])?;
    ensure!(operator.spec()? == before, "nothing is written without --apply");
    operator.ctrlmesh("shard", &["--shards", "2", "--apply"])?;
    operator.all_lead(LOCK, 2)?;
    nobody_leads_all(&scene)?;
    // Each has an issuer, too.
    for at in 0..TENANTS {
        make_tenant(&scene, &tenant(at))?;
    }
    make_cluster_issuer(&scene)?;
    wait_certificates(&scene)?;
    operator.one_writer_each(&["clusterissuers"])?;

    // A third shard takes its part, and gives it back, while the certificates stay as they are.
    operator.scale(3)?;
    operator.all_lead(LOCK, 3)?;
    wait_certificates(&scene)?;
    operator.ctrlmesh("shard", &["--shards", "2", "--apply"])?;
    wait_certificates(&scene)?;
    operator.unshard(&before)?;
    wait_certificates(&scene)
}
