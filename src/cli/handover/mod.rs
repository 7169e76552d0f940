//! `ctrlmesh handover`: who has what of a ring, and who waits for whom. It reads configs, pods and
//! Leases, and changes nothing but what it is asked to delete.

mod args;
pub(crate) mod found;
mod print;
mod silent;
mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    io::{self, Write},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use tokio::{runtime, time::sleep};

pub(crate) use self::state::states;
pub use self::{
    args::HandoverArgs,
    print::{json, text},
    state::{OverlapState, PodState, RingState, ShardState, State, WaitState},
};
use self::{
    args::Output,
    found::Found,
    silent::{LISTENED, Versions, silent},
};
use super::cluster::{Cluster, ClusterError};
use ctrlmesh_policy::ShardingDraft;

/// The interval of looks.
const LOOK: Duration = Duration::from_secs(1);

/// The reason why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("there is no ring {ring} in namespace {namespace}: {}", there_are(.others))]
    NoRing { namespace: String, ring: String, others: Vec<String> },
    #[error("several namespaces have a ring of this name: give one of {}", .0.join(", "))]
    Several(Vec<String>),
    #[error("cannot print the rings as JSON")]
    Json(#[from] serde_json::Error),
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

impl HandoverError {
    /// The exit code, as in sysexits.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Cluster(error) => error.exit_code,
            Self::NoRing { .. } | Self::Several(_) => 64,
            Self::Json(_) => 70,
            Self::Output(_) => 69,
        }
    }
}

fn there_are(rings: &[String]) -> String {
    match rings {
        [] => {
            "it has none; shards with the same spec.ring, or leaderElectionName, are one".to_owned()
        }
        rings => format!("it has {}", rings.join(", ")),
    }
}

/// Prints the state of rings. Fails with [`HandoverError`].
pub fn run(args: &HandoverArgs) -> Result<(), HandoverError> {
    // One thread is enough: it waits for one answer at a time.
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(handover(args))
}

async fn handover(args: &HandoverArgs) -> Result<(), HandoverError> {
    let cluster = Cluster::default();
    let asked = AskedRing::of(args, &cluster).await?;
    if args.delete_silent {
        return delete_silent(&asked, &cluster).await;
    }
    let mut last = None;
    loop {
        let (rings, _) = asked.look(&cluster).await?;
        let now = rings.iter().map(RingState::without_times).collect::<Vec<_>>();
        if last.as_ref() != Some(&now) {
            print(args, &rings)?;
            last = Some(now);
        }
        if !args.watch {
            return Ok(());
        }
        sleep(LOOK).await;
    }
}

/// The pods of a shard that do not have what its config wants, or have more, and why: all, or this
/// one.
pub(super) async fn unsettled(
    cluster: &Cluster,
    draft: &ShardingDraft,
    pod: Option<&str>,
) -> Result<Vec<String>, ClusterError> {
    let Some(ring) = &draft.ring else { return Ok(Vec::new()) };
    let found = Found::of(cluster, Some(&draft.config.object.namespace)).await?;
    let mut rings = states(&found).into_iter();
    let shards = rings.find(|state| *state.ring == **ring).map(|state| state.shards);
    let mut shards = shards.unwrap_or_default().into_iter();
    let shard = shards.find(|shard| shard.shard.as_deref() == Some(&*draft.config.object.name));
    let pods = shard.map(|shard| shard.pods).unwrap_or_default().into_iter();
    let is_asked = |state: &PodState| pod.is_none_or(|pod| *state.pod == *pod);
    let is_unsettled = |state: &PodState| !matches!(state.state, State::Settled | State::Immediate);
    let unsettled = pods.filter(|state| is_asked(state) && is_unsettled(state));
    Ok(unsettled.map(|PodState { pod, says, .. }| format!("{pod} {says}")).collect())
}

/// The rings that are asked for.
struct AskedRing {
    namespace: Option<String>,
    /// Whether the namespace is the default, and was not given.
    is_default: bool,
    ring: Option<String>,
}

impl AskedRing {
    async fn of(args: &HandoverArgs, cluster: &Cluster) -> Result<Self, ClusterError> {
        let named = args.ring.clone();
        let ring = named.as_ref().map(|ring| ring.name.clone());
        let given = named.and_then(|ring| ring.namespace).or_else(|| args.namespace.clone());
        let is_default = given.is_none();
        let namespace = match (given, &ring) {
            (None, Some(_)) => Some(cluster.default_namespace().await?),
            (given, _) => given,
        };
        Ok(Self { namespace, is_default, ring })
    }

    async fn look(&self, cluster: &Cluster) -> Result<(Vec<RingState>, Versions), HandoverError> {
        let found = Found::of(cluster, self.namespace.as_deref()).await?;
        let mut rings = states(&found);
        if let Some(ring) = &self.ring
            && self.is_default
            && rings.iter().all(|state| state.ring != *ring)
            // Who may not see all namespaces is notified of this one.
            && let Ok(everywhere) = Found::of(cluster, None).await
            && let Some(one) = only(states(&everywhere), ring)?
        {
            return Ok((vec![one], Versions::of(&everywhere)));
        }
        if let (Some(ring), Some(namespace)) = (&self.ring, &self.namespace) {
            let others: Vec<_> = rings.iter().map(|state| state.ring.clone()).collect();
            rings.retain(|state| state.ring == *ring);
            if rings.is_empty() {
                let (namespace, ring) = (namespace.clone(), ring.clone());
                return Err(HandoverError::NoRing { namespace, ring, others });
            }
        }
        Ok((rings, Versions::of(&found)))
    }
}

/// The only ring of this name. `None` if there is none.
fn only(rings: Vec<RingState>, name: &str) -> Result<Option<RingState>, HandoverError> {
    let mut named: Vec<_> = rings.into_iter().filter(|state| state.ring == *name).collect();
    if named.len() > 1 {
        let names = named.iter().map(|state| format!("{}/{name}", state.namespace));
        return Err(HandoverError::Several(names.collect()));
    }
    Ok(named.pop())
}

fn print(args: &HandoverArgs, rings: &[RingState]) -> Result<(), HandoverError> {
    let now = Timestamp::now();
    let said = match (args.output, args.watch) {
        (Output::Json, true) => print::json_line(rings)?,
        (Output::Json, false) => json(rings)?,
        (Output::Text, true) => format!("{}\n{}\n", now.strftime("%H:%M:%S UTC"), text(rings, now)),
        (Output::Text, false) if rings.is_empty() => "there is no ring\n".to_owned(),
        (Output::Text, false) => text(rings, now),
    };
    let mut out = io::stdout().lock();
    out.write_all(said.as_bytes())?;
    Ok(out.flush()?)
}

async fn delete_silent(asked: &AskedRing, cluster: &Cluster) -> Result<(), HandoverError> {
    let (_, earlier) = asked.look(cluster).await?;
    say(&format!("listens to the Leases for {} s", LISTENED.as_secs()))?;
    sleep(LISTENED).await;
    let (rings, now) = asked.look(cluster).await?;
    let silent = silent(&rings, &earlier, &now);
    if silent.is_empty() {
        say("no pod that is waited for is silent")?;
    }
    for pod in silent {
        say(&pod.delete(cluster).await?)?;
    }
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
