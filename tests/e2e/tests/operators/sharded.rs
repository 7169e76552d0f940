//! An operator that `ctrlmesh shard` has sharded: its Deployment, its locks, and who wrote what.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Installed, until};
use serde_json::Value;

pub(super) const LIMIT: Duration = Duration::from_secs(180);
/// Namespaces, each with as many objects of the operator.
pub(super) const TENANTS: usize = 12;

/// A Deployment of the name of its namespace.
pub(super) struct Operator<'s> {
    pub(super) scene: &'s Installed,
    pub(super) name: &'static str,
    /// The account of its pods.
    pub(super) account: &'static str,
    /// Further namespaces, by which those of the tenants and of the cluster fall into two equal halves.
    pub(super) spare: &'static [&'static str],
}

pub(super) fn tenant(at: usize) -> String {
    format!("tenant-{at}")
}

impl Operator<'_> {
    /// Makes the tenants, and waits until it runs.
    pub(super) fn begin(&self) -> Result<()> {
        let spare = self.spare.iter().map(|name| (*name).to_owned());
        for name in (0..TENANTS).map(tenant).chain(spare) {
            self.scene.node().kubectl(&["create", "namespace", &name])?;
        }
        self.kubectl(&["rollout", "status", &self.deployment(), "--timeout=120s"])
    }

    fn deployment(&self) -> String {
        format!("deployment/{}", self.name)
    }

    fn kubectl(&self, args: &[&str]) -> Result<()> {
        self.scene.node().kubectl(&[&["--namespace", self.name], args].concat()).map(drop)
    }

    /// The spec of the Deployment.
    pub(super) fn spec(&self) -> Result<Value> {
        let path = format!("/apis/apps/v1/namespaces/{0}/deployments/{0}", self.name);
        Ok(self.scene.node().api().client().get(&path)?.json()?["spec"].take())
    }

    /// Runs `ctrlmesh shard` or `ctrlmesh unshard` about it, and prints what it says.
    pub(super) fn ctrlmesh(&self, verb: &str, more: &[&str]) -> Result<String> {
        let deployment = self.deployment();
        let of = [verb, &deployment, "--namespace", self.name];
        let said = self.scene.ctrlmesh(&[&of[..], more].concat())?;
        println!("$ ctrlmesh {} {}\n{said}", of.join(" "), more.join(" "));
        Ok(said)
    }

    pub(super) fn scale(&self, replicas: usize) -> Result<()> {
        self.kubectl(&["scale", &self.deployment(), &format!("--replicas={replicas}")])
    }

    /// Waits until each shard holds a Lease of its own whose name begins so, in the pods' namespace.
    pub(super) fn all_lead(&self, lock: &str, shards: usize) -> Result<()> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.name);
        let prefix = format!("{lock}---{}-", self.name);
        let mut last = BTreeMap::new();
        let led = until("each shard leads", LIMIT, || {
            let list = self.scene.node().api().client().get(&path)?.json()?;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let leases = list["items"].as_array().context("items")?.iter();
            let held = leases.map(|lease| {
                (text(&lease["metadata"]["name"]), text(&lease["spec"]["holderIdentity"]))
            });
            last = held.filter(|(name, _)| name.starts_with(&prefix)).collect();
            let holders: BTreeSet<_> = last.values().filter(|holder| !holder.is_empty()).collect();
            Ok((holders.len() == shards).then_some(()))
        });
        led.with_context(|| format!("{last:?}"))
    }

    /// Who wrote in each tenant's namespace, by the addresses of pods in the audit log. The key ""
    /// stands for cluster-scoped objects of these resources.
    pub(super) fn writers(
        &self,
        cluster_scoped: &[&str],
    ) -> Result<BTreeMap<String, BTreeSet<String>>> {
        let user = format!("system:serviceaccount:{}:{}", self.name, self.account);
        let mut writers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for entry in self.scene.node().api().audit().entries()? {
            let of = entry.object_ref.unwrap_or_default();
            let is_write = ["create", "update", "patch", "delete"].contains(&entry.verb.as_str());
            let is_taken = entry.response_status.is_some_and(|status| status.code < 300);
            let is_tenants = of.namespace.starts_with("tenant-") && of.resource != "events";
            let is_one = is_tenants || cluster_scoped.contains(&of.resource.as_str());
            if is_write && is_taken && is_one && entry.user.username == user {
                writers.entry(of.namespace).or_default().extend(entry.source_ips);
            }
        }
        Ok(writers)
    }

    /// Checks that each namespace has one writer, and that two have as many.
    pub(super) fn one_writer_each(&self, cluster_scoped: &[&str]) -> Result<()> {
        let writers = self.writers(cluster_scoped)?;
        let expected = TENANTS + usize::from(!cluster_scoped.is_empty());
        ensure!(
            writers.len() == expected && writers.values().all(|of| of.len() == 1),
            "{writers:?}"
        );
        let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
        let tenants = writers.iter().filter(|(namespace, _)| !namespace.is_empty());
        tenants.flat_map(|(_, of)| of).for_each(|pod| *counts.entry(pod).or_default() += 1);
        println!("{}: one writer for each of {expected}: {counts:?}", self.name);
        ensure!(counts.values().copied().eq([TENANTS / 2; 2]), "{writers:?}");
        Ok(())
    }

    /// Takes everything back, twice, and checks that the Deployment is as it was.
    pub(super) fn unshard(&self, before: &Value) -> Result<()> {
        self.ctrlmesh("unshard", &[])?;
        ensure!(self.spec()? == *before, "{}\n{before}", self.spec()?);
        let said = self.ctrlmesh("unshard", &[])?;
        ensure!(said.contains("is not sharded"), "{said}");
        Ok(())
    }
}
