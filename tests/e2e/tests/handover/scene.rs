//! A ring of four shards of one pod each, and an informer of each.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result};
use ctrlmesh_e2e::{ApiServer, Front, Program, Proxy, Rule, go_clients, until};
use serde_json::{Value, json};

use crate::{
    moves::{SHARDS, Split, Step, TEAMS, Teams},
    records::{Records, held},
};

const NAMESPACE: &str = "ring";
/// A request of unknown end keeps a claim for a minute, and no test waits for more than one.
const LIMIT: Duration = Duration::from_secs(100);

/// The informers: to stream a list and to page it, in two encodings.
const INFORMERS: [&[&str]; SHARDS.len()] =
    [&[], &["--watchlist=false"], &["--json"], &["--json", "--watchlist=false"]];

/// Whom a shard waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    ForOthers,
    ForNobody,
}

pub(crate) struct Shard {
    name: &'static str,
    /// The way of the proxy to its API server.
    pub(crate) front: Front,
    pub(crate) proxy: Proxy,
    informer: Program,
}

pub(crate) struct Scene {
    pub(crate) apis: [ApiServer; 2],
    pub(crate) shards: Vec<Shard>,
    waits: Waits,
}

fn config(shard: &str, teams: &Teams, waits: Waits) -> Value {
    let values: Vec<_> = teams.iter().copied().chain([shard]).collect();
    let mode = if waits == Waits::ForOthers { "Wait" } else { "Immediate" };
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": shard, "namespace": NAMESPACE },
        "spec": {
            "selector": { "matchLabels": { "app": shard } },
            "ring": "ring",
            "handover": { "mode": mode },
            "limits": [{
                "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
                "selector": { "matchExpressions": [
                    { "key": "team", "operator": "In", "values": values },
                ]},
            }],
        },
    })
}

impl Scene {
    pub(crate) fn start(split: &Split, waits: Waits) -> Result<Self> {
        let api = ApiServer::start()?;
        let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds.yaml");
        api.apply(&fs::read_to_string(definitions)?)?;
        api.kubectl(&["create", "namespace", NAMESPACE])?;
        let account = api.service_account(NAMESPACE, "operator", &[Rule::all()])?;
        until("ShardingConfigs are served", LIMIT, || {
            Ok(api.apply(&config(SHARDS[0], &split.0[0], waits).to_string()).ok())
        })?;
        for (shard, teams) in SHARDS.iter().zip(&split.0) {
            api.apply(&config(shard, teams, waits).to_string())?;
        }
        for team in TEAMS {
            let map = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": { "name": team, "namespace": NAMESPACE, "labels": { "team": team } },
            });
            api.apply(&map.to_string())?;
        }
        let beside = api.beside()?;
        let apis = [api, beside];
        let mut shards = Vec::new();
        for (number, name) in SHARDS.into_iter().enumerate() {
            shards.push(Shard::start(number, name, &apis[number % 2], &account.token)?);
        }
        Ok(Self { apis, shards, waits })
    }

    /// Writes a config.
    pub(crate) fn take(&self, step: &Step) -> Result<()> {
        match step {
            Step::Draw(shard, teams) => {
                self.apis[0].apply(&config(SHARDS[*shard], teams, self.waits).to_string())?;
            }
            Step::Delete(shard) => {
                let name = SHARDS[*shard];
                self.apis[0].kubectl(&["delete", "-n", NAMESPACE, "shardingconfig", name])?;
            }
        }
        Ok(())
    }

    /// Waits until each informer has the objects of its shard.
    pub(crate) fn settle(&self, split: &Split) -> Result<()> {
        for (shard, teams) in self.shards.iter().zip(&split.0) {
            shard.settle(teams)?;
        }
        self.apis[1].fall_behind(Duration::ZERO)
    }

    /// Everything that the informers were told.
    pub(crate) fn records(&self) -> Result<Records> {
        let mut records = Records::default();
        for (number, shard) in self.shards.iter().enumerate() {
            records.add(number, &shard.informer.lines())?;
        }
        Ok(records)
    }
}

impl Shard {
    fn start(number: usize, name: &'static str, api: &ApiServer, token: &str) -> Result<Self> {
        let front = Front::start(vec![api.address()])?;
        let address = front.address();
        let of_proxy = api.kubeconfig_for(&format!("https://{address}"), api.ca_pem(), token)?;
        let proxy = Proxy::builder(name, "")
            .upstream(&address.to_string())
            .policy_of_cluster(&of_proxy, NAMESPACE)
            .labelled(name)
            .keeps_state()
            .env("POD_NAME", &format!("{name}-0"))
            .env("POD_UID", &format!("0000000{number}-0000-4000-8000-000000000000"))
            .start(api)?;
        let mut command = Command::new(go_clients()?);
        command.arg("informer").args(INFORMERS[number]).args(["--namespace", NAMESPACE]);
        command.arg("--kubeconfig").arg(proxy.kubeconfig(api, token)?);
        let log = api.directory().join(format!("informer-{name}.log"));
        let informer = Program::start(name, &command, &log)?;
        Ok(Self { name, front, proxy, informer })
    }

    fn settle(&self, teams: &Teams) -> Result<()> {
        let mut last = Teams::new();
        let settled = self.informer.wait_until(LIMIT, |lines| {
            last = held(lines);
            (last == *teams).then_some(())
        });
        settled.with_context(|| {
            let ready = self.proxy.admin_text("/readyz").unwrap_or_default();
            format!("{} has {last:?} in place of {teams:?}\n{ready}", self.name)
        })
    }
}
