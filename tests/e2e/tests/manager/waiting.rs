//! Pods that wait for a ShardingConfig, and namespaces that end.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Manager, until};
use serde_json::{Value, json};

use crate::manager::scene::{
    BUNDLE, Bed, OPERATORS, Place, SOON, at, bundle, cluster, config, create, get, has,
    is_injected, manager, pod,
};

/// The Events of a namespace's pods.
fn events(api: &ApiServer, namespace: &str) -> Result<Vec<Value>> {
    let list = get(api, &format!("/api/v1/namespaces/{namespace}/events"))?.context("a list")?;
    Ok(list["items"].as_array().context("items")?.clone())
}

/// The one Event of a pod.
fn event(at: Place<'_>, pod: &str) -> Result<Option<Value>> {
    let mut of_pod = events(at.api, at.namespace)?;
    of_pod.retain(|event| event["involvedObject"]["name"] == pod);
    ensure!(of_pod.len() <= 1, "{of_pod:#?}");
    Ok(of_pod.pop())
}

fn labelled(name: &str, labels: &Value) -> Value {
    labelled_in(OPERATORS, name, labels)
}

fn labelled_in(namespace: &str, name: &str, labels: &Value) -> Value {
    let mut pod = pod(namespace, name);
    pod["metadata"]["labels"] = labels.clone();
    pod
}

#[test]
fn i12_a_pod_that_no_config_selects_is_injected_waits_and_has_one_event() -> Result<()> {
    let api = cluster()?;
    let mut first = manager(&api, &[])?;
    let ours = "ctrlmesh.kusionstack.io/enable-proxy";
    for pod in [
        labelled("blue", &json!({ (ours): "true", "shard": "blue" })),
        labelled("lone", &json!({ (ours): "true" })),
        labelled("kridge", &json!({ "kridge.kusionstack.io/enable-proxy": "true" })),
    ] {
        ensure!(is_injected(&create(&api, &pod, &[])?));
    }
    // In no order: the pod was first.
    create(&api, &config(OPERATORS), &[])?;
    let wait_for = |pod| until("an Event", SOON, || event(Place::operators(&api), pod));
    for waits in ["lone", "kridge"] {
        let event = wait_for(waits)?;
        ensure!(event["type"] == "Warning" && event["reason"] == "NoShardingConfig", "{event}");
    }
    let told = api.kubectl(&["describe", "pod", "lone", "-n", OPERATORS])?;
    has(&told, "ctrlmesh-manager")?;
    has(&told, "no ShardingConfig in namespace operators selects the pod's labels; write a")?;
    ensure!(event(Place::operators(&api), "blue")?.is_none(), "a config selects it");

    // Another leader writes the same one.
    let second = Manager::start(&api, "manager-1", &[])?;
    second.receive_reviews(&api)?;
    first.kill()?;
    until("the other leader has written it", SOON, || {
        let event = event(Place::operators(&api), "lone")?.context("it was there")?;
        Ok((event["reportingInstance"] == "manager-1").then_some(()))
    })?;

    let mut other = config(OPERATORS);
    other["metadata"]["name"] = json!("all");
    other["spec"]["selector"] =
        json!({ "matchExpressions": [{ "key": "shard", "operator": "Exists" }] });
    create(&api, &other, &[])?;
    let several = until("an Event of the pod that two select", SOON, || {
        event(Place::operators(&api), "blue")
    })?;
    has(&several["message"].to_string(), "exactly one config must select them")
}

#[test]
fn i13_a_pod_in_env_mode_whose_reviews_do_not_come_to_the_proxy_has_an_event() -> Result<()> {
    let bed = Bed::new("env-mode")?;
    let (api, at) = (bed.api(), bed.place());
    let labelled = |name, labels: &Value| labelled_in(at.namespace, name, labels);
    let mut config = config(at.namespace);
    config["spec"]["webhook"] = json!({ "certDir": "/certs", "port": 9443, "certSecret": "kept" });
    create(api, &config, &[])?;
    let ours = "ctrlmesh.kusionstack.io/enable-proxy";
    let mut env = labelled("env", &json!({ (ours): "true", "shard": "blue" }));
    env["metadata"]["annotations"] = json!({ "ctrlmesh.kusionstack.io/enable-iptables": "false" });
    ensure!(is_injected(&create(api, &env, &[])?));
    let event = until("an Event", SOON, || event(at, "env"))?;
    ensure!(event["type"] == "Warning" && event["reason"] == "WebhookNotRedirected", "{event}");
    has(&event["message"].to_string(), "nothing is redirected in env mode")?;
    // Its config says so, too, in its conditions until the pods have rules.
    let condition = |status: &str| {
        let config = get(api, &format!("{}/blue", at.configs()))?.context("the config")?;
        let mut all = config["status"]["conditions"].as_array().into_iter().flatten();
        let condition = all.find(|one| one["type"] == "WebhookRedirected");
        Ok(condition.filter(|one| one["status"] == status).cloned())
    };
    let is_false = until("a condition", SOON, || condition("False"))?;
    has(&is_false["message"].to_string(), "no effect on pod env: nothing is redirected")?;
    at.kubectl(&["delete", "pod", "env", "--force", "--grace-period=0"])?;
    let redirected = labelled("rules", &json!({ (ours): "true", "shard": "blue" }));
    ensure!(is_injected(&create(api, &redirected, &[])?));
    let is_true = until("the condition of pods with rules", SOON, || condition("True"))?;
    ensure!(is_true["reason"] == "Redirected", "{is_true}");
    Ok(())
}

#[test]
fn bad_i12_a_namespace_that_ends_holds_up_no_other_and_is_not_asked_again_and_again() -> Result<()>
{
    let api = cluster()?;
    let manager = manager(&api, &[])?;
    create(&api, &config(OPERATORS), &[])?;
    bundle(&api, OPERATORS)?;
    create(&api, &pod(OPERATORS, "lone"), &[])?;
    // No one here carries out the end, so it lasts.
    api.kubectl(&["delete", "namespace", OPERATORS, "--wait=false"])?;
    api.kubectl(&["delete", "configmap", BUNDLE, "-n", OPERATORS])?;
    let tried = || -> Result<usize> {
        let log = manager.log()?;
        Ok(log.matches("the namespace is being deleted").count())
    };
    until("the bundle and the Event were tried", SOON, || Ok((tried()? >= 2).then_some(())))?;
    create(&api, &config("default"), &[])?;
    bundle(&api, "default")?;
    ensure!(get(&api, &at(OPERATORS, "configmaps", BUNDLE))?.is_none());
    ensure!(tried()? <= 3, "asked again: {}", manager.log()?);
    for kind in ["ConfigMap", "RoleBinding", "Event"] {
        let failed = format!(r#"ctrlmesh_manager_writes_total{{kind="{kind}",result="failed"}}"#);
        ensure!(manager.metric(&failed)? == 0.0, "{failed}");
    }
    manager.wait_ready()
}

#[test]
fn i15_a_config_says_which_of_its_pods_have_no_proxy() -> Result<()> {
    let api = cluster()?;
    // One was created while no one injected, one does not ask for it, one is no one's.
    let asks = json!({ "ctrlmesh.kusionstack.io/enable-proxy": "true", "shard": "blue" });
    for name in ["early", "plain"] {
        create(&api, &labelled(name, &json!({ "shard": "blue" })), &[])?;
    }
    let label = "ctrlmesh.kusionstack.io/enable-proxy=true";
    api.kubectl(&["label", "pod", "early", label, "-n", OPERATORS])?;
    create(&api, &labelled("other", &json!({ "shard": "green" })), &[])?;
    let manager = manager(&api, &[])?;
    let config = create(&api, &config(OPERATORS), &[])?;
    let name = config["metadata"]["name"].as_str().context("a name")?;
    let path = format!(
        "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/{OPERATORS}/shardingconfigs/{name}"
    );
    let says = |status: Option<&str>| -> Result<String> {
        let mut last = Value::Null;
        let found = until("the condition", 2 * SOON, || {
            last = get(&api, &path)?.context("the config")?["status"].take();
            let mut all = last["conditions"].as_array().into_iter().flatten();
            let one = all.find(|one| one["type"] == "Injected");
            let is = one.and_then(|one| one["status"].as_str()) == status;
            let message = one.and_then(|one| one["message"].as_str()).unwrap_or_default();
            Ok(is.then(|| message.to_owned()))
        });
        found.with_context(|| format!("{status:?}: {last}"))
    };
    let message = says(Some("False"))?;
    let expected =
        "pod early and others is selected and has no proxy, so it sees all objects: give its";
    ensure!(message.starts_with(expected), "{message}");
    ensure!(manager.metric("ctrlmesh_manager_pods_left_out")? == 2.0);
    let event = until("an Event", SOON, || event(Place::operators(&api), name))?;
    ensure!(event["reason"] == "NotInjected" && event["message"] == message, "{event}");
    // Created again they are injected, but for the one that does not ask.
    api.kubectl(&["delete", "pod", "early", "plain", "-n", OPERATORS, "--force"])?;
    create(&api, &labelled("late", &asks), &[])?;
    says(Some("True"))?;
    api.kubectl(&["delete", "pod", "late", "-n", OPERATORS, "--force"])?;
    says(None).map(drop)
}
