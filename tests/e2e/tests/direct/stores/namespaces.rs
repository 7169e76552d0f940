//! Shards by the labels of namespaces. The oracle is what the API server holds in the namespaces
//! that have the label.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy, Rule, ctrlmesh_binary};
use serde_json::{Value, json};

use super::{Store, content, expect_store};
use crate::direct::bed::{Bed, LIMIT, Way, output, sharding_config, until_ready_says};

const CONFIGS: &str = "/apis/ctrlmesh.kusionstack.io/v1alpha1";
const KINDS: [(&str, &[&str]); 3] = [
    ("protobuf", &[]),
    ("JSON, paged", &["--json", "--watchlist=false"]),
    ("metadata", &["--metadata"]),
];
const RESOURCES: [&str; 3] = ["configmaps", "secrets", "namespaces"];

/// Namespaces of the test's own, by a label of its own.
struct Tenants<'a> {
    bed: &'a Bed,
    tiers: BTreeMap<&'static str, &'static str>,
}

impl Tenants<'_> {
    fn name(&self, tenant: &str) -> String {
        format!("{}-{tenant}", self.bed.namespace)
    }

    fn label(&self, tier: &str) -> Value {
        json!({ format!("{}/tier", self.bed.namespace): tier })
    }

    /// A namespace with two objects of each kind.
    fn create(&mut self, tenant: &'static str, tier: &'static str) -> Result<()> {
        let client = self.bed.api.client();
        let name = self.name(tenant);
        let namespace = json!({ "metadata": { "name": name, "labels": self.label(tier) } });
        client.post("/api/v1/namespaces", &namespace)?.json()?;
        for resource in ["configmaps", "secrets"] {
            for at in 0..2 {
                let object = json!({ "metadata": { "name": format!("object-{at}") } });
                client.post(&format!("/api/v1/namespaces/{name}/{resource}"), &object)?.json()?;
            }
        }
        self.tiers.insert(tenant, tier);
        Ok(())
    }

    fn relabel(&mut self, tenant: &'static str, tier: &'static str) -> Result<()> {
        let patch = json!({ "metadata": { "labels": self.label(tier) } }).to_string();
        let path = format!("/api/v1/namespaces/{}", self.name(tenant));
        let kind = "application/merge-patch+json";
        self.bed.api.client().request("PATCH", &path, kind, patch.into_bytes())?.json()?;
        self.tiers.insert(tenant, tier);
        Ok(())
    }

    /// A ShardingConfig of the cluster for the gold ones.
    fn draw(&self) -> Result<()> {
        let limit = json!({
            "relateResources": [{ "apiGroups": [""], "resources": RESOURCES }],
            "namespaces": { "selector": { "matchLabels": self.label("gold") } },
            "clusterScoped": "Exclude",
        });
        let config = sharding_config("mine", &[limit]);
        let path = format!("{CONFIGS}/namespaces/{}/shardingconfigs", self.bed.namespace);
        self.bed.api.client().post(&path, &config)?.json().map(drop)
    }

    /// What the shard should show of a resource.
    fn store(&self, resource: &str) -> Result<Store> {
        let mut store = Store::new();
        let gold = self.tiers.iter().filter(|(_, tier)| **tier == "gold");
        for (tenant, _) in gold {
            let name = self.name(tenant);
            let path = match resource {
                "namespaces" => format!("/api/v1/namespaces?fieldSelector=metadata.name%3D{name}"),
                _ => format!("/api/v1/namespaces/{name}/{resource}"),
            };
            let list = self.bed.api.client().get(&path)?.json()?;
            for item in list["items"].as_array().context("items")? {
                let meta = &item["metadata"];
                let object = json!({ "rv": meta["resourceVersion"], "labels": meta["labels"] });
                store.insert(meta["uid"].as_str().context("uid")?.to_owned(), content(&object));
            }
        }
        Ok(store)
    }

    fn expect(&self, what: &str, informers: &mut [(String, &str, Program)]) -> Result<()> {
        for (kind, resource, informer) in informers {
            expect_store(&format!("{kind}, {what}"), informer, &self.store(resource)?)?;
        }
        Ok(())
    }
}

#[test]
fn relabelling_a_namespace_moves_its_objects_in_all_watched_kinds() -> Result<()> {
    let bed = Bed::new("relabelled")?;
    bed.install_crds()?;
    let mut tenants = Tenants { bed: &bed, tiers: BTreeMap::new() };
    tenants.create("ant", "gold")?;
    tenants.create("bee", "tin")?;
    tenants.draw()?;
    let proxy = bed.proxy_of_cluster(&[])?;
    until_ready_says(&proxy, "[+]policy ok: mine epoch 1\n")?;
    let mut informers = Vec::new();
    for resource in RESOURCES {
        for (kind, args) in KINDS {
            let resource_arg = format!("--resource=v1/{resource}");
            let args = [args, &["--all-namespaces", &resource_arg]].concat();
            let informer = bed.clients(&Way::Through(&proxy), "informer", &args)?;
            informers.push((format!("{resource}, {kind}"), resource, informer));
        }
    }
    tenants.expect("at first", &mut informers)?;
    ensure!(tenants.store("configmaps")?.len() == 2 && tenants.store("namespaces")?.len() == 1);

    tenants.relabel("bee", "gold")?;
    tenants.expect("bee is gold too", &mut informers)?;
    tenants.relabel("ant", "tin")?;
    tenants.expect("ant is not any more", &mut informers)?;
    tenants.create("cat", "gold")?;
    tenants.expect("cat is new, and gold", &mut informers)?;
    ensure!(tenants.store("secrets")?.len() == 4);

    // Who can be told apart by nothing but a label of no rule moves nothing.
    let epoch = proxy.metric("ctrlmesh_policy_epoch")?;
    tenants.relabel("ant", "lead")?;
    tenants.create("dog", "tin")?;
    tenants.relabel("cat", "tin")?;
    tenants.expect("cat is not any more", &mut informers)?;
    ensure!(
        proxy.metric("ctrlmesh_policy_epoch")? == epoch + 1.0,
        "two changes mattered to no one"
    );
    let kubectl = proxy.kubectl(&bed.api, bed.token())?;
    let table = kubectl.run(&["get", "configmaps", "-A", "--no-headers"])?;
    let bee = tenants.name("bee");
    ensure!(table.lines().count() == 2 && table.lines().all(|l| l.starts_with(&bee)), "{table}");
    ensure!(proxy.metric("ctrlmesh_policy_rejected_total")? == 0.0);
    for (kind, _, informer) in informers {
        let summary = informer.finish(LIMIT)?.pop().context("a summary")?;
        ensure!(summary["count_watchErrors"] == 0, "{kind}: {summary}");
        ensure!(summary["count_watches"] == 1, "{kind}: {summary}");
        let lists = i64::from(kind.contains("paged"));
        ensure!(summary["count_lists"] == lists, "{kind}: listed again: {summary}");
    }
    let how = |how| proxy.metric(&format!("ctrlmesh_stream_changes_total{{how=\"{how}\"}}"));
    println!("relabelled: {} watches were brought over by difference", how("difference")?);
    ensure!(how("expired")? == 0.0);
    Ok(())
}

/// The ClusterRole and its binding as `ctrlmesh inject` prints them for an account.
fn printed_rights(bed: &Bed, account: &str) -> Result<String> {
    let mesh_ca = bed.api.directory().join(format!("mesh-ca-{}", bed.namespace));
    output(Command::new(ctrlmesh_binary()?).arg("mesh-ca").arg(&mesh_ca))?;
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "operator",
            "namespace": bed.namespace,
            "labels": { "ctrlmesh.kusionstack.io/enable-proxy": "true" },
        },
        "spec": {
            "serviceAccountName": account,
            "containers": [{ "name": "operator", "image": "operator" }],
        },
    });
    let manifest = bed.api.directory().join(format!("pod-{}.json", bed.namespace));
    std::fs::write(&manifest, pod.to_string())?;
    let mut inject = Command::new(ctrlmesh_binary()?);
    inject.args(["inject", "--namespace-labels", "--init-image=i", "--proxy-image=p", "-f"]);
    inject.arg(manifest).arg("--mesh-ca-dir").arg(mesh_ca);
    let printed = output(inject.arg("--cluster-ca").arg(bed.api.ca_file()))?;
    let printed = String::from_utf8(printed)?;
    let rights = printed.split("---\n").filter(|document| document.contains("kind: ClusterRole"));
    Ok(rights.collect::<Vec<_>>().join("---\n"))
}

#[test]
fn bad_rights_to_namespaces_are_missing() -> Result<()> {
    let bed = Bed::new("no-rights")?;
    bed.install_crds()?;
    let mut tenants = Tenants { bed: &bed, tiers: BTreeMap::new() };
    tenants.create("ant", "gold")?;
    tenants.draw()?;
    // What the Role of an injected pod grants, and no more.
    let rules = [
        Rule::new(&[""], &["configmaps"], &["get", "list", "watch"]),
        Rule::new(&["ctrlmesh.kusionstack.io"], &["shardingconfigs"], &["get", "list", "watch"]),
    ];
    let account = bed.api.service_account(&bed.namespace, "narrow", &rules)?;
    let proxy = Proxy::builder("mine", "")
        .policy_of_cluster(&account.kubeconfig, &bed.namespace)
        .start(&bed.api)?;
    for why in [
        "[-]policy failed: ShardingConfig ",
        ": spec.limits[0].namespaces.selector needs the labels of namespaces: ",
        "may not list and watch namespaces (ClusterRole ctrlmesh-proxy-namespaces, ",
        "cannot list resource \"namespaces\"",
    ] {
        until_ready_says(&proxy, why)?;
    }
    let client = proxy.client(&account.token)?;
    let answer = client.get("/api/v1/configmaps")?;
    ensure!(answer.status == 503, "{} {}", answer.status, answer.text);

    bed.api.apply(&printed_rights(&bed, "narrow")?)?;
    until_ready_says(&proxy, "[+]policy ok: mine epoch 1\n")?;
    let list = client.get("/api/v1/configmaps")?.json()?;
    ensure!(list["items"].as_array().context("items")?.len() == 2, "{list}");
    Ok(())
}
