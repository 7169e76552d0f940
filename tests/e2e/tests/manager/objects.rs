//! The objects that the leader keeps: authorities, bundles, rights, the API server's trust.

use std::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Manager, until};
use serde_json::{Value, json};

use crate::manager::scene::{
    BUNDLE, Bed, Place, SECRET, SOON, at, authorities, bundle, certificate, cluster, config,
    create, get, has, is_injected, manager, pod,
};

/// The accounts that may read what proxies need.
fn accounts(at: Place<'_>) -> Result<Option<Vec<String>>> {
    let group = "/apis/rbac.authorization.k8s.io/v1";
    let path = format!("{group}/namespaces/{}/rolebindings/ctrlmesh-proxy", at.namespace);
    let binding = get(at.api, &path)?;
    let name = |subject: &Value| subject["name"].as_str().unwrap_or_default().to_owned();
    Ok(binding.map(|binding| {
        assert_eq!(binding["roleRef"]["name"], "ctrlmesh-proxy");
        binding["subjects"].as_array().into_iter().flatten().map(name).collect()
    }))
}

#[test]
fn i12_a_namespace_has_its_bundle_before_its_first_pod_and_its_rights_with_it() -> Result<()> {
    let bed = Bed::new("bundle-first")?;
    let (api, at) = (bed.api(), bed.place());
    ensure!(get(api, &at.at("configmaps", BUNDLE))?.is_none(), "no one asked for it");
    create(api, &config(at.namespace), &[])?;
    let data = bundle(api, at.namespace)?;
    let text = data["ca.crt"].as_str().context("text")?;
    has(text, &certificate(api, "root.crt")?)?;
    // The cluster's own CA is in it, so that nothing breaks that goes past the proxy.
    ensure!(text.matches("BEGIN CERTIFICATE").count() == 2, "{text}");
    has(data["manager.crt"].as_str().context("text")?, &certificate(api, "serving.crt")?)?;
    ensure!(accounts(at)?.is_none(), "rights for no one");

    at.kubectl(&["create", "serviceaccount", "robot"])?;
    let mut robots = pod(at.namespace, "robot");
    robots["spec"]["serviceAccountName"] = json!("robot");
    for pod in [pod(at.namespace, "one"), pod(at.namespace, "two"), robots] {
        ensure!(is_injected(&create(api, &pod, &[])?));
    }
    until("rights for both accounts", SOON, || {
        let accounts = accounts(at)?;
        Ok((accounts == Some(vec!["default".to_owned(), "robot".to_owned()])).then_some(()))
    })?;
    // They go with the last pod of the account.
    at.kubectl(&["delete", "pod", "robot", "--now"])?;
    until("rights for one account", SOON, || {
        Ok((accounts(at)? == Some(vec!["default".to_owned()])).then_some(()))
    })
}

/// A server that takes connections and never answers. The receiver gets each.
fn silent_server() -> Result<(u16, mpsc::Receiver<TcpStream>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let (taken, streams) = mpsc::sync_channel(8);
    // It ends with the test's process, or with the receiver.
    thread::spawn(move || {
        listener.incoming().map_while(Result::ok).all(|stream| taken.send(stream).is_ok())
    });
    Ok((port, streams))
}

#[test]
fn bad_webhook_that_hangs_in_one_namespace_delays_no_bundle_of_another() -> Result<()> {
    let bed = Bed::new("hanging")?;
    let other = bed.another("other")?;
    let (api, at, other) = (bed.api(), bed.place(), other.place());
    let (port, streams) = silent_server()?;
    let hook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "hanging" },
        "webhooks": [{
            "name": "hanging.example.com",
            "clientConfig": { "url": format!("https://127.0.0.1:{port}/") },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
                "operations": ["CREATE", "UPDATE"],
            }],
            "namespaceSelector": {
                "matchLabels": { "kubernetes.io/metadata.name": at.namespace },
            },
            "timeoutSeconds": 30, "failurePolicy": "Fail", "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    create(api, &hook, &[])?;
    create(api, &config(at.namespace), &[])?;
    let _held = streams.recv_timeout(SOON).context("the bundle is not under way")?;
    create(api, &config(other.namespace), &[])?;
    let since = Instant::now();
    bundle(api, other.namespace)?;
    let took = since.elapsed();
    ensure!(took < Duration::from_secs(1), "the other bundle took {took:?}");
    ensure!(get(api, &at.at("configmaps", BUNDLE))?.is_none(), "the webhook let it in");
    api.kubectl(&["delete", "validatingwebhookconfiguration", "hanging"]).map(drop)
}

#[test]
fn i12_rights_to_the_labels_of_namespaces_are_there_while_a_config_needs_them() -> Result<()> {
    let bed = Bed::new("label-rights")?;
    let other = bed.another("other")?;
    let (api, at, other) = (bed.api(), bed.place(), other.place().namespace);
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/ctrlmesh-proxy-namespaces";
    let holders = || -> Result<Option<Vec<String>>> {
        let name = |holder: &Value| format!("{}/{}", holder["namespace"], holder["name"]);
        Ok(get(api, path)?.map(|binding| {
            binding["subjects"].as_array().into_iter().flatten().map(name).collect()
        }))
    };
    create(api, &config(at.namespace), &[])?;
    create(api, &config(other), &[])?;
    for namespace in [at.namespace, other] {
        create(api, &pod(namespace, "one"), &[])?;
    }
    until("rights in both namespaces", SOON, || Ok(accounts(at)?.map(drop)))?;
    ensure!(holders()?.is_none(), "no one needs them");
    let select = r#"{"spec":{"limits":[{"namespaces":{"selector":{"matchLabels":{"tier":"gold"}}},
        "clusterScoped":"Exclude"}]}}"#;
    let patch = |text| at.kubectl(&["patch", "shardingconfig", "blue", "--type=merge", "-p", text]);
    patch(select)?;
    until("they are there", SOON, || {
        Ok((holders()? == Some(vec![format!("{:?}/\"default\"", at.namespace)])).then_some(()))
    })?;
    patch(r#"{"spec":{"limits":[]}}"#)?;
    until("they are gone", SOON, || Ok((holders()? == Some(Vec::new())).then_some(())))
}

#[test]
fn i12_what_somebody_changes_is_restored_and_what_is_somebody_elses_is_left_alone() -> Result<()> {
    let bed = Bed::new("restored")?;
    let other = bed.another("other")?;
    let (api, manager, at, other) = (bed.api(), bed.manager(), bed.place(), other.place());
    let foreign = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": BUNDLE, "namespace": at.namespace },
        "data": { "ca.crt": "theirs" },
    });
    create(api, &foreign, &[])?;
    create(api, &config(other.namespace), &[])?;
    create(api, &config(at.namespace), &[])?;
    let right = bundle(api, other.namespace)?;
    let patch = r#"{"data":{"ca.crt":"wrong","more":"x"}}"#;
    let restored = || Ok((bundle(api, other.namespace)? == right).then_some(()));
    let changed = r#"{"data":{"ca.crt":"x"}}"#;
    other.kubectl(&["patch", "configmap", BUNDLE, "--type=merge", "-p", changed])?;
    until("a changed bundle is restored", SOON, restored)?;
    other.kubectl(&["delete", "configmap", BUNDLE])?;
    until("a deleted bundle is restored", SOON, restored)?;
    // A member of someone else's is theirs by server-side apply; ours is right.
    other.kubectl(&["patch", "configmap", BUNDLE, "--type=merge", "-p", patch])?;
    until("our part is restored", SOON, || {
        Ok((bundle(api, other.namespace)?["ca.crt"] == right["ca.crt"]).then_some(()))
    })?;

    until("the foreign one is reported", SOON, || {
        let failed = r#"ctrlmesh_manager_writes_total{kind="ConfigMap",result="failed"}"#;
        Ok((manager.metric(failed)? > 0.0).then_some(()))
    })?;
    has(&manager.log()?, "restored/ctrlmesh-ca-bundle is not ours")?;
    ensure!(bundle(api, at.namespace)?["ca.crt"] == "theirs");
    at.kubectl(&["delete", "configmap", BUNDLE])?;
    until("with the foreign one gone ours is there", SOON, || {
        Ok((bundle(api, at.namespace)? == right).then_some(()))
    })
}

#[test]
fn i12_a_secret_that_is_deleted_comes_back_with_the_same_root() -> Result<()> {
    let api = cluster()?;
    let _manager = manager(&api, &[])?;
    let before = authorities(&api)?;
    api.kubectl(&["delete", "secret", SECRET, "-n", Manager::NAMESPACE])?;
    until("the Secret is back", SOON, || {
        let secret = get(&api, &at(Manager::NAMESPACE, "secrets", SECRET))?;
        Ok(secret.map(|secret| secret["data"] == before))
    })
    .and_then(|is_same| {
        ensure!(is_same, "pods no longer trust the root");
        Ok(())
    })
}

#[test]
fn bad_i12_a_secret_that_is_half_written_is_named_and_left_as_it_is() -> Result<()> {
    let api = cluster()?;
    let path = at(Manager::NAMESPACE, "secrets", SECRET);
    {
        let mut first = manager(&api, &[])?;
        first.stop()?;
    }
    let patch = r#"[{"op":"remove","path":"/data/issuer.key"}]"#;
    let secret = SECRET;
    let namespace = Manager::NAMESPACE;
    api.kubectl(&["patch", "secret", secret, "-n", namespace, "--type=json", "-p", patch])?;
    let half = authorities(&api)?;
    let manager = Manager::start(&api, "manager-1", &[])?;
    until("it says what is missing", SOON, || {
        let (code, text) = manager.admin_page("/readyz")?;
        Ok((code == 503 && text.contains("key issuer.key is missing")).then_some(()))
    })?;
    until("it leads", SOON, || {
        Ok((manager.metric("ctrlmesh_manager_leader")? > 0.0).then_some(()))
    })?;
    ensure!(get(&api, &path)?.context("it is there")?["data"] == half, "overwritten");
    // Deleted, it is made again.
    api.kubectl(&["delete", "secret", secret, "-n", namespace])?;
    until("there are authorities", SOON, || {
        Ok(manager.admin_page("/readyz")?.1.contains("[+]authorities ok").then_some(()))
    })
}

#[test]
fn i12_the_ca_of_our_ports_is_written_into_every_webhook_and_again_when_it_is_lost() -> Result<()> {
    let api = cluster()?;
    let manager = manager(&api, &[])?;
    for (kind, count) in
        [("mutatingwebhookconfigurations", 2), ("validatingwebhookconfigurations", 1)]
    {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/ctrlmesh");
        the_ca_comes_back(&api, &path, count)?;
    }
    manager.wait_ready()
}

/// Replaces the configuration of so many webhooks, and waits until their CA is back.
fn the_ca_comes_back(api: &ctrlmesh_e2e::ApiServer, path: &str, count: usize) -> Result<()> {
    let bundles = || -> Result<Vec<Value>> {
        let hooks = get(api, path)?.context("webhooks")?;
        let all = hooks["webhooks"].as_array().context("a list")?;
        Ok(all.iter().map(|hook| hook["clientConfig"]["caBundle"].clone()).collect())
    };
    let right = bundles()?;
    ensure!(right.len() == count && right.iter().all(Value::is_string), "{right:?}");
    // A chart that is upgraded replaces the whole object, with other names.
    let mut renamed = get(api, path)?.context("webhooks")?;
    renamed["metadata"].as_object_mut().context("metadata")?.remove("resourceVersion");
    renamed["webhooks"][0]["name"] = json!("renamed.ctrlmesh.kusionstack.io");
    for webhook in renamed["webhooks"].as_array_mut().context("a list")? {
        webhook["clientConfig"].as_object_mut().context("an object")?.remove("caBundle");
    }
    let text = renamed.to_string();
    api.kubectl_client().run_with_input(&["replace", "-f", "-"], &text)?;
    until("the CA is back", SOON, || Ok((bundles()? == right).then_some(())))
}
