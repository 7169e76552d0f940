//! The flags of `ctrlmesh explain`.

use std::{path::PathBuf, str::FromStr};

use clap::Args;
use http::{Method, method::InvalidMethod};

use crate::cluster::ObjectName;
use ctrlmesh_api::FenceMode;

/// The flags of `ctrlmesh explain`.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "ctrlmesh explain [--policy FILE] --shard [NAMESPACE/]NAME METHOD PATH\n       \
                            ctrlmesh explain --pod [NAMESPACE/]NAME METHOD PATH\n       \
                            ctrlmesh explain (--shard | --pod) NAME review FILE\n       \
                            ctrlmesh explain --diff OLD NEW [--shard [NAMESPACE/]NAME] [--all]\n       \
                            ctrlmesh explain --observe [NAMESPACE/]NAME"
)]
pub struct ExplainArgs {
    /// Read the ShardingConfigs from this file, as `ctrlmesh proxy --policy` does, instead of the
    /// cluster of the kubeconfig
    #[arg(long, env = "CTRLMESH_POLICY", value_name = "FILE", conflicts_with = "diff")]
    pub(super) policy: Option<PathBuf>,

    /// The name of the shard's ShardingConfig; NAMESPACE/NAME for one in the cluster
    #[arg(long, env = "CTRLMESH_SHARD", value_name = "NAME")]
    pub(super) shard: Option<ObjectName>,

    /// The pod NAMESPACE/NAME, whose labels select the ShardingConfig, as in its proxy
    #[arg(long, env = "CTRLMESH_POD", value_name = "NAME",
          conflicts_with_all = ["policy", "shard", "diff"])]
    pub(super) pod: Option<ObjectName>,

    /// The namespace of the pod and of its lock [default: that of the ShardingConfig]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub(super) pod_namespace: Option<String>,

    /// The mode of the fence where the ShardingConfig gives none, as the proxy has it: Enforce, Warn or
    /// Disabled
    #[arg(
        long,
        env = "CTRLMESH_FENCE",
        value_name = "MODE",
        default_value = "Warn",
        conflicts_with = "diff"
    )]
    pub(super) fence: FenceMode,

    /// List the objects in the cluster that would move between shards: OLD and NEW are files with
    /// ShardingConfigs, `cluster` for those in the cluster, or - for standard input. Of files with several, each is
    /// listed that one of them has
    #[arg(long, value_names = ["OLD", "NEW"], num_args = 2)]
    pub(super) diff: Option<Vec<PathBuf>>,

    /// List all objects, not only the first ten, and those that stay too
    #[arg(long, env = "CTRLMESH_ALL", requires = "diff")]
    pub(super) all: bool,

    /// List the resources that a pod's controller has listed, watched, written and locked. Also tells which of them a
    /// limit names
    #[arg(long, env = "CTRLMESH_OBSERVE", value_name = "POD",
          conflicts_with_all = ["policy", "shard", "pod", "diff", "asked"])]
    pub(super) observe: Option<ObjectName>,

    /// The method of a request to the API server; or `review`, for a request to the webhook server
    #[arg(value_name = "METHOD", required_unless_present_any = ["diff", "observe"],
          conflicts_with = "diff")]
    pub(super) asked: Option<Asked>,

    /// The path and query of the request, for example `/api/v1/pods?watch=1`. For `review`, the file with the
    /// AdmissionReview in JSON; - is standard input
    #[arg(value_name = "PATH", required_unless_present_any = ["diff", "observe"],
          conflicts_with = "diff")]
    pub(super) target: Option<String>,
}

/// The request that is explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// An admission review, which the API server sends.
    Review,
    /// A request of the controller, by its method.
    Request(Method),
}

impl FromStr for Asked {
    type Err = InvalidMethod;

    fn from_str(text: &str) -> Result<Self, InvalidMethod> {
        if text == "review" { Ok(Self::Review) } else { text.parse().map(Self::Request) }
    }
}
