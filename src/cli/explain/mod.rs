//! `ctrlmesh explain`: the effect on a request, and the objects that a change of policy would move
//! to another shard. It uses the proxy's own decision code.

mod change;
mod cluster;
mod moves;
mod request;
mod source;

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use http::Method;
use tokio::runtime;

pub use self::source::BadSource;
use self::{cluster::Cluster, source::Name};
use crate::wire::request::PathError;

/// The flags of `ctrlmesh explain`.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "ctrlmesh explain [--policy FILE] --shard [NAMESPACE/]NAME METHOD PATH\n       \
                            ctrlmesh explain --pod [NAMESPACE/]NAME METHOD PATH\n       \
                            ctrlmesh explain --diff OLD NEW [--shard [NAMESPACE/]NAME] [--all]"
)]
pub struct ExplainArgs {
    /// The file with the ShardingConfigs, as `ctrlmesh proxy --policy` reads it; without it, the
    /// cluster of the kubeconfig
    #[arg(long, env = "CTRLMESH_POLICY", value_name = "FILE", conflicts_with = "diff")]
    policy: Option<PathBuf>,

    /// The shard: the name of its ShardingConfig, NAMESPACE/NAME for one in the cluster
    #[arg(long, env = "CTRLMESH_SHARD", value_name = "NAME")]
    shard: Option<Name>,

    /// A pod, NAMESPACE/NAME: its labels choose the ShardingConfig, as in its proxy
    #[arg(long, env = "CTRLMESH_POD", value_name = "NAME",
          conflicts_with_all = ["policy", "shard", "diff"])]
    pod: Option<Name>,

    /// The pod's namespace, where its lock is; the config's own unless told
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pod_namespace: Option<String>,

    /// Which objects in the cluster would change hands: two files with ShardingConfigs, where
    /// `cluster` stands for what is in the cluster and - for standard input
    #[arg(long, value_names = ["OLD", "NEW"], num_args = 2)]
    diff: Option<Vec<PathBuf>>,

    /// Name all objects, not the first ten, and those that stay too
    #[arg(long, env = "CTRLMESH_ALL", requires = "diff")]
    all: bool,

    /// The method of the request
    #[arg(value_name = "METHOD", required_unless_present = "diff", conflicts_with = "diff")]
    method: Option<Method>,

    /// Its path and query, for example `/api/v1/pods?watch=1`
    #[arg(value_name = "PATH", required_unless_present = "diff", conflicts_with = "diff")]
    target: Option<String>,
}

/// The reason why an explanation is missing or incomplete.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no usable policy.
    #[error("the policy")]
    Source(#[from] BadSource),
    /// The proxy would refuse the request line.
    #[error("the proxy refuses {0:?}")]
    Target(String, #[source] PathError),
    /// The cluster does not answer, or refuses this user.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Some of the resources could not be listed.
    #[error("{0} of the resources could not be listed, the first of them {1}")]
    Incomplete(usize, String, #[source] ClusterError),
    /// The output cannot be written.
    #[error("writing")]
    Output(#[from] io::Error),
}

/// A request to the cluster that failed.
#[derive(Debug, thiserror::Error)]
#[error("{asked}")]
pub struct ClusterError {
    asked: String,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
    exit_code: u8,
}

impl ExplainError {
    /// The exit code, as in sysexits.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Source(BadSource::Cluster(error))
            | Self::Cluster(error)
            | Self::Incomplete(_, _, error) => error.exit_code,
            Self::Source(_) | Self::Target(..) => 64,
            Self::Output(_) => 69,
        }
    }
}

/// Prints the explanation.
///
/// # Errors
/// [`ExplainError`].
pub fn run(args: &ExplainArgs) -> Result<(), ExplainError> {
    // One thread is enough: it waits for one answer at a time.
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (text, rest) = runtime.block_on(explain(args))?;
    io::stdout().lock().write_all(text.as_bytes())?;
    rest.map_or(Ok(()), Err)
}

/// The explanation, and the error if it is incomplete.
async fn explain(args: &ExplainArgs) -> Result<(String, Option<ExplainError>), ExplainError> {
    let cluster = Cluster::default();
    if let (Some(method), Some(target)) = (&args.method, &args.target) {
        let draft = source::of_request(args, &cluster).await?;
        let policy = cluster.resolve(&draft).await?;
        let text = request::explain(&policy, method, target)
            .map_err(|error| ExplainError::Target(target.clone(), error))?;
        return Ok((text, None));
    }
    let Some([old, new]) = args.diff.as_deref() else { return Err(BadSource::Unnamed.into()) };
    let [old, new] = source::of_change(args, [old, new], &cluster).await?;
    let (old, new) = (cluster.resolve(&old).await?, cluster.resolve(&new).await?);
    Ok(change::explain(&cluster, &old, &new, args.all).await?)
}
