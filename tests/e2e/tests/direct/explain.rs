//! `ctrlmesh explain` against a cluster: what it says is what informers see.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Rule, ctrlmesh_binary};
use serde_json::{Value, json};

use crate::direct::bed::{Bed, LIMIT, Way, sharding_config, until_ready_says};

/// Each section of the output, such as `secrets leaves`, with the names in it.
type Told = BTreeMap<(String, String), BTreeSet<String>>;

fn told(output: &str) -> Told {
    let mut told = Told::new();
    let (mut resource, mut section) = (String::new(), String::new());
    for line in output.lines() {
        if !line.starts_with(' ') {
            line.clone_into(&mut resource);
        } else if line.starts_with("   ") {
            let names = told.entry((resource.clone(), section.clone())).or_default();
            names.insert(line.trim().to_owned());
        } else {
            section = line.split_whitespace().next().unwrap_or_default().to_owned();
            told.entry((resource.clone(), section.clone())).or_default();
        }
    }
    told
}

fn limit(resource: &str, what: &Value) -> Value {
    let mut limit = what.clone();
    limit["relateResources"] = json!([{ "apiGroups": [""], "resources": [resource] }]);
    limit["clusterScoped"] = "Exclude".into();
    limit
}

fn half(from: &str, to: &str) -> Value {
    json!({ "hash": { "of": "uid", "ranges": [{ "from": from, "to": to }] } })
}

const QUARTER: &str = "0x4000000000000000";
const MIDDLE: &str = "0x8000000000000000";

/// By the labels of namespaces, and by hash; then by names and labels, and by another hash.
fn policies() -> [String; 2] {
    let gold = json!({ "namespaces": { "selector": { "matchLabels": { "tier": "gold" } } } });
    let teams = json!({
        "namespaces": { "pattern": "bee|cat" },
        "selector": { "matchLabels": { "team": "a" } },
    });
    let services = limit("services", &gold);
    [
        vec![
            limit("configmaps", &gold),
            limit("secrets", &half("0x0000000000000000", MIDDLE)),
            services.clone(),
        ],
        vec![
            limit("configmaps", &teams),
            limit("secrets", &half(QUARTER, "")),
            services,
            limit("gadgets", &gold),
        ],
    ]
    .map(|limits| sharding_config("mine", &limits).to_string())
}

fn put(bed: &Bed, config: &str) -> Result<()> {
    let path = "/apis/ctrlmesh.kusionstack.io/v1alpha1";
    let path = format!("{path}/namespaces/{}/shardingconfigs/mine", bed.namespace);
    let target = format!("{path}?fieldManager=test&force=true");
    let kind = "application/apply-patch+yaml";
    bed.api.client().request("PATCH", &target, kind, config.into())?.json().map(drop)
}

fn fill(bed: &Bed) -> Result<()> {
    let client = bed.api.client();
    for (name, tier) in [("ant", "gold"), ("bee", "gold"), ("cat", "tin")] {
        let namespace = json!({ "metadata": { "name": name, "labels": { "tier": tier } } });
        client.post("/api/v1/namespaces", &namespace)?.json()?;
        for at in 0..12 {
            let labels = json!({ "team": if at % 3 == 0 { "a" } else { "b" } });
            let object =
                json!({ "metadata": { "name": format!("object-{at}"), "labels": labels } });
            for resource in ["configmaps", "secrets"] {
                client.post(&format!("/api/v1/namespaces/{name}/{resource}"), &object)?.json()?;
            }
        }
    }
    Ok(())
}

/// What an informer through the proxy has in its store when it is synced.
fn seen(bed: &Bed, way: &Way<'_>, resource: &str) -> Result<BTreeSet<String>> {
    let resource = format!("--resource=v1/{resource}");
    let mut informer = bed.clients(way, "informer", &["--all-namespaces", &resource])?;
    informer.wait_for(LIMIT, |line| line["event"] == "synced")?;
    let store = informer.ask("", "store", LIMIT)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |object: &Value| format!("{}/{}", text(&object["ns"]), text(&object["name"]));
    let names = store["objects"].as_array().context("objects")?.iter().map(name).collect();
    informer.finish(LIMIT)?;
    Ok(names)
}

fn explain(kubeconfig: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(ctrlmesh_binary()?);
    command.arg("explain").args(args).env("KUBECONFIG", kubeconfig);
    command.output().context("ctrlmesh explain")
}

fn explained(kubeconfig: &Path, args: &[&str]) -> Result<String> {
    let output = explain(kubeconfig, args)?;
    ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn file(bed: &Bed, name: &str, text: &str) -> Result<PathBuf> {
    let path = bed.api.directory().join(name);
    fs::write(&path, text)?;
    Ok(path)
}

/// What it says must be exactly how the two stores differ.
fn is_how_they_differ(told: &Told, resource: &str, stores: [&BTreeSet<String>; 2]) -> Result<()> {
    let [before, after] = stores;
    for (section, names) in
        [("leaves", before - after), ("comes", after - before), ("stays", before & after)]
    {
        println!("{resource}: {} {section}", names.len());
        ensure!(!names.is_empty(), "{resource}: nothing {section}, which tests nothing");
        let told = told.get(&(resource.to_owned(), section.to_owned()));
        ensure!(told == Some(&names), "{resource} {section}: {told:?}, not {names:?}");
    }
    Ok(())
}

#[test]
fn the_objects_that_change_hands_are_those_that_informers_lose_and_gain() -> Result<()> {
    let bed = Bed::with_own_server("moves")?;
    bed.install_crds()?;
    fill(&bed)?;
    let [old, new] = policies();
    put(&bed, &old)?;
    let new_file = file(&bed, "new.yaml", &new)?;
    let new_file = new_file.to_str().context("a path")?;
    let shard = format!("{}/mine", bed.namespace);
    let args = ["--diff", "cluster", new_file, "--shard", &shard, "--all"];
    let text = explained(&bed.account.kubeconfig, &args)?;
    println!("{text}");

    let proxy = bed.proxy_of_cluster(&[])?;
    until_ready_says(&proxy, "[+]policy ok: mine epoch 1\n")?;
    let way = Way::Through(&proxy);
    let before = [seen(&bed, &way, "configmaps")?, seen(&bed, &way, "secrets")?];
    put(&bed, &new)?;
    until_ready_says(&proxy, "[+]policy ok: mine epoch 2\n")?;
    let after = [seen(&bed, &way, "configmaps")?, seen(&bed, &way, "secrets")?];
    for (at, resource) in ["configmaps", "secrets"].into_iter().enumerate() {
        is_how_they_differ(&told(&text), resource, [&before[at], &after[at]])?;
    }
    ensure!(text.contains("gadgets\n  is not in the cluster\n"), "{text}");
    ensure!(text.ends_with("resources limited as before: 1\n"), "{text}");

    // The other way round, from two files, each with one ShardingConfig.
    let old_file = file(&bed, "old.yaml", &old)?;
    let args = ["--diff", new_file, old_file.to_str().context("a path")?];
    let back = explained(&bed.account.kubeconfig, &args)?;
    let total = |text: &str, what: &str| -> Option<String> {
        let (_, total) = text.split_once("in all\n")?;
        let line = total.lines().find(|line| line.trim_start().starts_with(what))?;
        line.split_whitespace().nth(1).map(str::to_owned)
    };
    ensure!(total(&back, "leaves") == total(&text, "comes"), "{back}");
    ensure!(back.contains(" more\n"), "without --all the first ten are named: {back}");
    Ok(())
}

#[test]
fn the_policy_is_found_by_a_pod_or_by_its_name() -> Result<()> {
    let bed = Bed::with_own_server("by-pod")?;
    bed.install_crds()?;
    fill(&bed)?;
    let [old, _] = policies();
    put(&bed, &old)?;
    let pod = json!({
        "metadata": { "name": "operator", "labels": { "app": "operator" } },
        "spec": {
            "serviceAccountName": "controller",
            "containers": [{ "name": "operator", "image": "operator" }],
        },
    });
    bed.api.client().post(&bed.path("pods"), &pod)?.json()?;
    let request = ["GET", "/api/v1/namespaces/ant/configmaps?limit=500"];
    let expected = "request   list configmaps in ant\n\
                    limit     namespace labels tier=gold, nothing without a namespace\n\
                    labels    tier=gold is ant, bee\n\
                    upstream  GET /api/v1/namespaces/ant/configmaps?limit=500, as it came\n\
                    here      passes\n";
    let kubeconfig = &bed.account.kubeconfig;
    let own = |name: &str| format!("{}/{name}", bed.namespace);
    let policy = file(&bed, "policy.yaml", &old)?;
    let policy = policy.to_str().context("a path")?;
    for from in [
        ["--pod", &own("operator")].as_slice(),
        &["--shard", &own("mine")],
        &["--policy", policy, "--shard", "mine"],
    ] {
        let told = explained(kubeconfig, &[from, &request[..]].concat())?;
        ensure!(told == expected, "{from:?}: {told}");
    }

    let narrow = [Rule::new(&[""], &["configmaps", "namespaces"], &["list"])];
    let narrow = bed.api.service_account("narrow", "narrow", &narrow)?.kubeconfig;
    let nowhere = bed.api.kubeconfig_for("https://127.0.0.1:1", bed.api.ca_pem(), "none")?;
    let new = file(&bed, "new.yaml", &policies()[1])?;
    let diff = ["--diff", policy, new.to_str().context("a path")?];
    for (kubeconfig, args, code, why) in [
        (kubeconfig, &[&["--shard", &own("theirs")], &request[..]].concat()[..], 64, "theirs"),
        (kubeconfig, &[&["--pod", &own("nobody")], &request[..]].concat(), 64, "nobody"),
        (kubeconfig, &request, 64, "--shard"),
        (&narrow, &[&["--shard", &own("mine")], &request[..]].concat(), 77, "shardingconfigs"),
        (&narrow, &diff, 77, "secrets"),
        (&nowhere, &diff, 69, "the cluster was asked"),
    ] {
        let output = explain(kubeconfig, args)?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(code), "{args:?}: {}: {said}", output.status);
        ensure!(said.contains(why), "{args:?}: {said}");
        // What could be told is notified.
        let told = String::from_utf8(output.stdout)?;
        let is_partial = told.contains("secrets\n  cannot be listed\n") && told.contains("leaves");
        ensure!(is_partial == why.contains("secrets") && is_partial != told.is_empty(), "{told}");
    }
    Ok(())
}
