//! kubectl, unmodified.

use std::process::Command;

use anyhow::{Result, ensure};
use ctrlmesh_e2e::{Kubectl, Proxy};
use serde_json::{Value, json};

use crate::direct::bed::{Bed, LIMIT, Way, name_of, names, policy};

/// kubectl through the proxy, in the test's namespace.
struct Through {
    bed: Bed,
    proxy: Proxy,
    kubectl: Kubectl,
}

impl Through {
    fn new(name: &str, policy: &str) -> Result<Self> {
        let bed = Bed::new(name)?;
        let proxy = Proxy::builder("mine", policy).start(&bed.api)?;
        let kubectl = proxy.kubectl(&bed.api, bed.token())?;
        Ok(Self { bed, proxy, kubectl })
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        let mut all = vec!["--namespace", &self.bed.namespace];
        all.extend(args);
        self.kubectl.run(&all)
    }

    /// The names of a list.
    fn names(&self, args: &[&str]) -> Result<Vec<String>> {
        let mut all = vec!["get", "-o", "json"];
        all.extend(args);
        Ok(names(&serde_json::from_str(&self.run(&all)?)?))
    }
}

fn of_team_a() -> String {
    policy("mine", None, &[(&[""], &["configmaps"], &["a"])])
}

#[test]
fn every_read_shows_the_shards_own() -> Result<()> {
    let it = Through::new("kubectl_reads", &of_team_a())?;
    it.bed.config_map("one", "team=a")?;
    it.bed.config_map("two", "team=b")?;
    it.bed.config_map("three", "")?;

    ensure!(it.names(&["configmaps"])? == ["one"]);
    ensure!(it.run(&["get", "cm", "-o", "name"])? == "configmap/one\n");
    let table = it.run(&["get", "cm"])?;
    ensure!(table.contains("one") && table.lines().count() == 2, "{table}");
    let wide = it.run(&["get", "cm", "-A", "-o", "wide"])?;
    ensure!(wide.contains("one") && !wide.contains("two") && !wide.contains("three"), "{wide}");
    let yaml = it.run(&["get", "cm", "-o", "yaml"])?;
    ensure!(yaml.contains("name: one") && !yaml.contains("name: two"), "{yaml}");
    let mixed = it.run(&["get", "cm,serviceaccounts", "-o", "name"])?;
    ensure!(mixed == "configmap/one\nserviceaccount/controller\n", "{mixed}");
    let chunked = it.run(&["get", "cm", "--chunk-size=1", "-o", "name"])?;
    ensure!(chunked == "configmap/one\n", "{chunked}");
    // A get by name passes: a controller that does not find an object would create it again.
    ensure!(it.run(&["get", "cm", "two", "-o", "name"])? == "configmap/two\n");
    let described = it.run(&["describe", "cm"])?;
    ensure!(described.contains("one") && !described.contains("two"), "{described}");
    ensure!(it.run(&["api-resources"])?.contains("configmaps"));
    ensure!(it.run(&["explain", "configmap.data"])?.contains("data"));
    Ok(())
}

#[test]
fn t46_another_shards_label_selects_nothing() -> Result<()> {
    let it = Through::new("kubectl_t46", &of_team_a())?;
    it.bed.config_map("one", "team=a,tier=web")?;
    it.bed.config_map("two", "team=b,tier=web")?;
    for selector in ["team=b", "team==b", "team in (b)", "team notin (a)", "!team", "team!=a"] {
        ensure!(it.names(&["cm", "-l", selector])?.is_empty(), "-l {selector:?} shows something");
    }
    for selector in ["team=a", "team in (a,b)", "tier=web", "team,tier", "!other"] {
        ensure!(it.names(&["cm", "-l", selector])? == ["one"], "-l {selector:?}");
    }
    ensure!(it.names(&["cm", "--field-selector", "metadata.name=one"])? == ["one"]);
    // Repeated keys, escapes and spellings, as no kubectl writes them.
    for query in [
        "labelSelector=team=b",
        "labelSelector=team%3Db",
        "labelSelector=team%3Db&labelSelector=team%3Da",
        "labelSelector=team%3Da&labelSelector=team%3Db",
        "labelSelector=",
        "labelSelector",
        "%6cabelSelector=team%3Db",
        "labelSelector=team+in+(b,a)",
        "labelSelector=team=b&limit=1",
    ] {
        let path = format!("{}?{query}", it.bed.path("configmaps"));
        let list = Way::Through(&it.proxy).client(&it.bed)?.get(&path)?.json()?;
        ensure!(!names(&list).contains(&"two".to_owned()), "{query}: {:?}", names(&list));
    }
    Ok(())
}

#[test]
fn every_write_works() -> Result<()> {
    let it = Through::new("kubectl_writes", &of_team_a())?;
    let manifest = |value: &str| {
        let metadata =
            json!({ "name": "mine", "namespace": it.bed.namespace, "labels": { "team": "a" } });
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "k": value } })
            .to_string()
    };
    let apply = |args: &[&str], value: &str| it.kubectl.run_with_input(args, &manifest(value));
    ensure!(apply(&["apply", "-f", "-"], "1")?.contains("created"));
    ensure!(apply(&["apply", "-f", "-"], "2")?.contains("configured"));
    ensure!(
        apply(&["apply", "--server-side", "--force-conflicts", "-f", "-"], "3")?
            .contains("serverside-applied")
    );
    let field = |path: &str| -> Result<String> {
        it.run(&["get", "cm", "mine", "-o", &format!("jsonpath={{{path}}}")])
    };
    ensure!(field(".data.k")? == "3");
    for (kind, patch) in [
        ("merge", r#"{"data":{"k":"4"}}"#),
        ("strategic", r#"{"data":{"k":"5"}}"#),
        ("json", r#"[{"op":"replace","path":"/data/k","value":"6"}]"#),
    ] {
        it.run(&["patch", "cm", "mine", "--type", kind, "-p", patch])?;
    }
    ensure!(field(".data.k")? == "6");

    let editor = it.bed.api.directory().join("edit.sh");
    std::fs::write(&editor, "#!/bin/sh\nsed -i 's/k: \"6\"/k: \"7\"/' \"$1\"\n")?;
    let mut edit: Command = it.kubectl.command();
    edit.args(["--namespace", &it.bed.namespace, "edit", "cm", "mine"]);
    edit.env("KUBE_EDITOR", format!("sh {}", editor.display()));
    let edited = edit.output()?;
    ensure!(
        edited.status.success(),
        "{}: {}",
        name_of(&editor),
        String::from_utf8_lossy(&edited.stderr)
    );
    ensure!(field(".data.k")? == "7");

    it.run(&["annotate", "cm", "mine", "note=seen"])?;
    ensure!(field(".metadata.annotations.note")? == "seen");
    ensure!(it.names(&["cm"])? == ["mine"]);
    it.run(&["label", "cm", "mine", "team=b", "--overwrite"])?;
    ensure!(it.names(&["cm"])?.is_empty(), "it has moved out");
    it.run(&["label", "cm", "mine", "team=a", "--overwrite"])?;
    ensure!(it.names(&["cm"])? == ["mine"], "it is back");
    ensure!(it.run(&["delete", "cm", "mine"])?.contains("deleted"));
    ensure!(it.names(&["cm"])?.is_empty());
    Ok(())
}

#[test]
fn a_watch_shows_what_moves_in_and_out() -> Result<()> {
    let it = Through::new("kubectl_watch", &of_team_a())?;
    it.bed.config_map("stays", "team=a")?;
    it.bed.config_map("other", "team=b")?;
    let mut command = it.kubectl.command();
    command.args(["--namespace", &it.bed.namespace, "get", "cm", "-w", "--output-watch-events"]);
    command.args(["--no-headers", "-o", "custom-columns=T:.type,N:.object.metadata.name"]);
    let watch = it.bed.program("kubectl-watch", &command)?;
    let said = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        watch.wait_for(LIMIT, |printed| {
            printed.as_str().is_some_and(|printed| {
                printed.split_whitespace().eq(words.iter().map(String::as_str))
            })
        })
    };
    said("ADDED stays")?;
    it.bed.relabel("other", Some("a"))?;
    said("ADDED other")?;
    it.bed.relabel("stays", None)?;
    said("DELETED stays")?;
    it.bed.config_map("never", "team=c")?;
    it.bed.delete("other")?;
    said("DELETED other")?;
    let lines: Vec<String> = watch.lines().iter().map(Value::to_string).collect();
    ensure!(lines.len() == 4, "{lines:?}");
    Ok(())
}

#[test]
fn t56_deletecollection_touches_the_shards_own_alone() -> Result<()> {
    let it = Through::new("kubectl_t56", &of_team_a())?;
    for (name, labels) in [("a1", "team=a"), ("a2", "team=a"), ("b1", "team=b"), ("none", "")] {
        it.bed.config_map(name, labels)?;
    }
    // kubectl lists and deletes one by one; a controller deletes the collection.
    it.run(&["delete", "cm", "--all"])?;
    let left = |it: &Through| {
        Ok::<_, anyhow::Error>(names(&it.bed.api.client().get(&it.bed.path("configmaps"))?.json()?))
    };
    ensure!(left(&it)? == ["b1", "none"], "{:?}", left(&it)?);
    it.bed.config_map("a3", "team=a")?;
    let through = Way::Through(&it.proxy).client(&it.bed)?;
    for query in ["", "?labelSelector=team%3Db", "?labelSelector=%21team", "?limit=1"] {
        through.delete(&format!("{}{query}", it.bed.path("configmaps")))?.json()?;
    }
    ensure!(left(&it)? == ["b1", "none"], "{:?}", left(&it)?);
    Ok(())
}

#[test]
fn t54_what_shards_share_is_whole_under_a_rule_for_everything() -> Result<()> {
    let it = Through::new("kubectl_t54", &policy("mine", None, &[(&["*"], &["*"], &["a"])]))?;
    it.bed.config_map("hidden", "team=b")?;
    it.bed.config_map("shown", "team=a")?;
    let namespace = it.bed.namespace.as_str();
    it.bed.api.apply(&format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"lease","namespace":"{namespace}"}},"spec":{{}}}}"#
    ))?;
    it.bed.api.apply(&format!(
        r#"{{"apiVersion":"v1","kind":"Event","metadata":{{"name":"event","namespace":"{namespace}"}},"involvedObject":{{"namespace":"{namespace}"}},"reason":"Test"}}"#
    ))?;
    it.bed.api.apply(
        r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"t54s.example.com"},
        "spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"t54s","singular":"t54","kind":"T54"},
        "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}"#,
    )?;
    ensure!(it.names(&["configmaps"])? == ["shown"]);
    ensure!(it.names(&["secrets"])?.is_empty() && it.names(&["serviceaccounts"])?.is_empty());
    ensure!(it.names(&["leases"])? == ["lease"]);
    ensure!(
        it.names(&["events"])? == ["event"] && it.names(&["events.events.k8s.io"])? == ["event"]
    );
    ensure!(it.names(&["crds"])?.contains(&"t54s.example.com".to_owned()));
    ensure!(it.names(&["apiservices"])?.len() > 5);
    ensure!(it.run(&["auth", "can-i", "list", "pods"])?.trim() == "yes");
    ensure!(it.run(&["auth", "whoami", "-o", "json"])?.contains(&it.bed.account.user()));
    for path in ["/api", "/apis", "/version", "/readyz", "/openapi/v3", "/apis/apps/v1"] {
        let (through, straight) =
            (it.run(&["get", "--raw", path])?, it.bed.api.kubectl(&["get", "--raw", path])?);
        ensure!(through == straight, "{path}");
    }
    Ok(())
}
