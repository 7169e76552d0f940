//! Writes that are not all made: both replicas are killed between any two of them, and the API server
//! refuses some.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Manager, until};
use serde_json::Value;

use crate::manager::{
    gate::Gate,
    scene::{
        BUNDLE, OPERATORS, SECRET, SOON, at, authorities, bundle, cluster, config, create, get,
        is_injected, manager, pod,
    },
};

const RIGHTS: &str =
    "/apis/rbac.authorization.k8s.io/v1/namespaces/operators/rolebindings/ctrlmesh-proxy";
/// More writes than any beginning has.
const MOST: usize = 20;
/// Answers of the gate: some for each of the first requests, and for those that repeat them.
const ANSWERS: usize = 12;

struct Scene {
    api: ApiServer,
    gate: Gate,
}

impl Scene {
    /// A mesh of two namespaces, one with an injected pod.
    fn new() -> Result<Self> {
        let api = cluster()?;
        let mut manager = manager(&api, &[])?;
        for namespace in [OPERATORS, "default"] {
            create(&api, &config(namespace), &[])?;
        }
        ensure!(is_injected(&create(&api, &pod(OPERATORS, "one"), &[])?));
        manager.stop()?;
        let gate = Gate::start(&api)?;
        Ok(Self { api, gate })
    }

    /// Two replicas behind the gate, which hooks call.
    fn two(&self, flags: &[&str]) -> Result<[Manager; 2]> {
        let start = |name| Manager::start_at(&self.api, &self.gate.url(), name, flags);
        let replicas = [start("manager-0")?, start("manager-1")?];
        replicas[0].receive_reviews(&self.api)?;
        Ok(replicas)
    }

    /// Takes all away that the leader has written.
    fn clear(&self) -> Result<()> {
        self.clear_lease()?;
        let delete = |args: &[&str]| {
            self.api.kubectl(&[&["delete", "--ignore-not-found"], args].concat()).map(drop)
        };
        delete(&["secret", SECRET, "-n", Manager::NAMESPACE])?;
        for namespace in [OPERATORS, "default"] {
            delete(&["configmap", BUNDLE, "-n", namespace])?;
        }
        delete(&["rolebinding", "ctrlmesh-proxy", "-n", OPERATORS])
    }

    /// A killed leader holds the Lease for a quarter of a minute.
    fn clear_lease(&self) -> Result<()> {
        let lease = ["lease", "ctrlmesh-manager", "-n", Manager::NAMESPACE];
        self.api.kubectl(&[&["delete", "--ignore-not-found"], &lease[..]].concat()).map(drop)
    }

    /// Whether all is written: both replicas are ready, and each namespace has what it needs.
    fn is_whole(&self, replicas: &[Manager; 2]) -> Result<bool> {
        let Some(data) = self.authorities()? else { return Ok(false) };
        for replica in replicas {
            if replica.admin_page("/readyz")?.0 != 200 {
                return Ok(false);
            }
        }
        for namespace in [OPERATORS, "default"] {
            let map = get(&self.api, &at(namespace, "configmaps", BUNDLE))?;
            let text = map.map(|map| map["data"]["ca.crt"].to_string()).unwrap_or_default();
            let roots = 1 + usize::from(!data["root-next.crt"].is_null());
            // With the cluster's own.
            if text.matches("BEGIN CERTIFICATE").count() != roots + 1 {
                return Ok(false);
            }
        }
        Ok(get(&self.api, RIGHTS)?.is_some())
    }

    fn until_whole(&self, replicas: &[Manager; 2]) -> Result<()> {
        let waited = until("all is written", SOON, || Ok(self.is_whole(replicas)?.then_some(())));
        waited.with_context(|| {
            let told = |replica: &Manager| {
                format!(
                    "{:?}\n{}",
                    replica.admin_page("/readyz"),
                    replica.log().unwrap_or_default()
                )
            };
            replicas.iter().map(told).collect::<Vec<_>>().join("\n")
        })
    }

    /// The data of the Secret, if there is one.
    fn authorities(&self) -> Result<Option<Value>> {
        let secret = get(&self.api, &at(Manager::NAMESPACE, "secrets", SECRET))?;
        Ok(secret.map(|mut secret| secret["data"].take()))
    }

    /// Begins with so many writes, kills both, begins again. Returns whether there were more writes.
    fn stop_after(&self, writes: usize, flags: &[&str]) -> Result<bool> {
        self.gate.allow(writes);
        let mut replicas = self.two(flags)?;
        until("a write is cut off, or all is written", SOON, || {
            Ok((self.gate.stopped() > 0 || self.is_whole(&replicas)?).then_some(()))
        })?;
        let are_more = self.gate.stopped() > 0;
        for replica in &mut replicas {
            replica.kill()?;
        }
        let stored = self.authorities()?;
        self.gate.open();
        self.clear_lease()?;
        for replica in &mut replicas {
            replica.start_again()?;
        }
        self.until_whole(&replicas).with_context(|| format!("after {writes} writes {flags:?}"))?;
        let now = authorities(&self.api)?;
        for key in ["root.crt", "root.key", "issuer.crt", "serving.crt", "root-next.crt"] {
            let was = stored.as_ref().map(|stored| &stored[key]).filter(|was| !was.is_null());
            ensure!(was.is_none_or(|was| *was == now[key]), "another {key} after {writes} writes");
        }
        Ok(are_more)
    }
}

#[test]
fn bad_i12_both_are_killed_after_each_write_of_a_beginning() -> Result<()> {
    let scene = Scene::new()?;
    let mut writes = 0;
    loop {
        scene.clear()?;
        if !scene.stop_after(writes, &[])? {
            break;
        }
        writes += 1;
        ensure!(writes < MOST, "it does not end");
    }
    println!("a beginning has {writes} writes");
    // The Secret, the webhooks, two bundles, one binding.
    ensure!(writes >= 5, "{writes} writes");
    Ok(())
}

#[test]
fn bad_i12_both_are_killed_after_each_write_of_another_root() -> Result<()> {
    let scene = Scene::new()?;
    let mut writes = 0;
    loop {
        scene.clear()?;
        scene.gate.open();
        let mut replicas = scene.two(&[])?;
        scene.until_whole(&replicas)?;
        for replica in &mut replicas {
            replica.kill()?;
        }
        scene.clear_lease()?;
        let root = authorities(&scene.api)?["root.crt"].take();
        // A name more is a reason for another root.
        if !scene.stop_after(writes, &["--trust-names=api.example.com"])? {
            break;
        }
        let now = authorities(&scene.api)?;
        ensure!(now["root.crt"] == root, "the next root signs before it is known");
        writes += 1;
        ensure!(writes < MOST, "it does not end");
    }
    println!("another root has {writes} writes");
    // The Secret and two bundles.
    ensure!(writes >= 3, "{writes} writes");
    Ok(())
}

#[test]
fn bad_i12_the_api_server_answers_with_errors_for_a_while() -> Result<()> {
    let scene = Scene::new()?;
    for status in [403, 409, 429, 500] {
        scene.clear()?;
        scene.gate.answer(status, ANSWERS);
        let mut replicas = scene.two(&[])?;
        scene.until_whole(&replicas).with_context(|| format!("after answers of {status}"))?;
        ensure!(scene.gate.stopped() == ANSWERS, "{} of {status}", scene.gate.stopped());
        let before = authorities(&scene.api)?;
        // In the middle of its work too.
        scene.gate.answer(status, ANSWERS);
        scene.api.kubectl(&["delete", "configmap", BUNDLE, "-n", OPERATORS])?;
        bundle(&scene.api, OPERATORS)?;
        until("all answers were given", SOON, || {
            Ok((scene.gate.stopped() == ANSWERS).then_some(()))
        })?;
        scene.until_whole(&replicas).with_context(|| format!("after more of {status}"))?;
        ensure!(authorities(&scene.api)? == before, "other authorities after {status}");
        scene.gate.open();
        for replica in &mut replicas {
            replica.stop()?;
        }
    }
    Ok(())
}
