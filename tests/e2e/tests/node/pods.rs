//! Clients of every kind in an injected pod, each by its own configuration: none knows of the
//! proxy.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditEntry, Program, images, until};
use serde_json::{Value, json};

use crate::node::toolbox::{ACCOUNT, LIMIT, NAMES, Tool, Toolbox, printed};

const FQDN: &str = NAMES[3];

#[test]
fn kubectl_in_a_pod_gets_lists_watches_applies_and_edits() -> Result<()> {
    let toolbox = Toolbox::start("kubectl")?;
    toolbox.config_map("mine", &toolbox.team)?;
    toolbox.config_map("theirs", "bee")?;

    reads(&toolbox)?;
    a_watch(&toolbox)?;
    t40_pods_of_all_namespaces(&toolbox)?;
    writes(&toolbox)?;
    logs(&toolbox)?;

    let asked = toolbox.asked()?;
    for verb in ["get", "list", "watch", "create", "patch", "delete"] {
        let is_it = |entry: &&AuditEntry| {
            let agent = entry.user_agent.as_deref().unwrap_or_default();
            entry.verb == verb && agent.starts_with("kubectl/")
        };
        let count = asked.iter().filter(is_it).count();
        ensure!(count > 0, "no {verb} of kubectl in the audit log");
        println!("kubectl in a pod: {count} of {verb}, each as the pod's ServiceAccount");
    }
    Ok(())
}

fn names(printed: &str) -> Vec<&str> {
    printed.lines().filter_map(|line| line.split_whitespace().next()).collect()
}

fn reads(toolbox: &Toolbox) -> Result<()> {
    let one =
        toolbox.kubectl(&["get", "configmap", "mine", "-o", "jsonpath={.metadata.labels}"])?;
    ensure!(one == format!(r#"{{"team":"{}"}}"#, toolbox.team), "{one}");
    let table = toolbox.kubectl(&["get", "configmaps"])?;
    ensure!(names(&table) == ["NAME", "mine"], "{table}");
    let everywhere = toolbox.kubectl(&["get", "configmaps", "-A", "--no-headers"])?;
    ensure!(everywhere.lines().count() == 1 && everywhere.contains("mine"), "{everywhere}");
    let json: Value = serde_json::from_str(&toolbox.kubectl(&["get", "cm", "-o", "json"])?)?;
    ensure!(json["items"].as_array().is_some_and(|items| items.len() == 1), "{json}");
    let pods = toolbox.kubectl(&["get", "pods", "-o", "name"])?;
    ensure!(pods == "pod/toolbox\n", "{pods}");
    Ok(())
}

/// The columns of pods, as kubectl prints them everywhere.
const COLUMNS: [&str; 6] = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"];

/// A pod that nothing schedules.
fn waiting_pod(toolbox: &Toolbox, namespace: &str, name: &str) -> Result<()> {
    let spec = json!({
        "schedulingGates": [{ "name": "example.com/never" }],
        "containers": [{ "name": "c", "image": images::BUSYBOX }],
    });
    let pod = json!({ "metadata": { "name": name }, "spec": spec });
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    toolbox.node().api().client().post(&path, &pod)?.json().map(drop)
}

/// A shard without a label, as a person sees it: a Table of all namespaces, and a watch of it.
fn t40_pods_of_all_namespaces(toolbox: &Toolbox) -> Result<()> {
    let (own, bees) = (&*toolbox.namespace, format!("{}-bees", toolbox.namespace));
    toolbox.node().kubectl(&["create", "namespace", &bees])?;
    waiting_pod(toolbox, &bees, "theirs")?;
    let is_row = |row: &str, name: &str| {
        let row: Vec<_> = row.split_whitespace().collect();
        row.len() == COLUMNS.len() && row[0] == own && row[1] == name
    };
    let table = toolbox.kubectl(&["get", "pods", "-A"])?;
    let mut rows = table.lines();
    ensure!(rows.next().is_some_and(|head| head.split_whitespace().eq(COLUMNS)), "{table}");
    ensure!(rows.clone().count() == 1 && rows.all(|row| is_row(row, "toolbox")), "{table}");

    let watch = toolbox.start_program(&[], Tool::Kubectl, &["get", "pods", "-A", "-w"])?;
    let shows = |name: &str| {
        watch.wait_for(LIMIT, |line| line.as_str().is_some_and(|line| is_row(line, name)))
    };
    shows("toolbox")?;
    // The other shard's pod is created first: it would be printed first.
    waiting_pod(toolbox, &bees, "their-new")?;
    waiting_pod(toolbox, own, "new")?;
    shows("new")?;
    let lines = watch.lines();
    let printed: Vec<_> = lines.iter().filter_map(Value::as_str).collect();
    ensure!(printed[0].split_whitespace().eq(COLUMNS), "{printed:?}");
    ensure!(printed.iter().all(|line| !line.contains("bees")), "{printed:?}");
    let node = toolbox.node();
    node.kubectl(&["--namespace", own, "delete", "pod", "new"])?;
    node.kubectl(&["delete", "namespace", &bees, "--wait=false"]).map(drop)
}

fn a_watch(toolbox: &Toolbox) -> Result<()> {
    let columns = "custom-columns=T:.type,N:.object.metadata.name";
    let args = ["get", "cm", "-w", "--output-watch-events", "--no-headers", "-o", columns];
    let watch = toolbox.start_program(&[], Tool::Kubectl, &args)?;
    let said = |words: [&str; 2]| {
        watch.wait_for(LIMIT, |line| {
            line.as_str().is_some_and(|line| line.split_whitespace().eq(words))
        })
    };
    said(["ADDED", "mine"])?;
    // The other shard's ConfigMap is created first: it would be printed first.
    toolbox.config_map("their-new", "bee")?;
    toolbox.config_map("new", &toolbox.team)?;
    said(["ADDED", "new"])?;
    let delete = ["--namespace", &toolbox.namespace, "delete", "cm", "their-new", "new"];
    toolbox.node().kubectl(&delete)?;
    said(["DELETED", "new"])?;
    let lines = watch.lines();
    ensure!(lines.len() == 3, "{lines:?}");
    Ok(())
}

fn writes(toolbox: &Toolbox) -> Result<()> {
    let apply = |value: &str| -> Result<String> {
        let metadata = json!({ "name": "written", "labels": { "team": toolbox.team } });
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "k": value },
        });
        let line = format!("{} apply -f - <<'END'\n{map}\nEND\n", toolbox.path(Tool::Kubectl)?);
        toolbox.run(Tool::Shell, &[&line])
    };
    let value = || toolbox.kubectl(&["get", "cm", "written", "-o", "jsonpath={.data.k}"]);
    let created = apply("first")?;
    ensure!(created == "configmap/written created\n", "{created}");
    let changed = apply("second")?;
    ensure!(changed == "configmap/written configured\n" && value()? == "second", "{changed}");

    let editor = [("KUBE_EDITOR", "sed -i s/second/third/")];
    let edited = toolbox.output(&editor, Tool::Kubectl, &["edit", "cm", "written"])?;
    let edited = printed(edited).context("kubectl edit")?;
    ensure!(edited == "configmap/written edited\n" && value()? == "third", "{edited}");

    let table = toolbox.kubectl(&["get", "configmaps", "--no-headers"])?;
    ensure!(names(&table) == ["mine", "written"], "{table}");
    let deleted = toolbox.kubectl(&["delete", "cm", "written"])?;
    ensure!(deleted.contains("deleted"), "{deleted}");
    let path = format!("/api/v1/namespaces/{}/configmaps/written", toolbox.namespace);
    let status = toolbox.node().api().client().get(&path)?.status;
    ensure!(status == 404, "deleted by kubectl, and the API server says {status}");
    Ok(())
}

fn logs(toolbox: &Toolbox) -> Result<()> {
    let own = toolbox.kubectl(&["logs", "toolbox", "-c", "ctrlmesh-proxy"])?;
    let straight = toolbox.node().logs(&toolbox.namespace, "toolbox", "ctrlmesh-proxy")?;
    ensure!(!own.is_empty() && straight.starts_with(&own), "logs differ:\n{own}\n{straight}");
    Ok(())
}

/// How a client is notified where the API server is.
#[derive(Clone, Copy, Debug)]
enum Way<'a> {
    /// By the kubelet, which gives an address.
    Environment,
    /// By the variable of its process, where the node gives a name.
    NameInEnvironment(&'a str),
    /// By its own URL.
    Server(&'a str),
}

impl Way<'_> {
    fn variables(&self) -> Vec<(&str, &str)> {
        match self {
            Self::NameInEnvironment(name) => vec![("KUBERNETES_SERVICE_HOST", name)],
            _ => Vec::new(),
        }
    }

    fn server(&self) -> Vec<String> {
        match self {
            Self::Server(host) => vec!["--server".to_owned(), format!("https://{host}")],
            _ => Vec::new(),
        }
    }

    /// The URL as a shell in the pod has it.
    fn url(&self) -> String {
        match self {
            Self::Server(host) => format!("https://{host}"),
            _ => "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT".to_owned(),
        }
    }
}

#[test]
fn i14_clients_of_every_kind_by_every_name() -> Result<()> {
    let toolbox = Toolbox::start("clients")?;
    toolbox.config_map("mine", &toolbox.team)?;
    toolbox.config_map("theirs", "bee")?;
    the_leaf_is_not_the_clusters(&toolbox)?;

    let mut ways = vec![Way::Environment, Way::NameInEnvironment(FQDN)];
    ways.push(Way::Server(&toolbox.service));
    ways.extend(NAMES.map(Way::Server));
    for (at, way) in ways.iter().enumerate() {
        let requests = |verb| {
            let labels = [("leg", "outbound"), ("verb", verb), ("resource", "configmaps")];
            toolbox.metric("ctrlmesh_requests_total", &labels)
        };
        let before = (requests("list")?, requests("watch")?);
        curl(&toolbox, way).with_context(|| format!("curl by {way:?}"))?;
        controllers(&toolbox, way, at).with_context(|| format!("{way:?}"))?;
        // curl, kube and Python list; client-go, kube and Python watch. A watch counts at its end.
        until(&format!("{way:?} is counted by the proxy"), LIMIT, || {
            let now = (requests("list")? - before.0, requests("watch")? - before.1);
            Ok((now == (3.0, 3.0)).then_some(()))
        })?;
    }

    let mut agents = BTreeSet::new();
    let mut count = 0;
    for entry in toolbox.asked()? {
        let object = entry.object_ref.unwrap_or_default();
        if object.resource == "configmaps" {
            let uri = &entry.request_uri;
            ensure!(uri.contains("labelSelector=team"), "asked for more than the shard: {uri}");
            agents.insert(entry.user_agent.unwrap_or_default());
            count += 1;
        }
    }
    // The crate kube does not name itself.
    ensure!(agents.len() == 4, "{agents:?}");
    println!(
        "i14: {} ways, {count} entries, all of the pod's ServiceAccount: {agents:?}",
        ways.len()
    );
    Ok(())
}

/// A client that trusts the cluster's CA alone, the first of the bundle, refuses: what the others
/// verify is the mesh's.
fn the_leaf_is_not_the_clusters(toolbox: &Toolbox) -> Result<()> {
    let url = format!("https://{}/version", toolbox.service);
    let line = format!(
        "openssl x509 -in {ACCOUNT}/ca.crt -out /tmp/cluster.crt && \
         /usr/bin/curl -sS --cacert /tmp/cluster.crt {url}"
    );
    let refused = toolbox.output(&[], Tool::Shell, &[&line])?;
    ensure!(refused.status.code() == Some(60), "{refused:?}");
    Ok(())
}

fn curl(toolbox: &Toolbox, way: &Way<'_>) -> Result<()> {
    let line = format!(
        "/usr/bin/curl -sS --fail --cacert {ACCOUNT}/ca.crt \
         -H \"Authorization: Bearer $(cat {ACCOUNT}/token)\" \
         {}/api/v1/namespaces/{}/configmaps",
        way.url(),
        toolbox.namespace
    );
    let list = printed(toolbox.output(&way.variables(), Tool::Shell, &[&line])?)?;
    let list: Value = serde_json::from_str(&list)?;
    let items = list["items"].as_array().context("items")?;
    let is_own = |object: &Value| object["metadata"]["labels"]["team"] == *toolbox.team;
    ensure!(!items.is_empty() && items.iter().all(is_own), "{list}");
    Ok(())
}

/// client-go, kube and Python at once: what they have from the start, and what comes.
fn controllers(toolbox: &Toolbox, way: &Way<'_>, at: usize) -> Result<()> {
    let server = way.server();
    let start = |tool, subcommand: &[&str]| -> Result<Program> {
        let mut args = subcommand.to_vec();
        args.extend(["--namespace", &toolbox.namespace]);
        args.extend(server.iter().map(String::as_str));
        toolbox.start_program(&way.variables(), tool, &args)
    };
    let programs = [
        (Tool::Go, start(Tool::Go, &["informer", "--wire"])?, "wire"),
        (Tool::Rust, start(Tool::Rust, &[])?, "list"),
        (Tool::Python, start(Tool::Python, &["listwatch"])?, "watch"),
    ];
    for (tool, program, first) in &programs {
        program
            .wait_for(LIMIT, |line| line["event"] == *first)
            .with_context(|| format!("the start of {tool:?}"))?;
    }
    let (own, theirs) = (format!("own-{at}"), format!("theirs-{at}"));
    toolbox.config_map(&theirs, "bee")?;
    toolbox.config_map(&own, &toolbox.team)?;
    for (tool, program, _) in programs {
        let is_it =
            |line: &Value| line["event"] == "wire" && line["object"]["name"] == own.as_str();
        program.wait_for(LIMIT, is_it).with_context(|| format!("the watch of {tool:?}"))?;
        let lines = program.finish(LIMIT).with_context(|| format!("the end of {tool:?}"))?;
        let all = Value::from(lines).to_string();
        ensure!(all.contains("\"mine\"") && !all.contains("\"theirs"), "{tool:?} saw {all}");
    }
    Ok(())
}
