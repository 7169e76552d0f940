//! The chart: what it renders, what it refuses, what a real API server says to it, and what its
//! rights are good for. `BLESS=1` rewrites the golden files.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use ctrlmesh::cli::yaml;
use ctrlmesh_e2e::{ApiServer, helm_binary};
use serde_json::{Value, json};

use crate::golden;

/// The sets of values with golden files.
const SETS: [&str; 3] = ["least", "kusionstack", "everything"];
const NAMESPACE: &str = "ctrlmesh-system";
const MANAGER: &str = "system:serviceaccount:ctrlmesh-system:ctrlmesh-manager";
const DEFINITION: &str = "shardingconfigs.ctrlmesh.kusionstack.io";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Helm that knows no cluster and no settings of a user.
fn helm() -> Result<Command> {
    let mut helm = Command::new(helm_binary()?);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("HELM_")) {
            helm.env_remove(name);
        }
    }
    helm.current_dir(root()).env("KUBECONFIG", "/dev/null");
    Ok(helm)
}

/// Runs a command and returns what it prints. Fails with what it says.
fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().context("running a command")?;
    let said = String::from_utf8(output.stderr)?;
    if !output.status.success() {
        bail!("{:?}: {}\n{said}", command.get_args().collect::<Vec<_>>(), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn values(set: &str) -> String {
    format!("tests/golden/chart/{set}.values.yaml")
}

pub(crate) fn rendered(set: &str, more: &[&str]) -> Result<String> {
    let args = ["template", "ctrlmesh", "deploy/chart", "--namespace", NAMESPACE, "--values"];
    printed(helm()?.args(args).arg(values(set)).args(more))
}

#[test]
fn the_chart_has_nothing_to_lint() -> Result<()> {
    printed(helm()?.args(["lint", "--strict", "deploy/chart"]))?;
    for set in SETS {
        printed(helm()?.args(["lint", "--strict", "deploy/chart", "--values", &values(set)]))?;
    }
    Ok(())
}

#[test]
fn the_chart_renders_its_golden_files() -> Result<()> {
    for set in SETS {
        let text = rendered(set, &[])?;
        // The definitions are the same in all, and have a test of their own.
        let documents = text.split("---\n").filter(|text| !text.contains("templates/crds.yaml"));
        let text = documents.collect::<Vec<_>>().join("---\n");
        check(&format!("tests/golden/chart/{set}.yaml"), &text)?;
    }
    Ok(())
}

/// Checks that a golden file has these documents: versions of Helm differ in the blank lines
/// between them.
fn check(file: &str, text: &str) -> Result<()> {
    let documents = |text: &str| -> Vec<String> {
        let all = text.split("---\n").map(|document| document.trim().to_owned());
        all.filter(|document| !document.is_empty()).collect()
    };
    if documents(&std::fs::read_to_string(root().join(file))?) != documents(text) {
        golden::check_file(file, text);
    }
    Ok(())
}

/// The command that the base names, run from the root of the repository.
#[test]
fn the_base_is_rendered_by_the_command_that_it_names() -> Result<()> {
    let text = std::fs::read_to_string(root().join("deploy/base/kustomization.yaml"))?;
    let lines = text.lines().filter_map(|line| line.strip_prefix("#   "));
    let command = lines.map(|line| line.trim_end_matches('\\')).collect::<String>();
    let (command, file) = command.rsplit_once(" > ").context("a command that writes a file")?;
    let args = command.strip_prefix("helm ").context("a command of Helm")?;
    let text = printed(helm()?.args(args.split_whitespace()))?;
    check(file, &text)
}

#[test]
fn a_wrong_value_is_refused_by_its_name() -> Result<()> {
    let cases = [
        ("namespace=ctrlmesh", "namespace "),
        ("manager.replica=3", "replica "),
        ("manager.replicas=0", "manager.replicas"),
        ("manager.uid=0", "manager.uid"),
        ("manager.image.repo=", "manager.image.repo is empty"),
        ("manager.image.repo=registry.example.com/ctrlmesh:1", "manager.image.repo"),
        ("manager.image.tag=a b", "manager.image.tag"),
        ("manager.resources.cpu=1", "cpu "),
        ("manager.podDisruptionBudget.maxUnavailable=0", "maxUnavailable"),
        ("init.image.repo=", "init.image.repo is empty"),
        ("proxy.uid=0", "proxy.uid"),
        ("proxy.sidecar=none", "proxy.sidecar"),
        ("proxy.image.pullSecrets={a\\,b}", "proxy.image.pullSecrets.0"),
        ("trust.names={a b}", "trust.names.0"),
        ("trust.clusterDomain=cluster.local.", "trust.clusterDomain"),
        ("trust.leafLifetime=24h", "trust.leafLifetime"),
        ("webhook.timeoutSeconds=31", "webhook.timeoutSeconds"),
        ("podMonitor.interval=soon", "podMonitor.interval"),
        ("counted[0].resources={pods}", "apiGroups"),
        ("stamped[0].apiGroups={apps}", "resources"),
        ("shardingGroupVersionKinds.apps={Deployment}", "shardingGroupVersionKinds"),
        ("shardingGroupVersionKinds.v1=Pod", "shardingGroupVersionKinds.v1"),
    ];
    rendered("least", &[])?;
    for (value, words) in cases {
        let refused = rendered("least", &["--set", value]).err();
        let said = format!("{:#}", refused.with_context(|| format!("{value} was rendered"))?);
        // The first line has the arguments. Helm 4 writes paths as JSON pointers, and quotes names.
        let (_, said) = said.split_once('\n').context("a reason")?;
        let said = said.replace('/', ".").replace('\'', "");
        ensure!(said.contains(words), "{value}: {said}");
    }
    Ok(())
}

/// A namespace that warns of pods below the level `restricted`, with the account of a pod that names
/// none.
fn make_namespace(api: &ApiServer) -> Result<()> {
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": NAMESPACE,
            "labels": { "pod-security.kubernetes.io/warn": "restricted" },
        },
    });
    api.apply(&yaml::print(&namespace))?;
    api.kubectl(&["create", "serviceaccount", "default", "-n", NAMESPACE]).map(drop)
}

#[test]
fn what_deploy_holds_is_applied_without_a_warning() -> Result<()> {
    const ARGS: [&str; 3] = ["apply", "--dry-run=server", "--warnings-as-errors"];
    let api = ApiServer::start()?;
    make_namespace(&api)?;
    let deploy = root().join("deploy");
    let path = |name: &str| deploy.join(name).to_str().map(str::to_owned).context("UTF-8");
    api.kubectl(&[&ARGS[..], &["-f", &path("crds.yaml")?]].concat())?;
    api.kubectl(&[&ARGS[..], &["-k", &path("base")?]].concat())?;
    for set in SETS {
        let text = rendered(set, &[])?;
        // The Prometheus operator defines these.
        let own = text.split("---\n").filter(|text| !text.contains("monitoring.coreos.com"));
        let own = own.collect::<Vec<_>>().join("---\n");
        api.kubectl_client().run_with_input(&[&ARGS[..], &["-f", "-"]].concat(), &own)?;
    }
    // The sample needs its namespace and both definitions to be judged.
    for file in ["sample/namespace.yaml", "sample/crd.yaml", "crds.yaml"] {
        api.kubectl(&["apply", "-f", &path(file)?])?;
    }
    let established = ["wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"];
    api.kubectl(&established)?;
    api.kubectl(&[&ARGS[..], &["-k", &path("sample")?]].concat())?;
    api.kubectl(&[&ARGS[..], &["-f", &path("sample/widgets")?]].concat())?;
    // Nothing that is to be pulled has a name without a registry.
    let text = api.kubectl(&["kustomize", &path("base")?])?;
    let images: Vec<_> = text.lines().filter(|line| line.contains("ctrlmesh:")).collect();
    ensure!(images.iter().all(|line| line.contains(" registry.example.com/")), "{images:#?}");
    ensure!(images.len() == 2 && text.contains(" registry.example.com/ctrlmesh-init:"), "{text}");
    Ok(())
}

/// Applies an object as the manager.
fn apply_as_manager(api: &ApiServer, object: &Value) -> Result<String> {
    let args = ["apply", "--server-side", "--as", MANAGER, "-f", "-"];
    api.kubectl_client().run_with_input(&args, &object.to_string())
}

fn refused(what: &str, done: Result<String>) -> Result<()> {
    let said = format!("{:#}", done.err().with_context(|| format!("{what} was not refused"))?);
    ensure!(said.contains("forbidden"), "{what}: {said}");
    Ok(())
}

/// An API server with the chart's objects, and a namespace of an operator.
fn installed() -> Result<ApiServer> {
    let api = ApiServer::start()?;
    make_namespace(&api)?;
    api.apply(&rendered("least", &["--no-hooks"])?)?;
    api.kubectl(&["create", "namespace", "operators"])?;
    Ok(api)
}

fn holder(kind: &str, name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": kind,
        "metadata": { "name": name, "namespace": namespace },
        "data": { "ca.crt": "YQ==" },
    })
}

/// The binding of a role to the account of an operator.
fn binding(name: &str, role: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": { "name": name, "namespace": "operators" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": "op", "namespace": "operators" }],
    })
}

#[test]
fn the_manager_may_write_what_it_has_to_and_no_more() -> Result<()> {
    let api = installed()?;
    for object in [
        holder("ConfigMap", "ctrlmesh-ca-bundle", "operators"),
        binding("ctrlmesh-proxy", "ctrlmesh-proxy"),
    ] {
        // The second time it is there.
        apply_as_manager(&api, &object)?;
        apply_as_manager(&api, &object)?;
    }
    // Of its Secret it replaces the version that it has read.
    let secret = holder("Secret", "ctrlmesh-trust", NAMESPACE).to_string();
    for verb in ["create", "replace"] {
        api.kubectl_client().run_with_input(&[verb, "--as", MANAGER, "-f", "-"], &secret)?;
    }
    for object in [
        holder("ConfigMap", "other", "operators"),
        holder("Secret", "ctrlmesh-trust", "operators"),
        holder("Secret", "other", NAMESPACE),
        binding("other", "ctrlmesh-proxy"),
    ] {
        refused(&object.to_string(), apply_as_manager(&api, &object))?;
    }
    api.kubectl(&["delete", "rolebinding", "-n", "operators", "ctrlmesh-proxy"])?;
    let other = binding("ctrlmesh-proxy", "cluster-admin");
    refused("a binding of another role", apply_as_manager(&api, &other))?;

    let change = json!([{ "op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "" }]);
    // kubectl would read it first.
    let manager = api.client().with_token(&api.token(NAMESPACE, "ctrlmesh-manager")?);
    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/ctrlmesh");
        let json = "application/json-patch+json";
        manager.request("PATCH", &path, json, change.to_string().into_bytes())?.json()?;
    }
    for args in [
        &["create", "configmap", "ctrlmesh-ca-bundle", "-n", "default"][..],
        &["delete", "configmap", "ctrlmesh-ca-bundle", "-n", "operators"],
        &["delete", "secret", "ctrlmesh-trust", "-n", NAMESPACE],
    ] {
        refused(&args.join(" "), api.kubectl(&[args, &["--as", MANAGER]].concat()))?;
    }
    Ok(())
}

#[test]
fn the_manager_may_read_what_it_has_to_and_no_more() -> Result<()> {
    let api = installed()?;
    for args in [
        &["get", "services", "-n", "default", "--field-selector=metadata.name=kubernetes"][..],
        &["get", "pods", "-A"],
        &["get", "shardingconfigs", "-A"],
        &["get", "configmaps", "-A", "--field-selector=metadata.name=ctrlmesh-ca-bundle"],
        &["get", "rolebindings", "-A", "--field-selector=metadata.name=ctrlmesh-proxy"],
        &["get", "secrets", "-n", NAMESPACE, "--field-selector=metadata.name=ctrlmesh-trust"],
        &["get", "mutatingwebhookconfigurations", "--field-selector=metadata.name=ctrlmesh"],
        &["get", "validatingwebhookconfigurations", "--field-selector=metadata.name=ctrlmesh"],
        &["get", "lease", "ctrlmesh-manager", "-n", NAMESPACE, "--ignore-not-found"],
        &["get", "namespaces"],
    ] {
        api.kubectl(&[args, &["--as", MANAGER]].concat())?;
    }
    for args in [
        &["get", "secrets", "-A"][..],
        &["get", "secrets", "-n", NAMESPACE],
        &["get", "configmaps", "-A"],
        &["get", "rolebindings", "-A"],
        &["get", "services", "-n", "default"],
        &["get", "nodes"],
    ] {
        refused(&args.join(" "), api.kubectl(&[args, &["--as", MANAGER]].concat()))?;
    }
    Ok(())
}

/// Helm that works on this cluster.
fn helm_of(api: &ApiServer) -> Result<Command> {
    let mut helm = helm()?;
    helm.env("KUBECONFIG", api.kubeconfig()).env("KUBECACHEDIR", api.directory().join("helm"));
    helm.args(["--namespace", NAMESPACE]);
    Ok(helm)
}

/// The name and the caBundle of each webhook.
fn webhooks(api: &ApiServer) -> Result<Vec<(String, String)>> {
    let args = ["get", "mutatingwebhookconfiguration", "ctrlmesh", "-o", "json"];
    let configuration: Value = serde_json::from_str(&api.kubectl(&args)?)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let webhooks = configuration["webhooks"].as_array().context("webhooks")?.iter();
    let told = |hook: &Value| (text(&hook["name"]), text(&hook["clientConfig"]["caBundle"]));
    Ok(webhooks.map(told).collect())
}

#[test]
fn an_installation_is_told_an_upgrade_keeps_the_ca_bundle_an_uninstall_the_configs() -> Result<()> {
    let api = ApiServer::start()?;
    make_namespace(&api)?;
    let install = |more: &[&str]| {
        let args = ["install", "ctrlmesh", "deploy/chart", "--values", &values("least")];
        printed(helm_of(&api)?.args(args).args(more))
    };
    // As another chart left it, with a config.
    api.apply(&std::fs::read_to_string(root().join("deploy/crds.yaml"))?)?;
    api.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd", DEFINITION])?;
    let config = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "blue", "namespace": "default" },
        "spec": { "selector": { "matchLabels": { "app": "x" } } },
    });
    api.apply(&yaml::print(&config))?;
    let said = format!("{:#}", install(&[]).err().context("installed over another's CRD")?);
    ensure!(said.contains("invalid ownership metadata"), "{said}");
    let said = install(&["--take-ownership"])?;
    let (_, notes) = said.split_once("\nNOTES:\n").context("notes")?;
    golden::check_file("tests/golden/chart/notes.txt", notes);

    // As the manager writes it.
    let bundle = STANDARD.encode(api.ca_pem());
    let write = |at: usize| json!({ "op": "add", "path": format!("/webhooks/{at}/clientConfig/caBundle"), "value": bundle });
    let patch = format!("--patch={}", json!([write(0), write(1)]));
    let patched = ["patch", "mutatingwebhookconfiguration", "ctrlmesh", "--type=json", &patch];
    api.kubectl(&patched)?;
    let names = ["pods.ctrlmesh.kusionstack.io", "baseline.pods.ctrlmesh.kusionstack.io"];
    let upgrade = |chart: &str| {
        let args = ["upgrade", "ctrlmesh", chart, "--values", &values("least")];
        printed(helm_of(&api)?.args(args).args(["--set", "webhook.timeoutSeconds=6"]))
    };
    upgrade("deploy/chart")?;
    ensure!(webhooks(&api)? == names.map(|name| (name.to_owned(), bundle.clone())));

    // A chart that calls one of them otherwise.
    let other = api.directory().join("chart");
    printed(Command::new("cp").arg("-r").arg(root().join("deploy/chart")).arg(&other))?;
    let template = other.join("templates/webhooks.yaml");
    let text = std::fs::read_to_string(&template)?;
    std::fs::write(&template, text.replace("\"pods.ctrlmesh", "\"other.ctrlmesh"))?;
    upgrade(other.to_str().context("UTF-8")?)?;
    let wanted = [("other.ctrlmesh.kusionstack.io", ""), (names[1], &*bundle)];
    let wanted = wanted.map(|(name, bundle)| (name.to_owned(), bundle.to_owned()));
    ensure!(webhooks(&api)? == wanted, "{:?}", webhooks(&api)?);

    // No node is here to run the hook.
    printed(helm_of(&api)?.args(["uninstall", "ctrlmesh", "--no-hooks"]))?;
    api.kubectl(&["get", "shardingconfig", "blue"])?;
    api.kubectl(&["get", "clusterrole", "ctrlmesh-proxy"])?;
    for gone in ["mutatingwebhookconfiguration/ctrlmesh", "clusterrole/ctrlmesh-manager"] {
        ensure!(api.kubectl(&["get", gone]).is_err(), "{gone} is still there");
    }
    install(&[])?;
    Ok(())
}
