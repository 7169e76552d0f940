//! `ctrlmesh status`: shows the configs, what each owns, and all problems. It can also show the owner of a
//! namespace or an object. It reads configs, pods, Leases and namespaces, and changes nothing.

mod args;
mod owner;
mod print;
mod state;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    time::Duration,
};

use serde::Serialize;
use tokio::{runtime, time::sleep};

use self::{args::Output, owner::Named, state::status};
pub use self::{
    args::StatusArgs,
    owner::{BadName, OwnerState},
    print::{owners, text},
    state::{ConfigState, Problem, Status},
};
use super::{
    cluster::{Cluster, ClusterError},
    handover::found::Found,
};
use ctrlmesh_policy::{GroupResource, NamespaceLabels};

/// The interval of looks.
const LOOK: Duration = Duration::from_secs(1);

/// The reason why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Name(#[from] BadName),
    #[error("the cluster has no resource {0}: give its plural name, such as deployments.apps")]
    NoResource(GroupResource),
    #[error("cannot print the state as JSON")]
    Json(#[from] serde_json::Error),
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

impl StatusError {
    /// The exit code, as in sysexits.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Cluster(error) => error.exit_code,
            Self::Name(_) | Self::NoResource(_) => 64,
            Self::Json(_) => 70,
            Self::Output(_) => 69,
        }
    }
}

/// The namespaces of each shard with this prefix, in a ring of the configs. Namespaces without such a shard are
/// under `""`.
pub(crate) fn namespaces_by_shard(
    found: &Found,
    known: &NamespaceLabels,
    prefix: &str,
) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, _) in known.iter() {
        let states = owner::of_namespace(name, found, known);
        let shards = states.iter().flat_map(|state| state.shards.iter());
        let has_all = shards.filter(|(shard, scope)| shard.starts_with(prefix) && scope.is_none());
        let owners: BTreeSet<_> = has_all.map(|(shard, _)| shard.clone()).collect();
        match owners.is_empty() {
            true => all.entry(String::new()).or_default().push(name.to_string()),
            false => owners
                .into_iter()
                .for_each(|shard| all.entry(shard).or_default().push(name.to_string())),
        }
    }
    all
}

/// Prints the state of the mesh. Fails with [`StatusError`].
pub fn run(args: &StatusArgs) -> Result<(), StatusError> {
    // One thread is enough: it waits for one answer at a time.
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(show(args))
}

async fn show(args: &StatusArgs) -> Result<(), StatusError> {
    let cluster = Cluster::default();
    let mut last = None;
    loop {
        let now = match &args.object {
            None => {
                let found = Found::of(&cluster, args.namespace.as_deref()).await?;
                // Without the right to list them the rest is notified all the same.
                let known = cluster.list_namespaces().await.ok();
                let status = status(&found, known.as_ref());
                printed(args, &status, || text(&status))?
            }
            Some(object) => {
                let states = owners_of(object, args, &cluster).await?;
                printed(args, &states, || owners(&states))?
            }
        };
        if last.as_ref() != Some(&now) {
            let mut out = io::stdout().lock();
            out.write_all(now.as_bytes())?;
            out.flush()?;
            last = Some(now);
        }
        if !args.watch {
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

async fn owners_of(
    object: &str,
    args: &StatusArgs,
    cluster: &Cluster,
) -> Result<Vec<OwnerState>, StatusError> {
    let named: Named = object.parse()?;
    let found = Found::of(cluster, args.namespace.as_deref()).await?;
    match named {
        Named::Namespace(name) => {
            Ok(owner::of_namespace(&name, &found, &cluster.list_namespaces().await?))
        }
        Named::Object { group, plural, namespace, name } => {
            let resource = GroupResource::new(&group, &plural);
            let Some(kind) = cluster.resources().await?.remove(&(group, plural)) else {
                return Err(StatusError::NoResource(resource));
            };
            let meta = cluster.metadata(&kind, namespace.as_deref(), &name).await?;
            Ok(owner::of_object(&resource, &meta, &found, found.namespaces.as_ref()))
        }
    }
}

fn printed(
    args: &StatusArgs,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<String, StatusError> {
    Ok(match (args.output, args.watch) {
        (Output::Text, _) => text(),
        (Output::Json, true) => format!("{}\n", serde_json::to_string(value)?),
        (Output::Json, false) => format!("{}\n", serde_json::to_string_pretty(value)?),
    })
}
