//! The flags of `ctrlmesh handover`.

use clap::{Args, ValueEnum};

use crate::cluster::ObjectName;

/// The flags of `ctrlmesh handover`.
#[derive(Args, Clone, Debug)]
pub struct HandoverArgs {
    /// The namespace of the ring [default: for a RING, that of the kubeconfig, or the only one that has it;
    /// else all]
    #[arg(long, short, env = "CTRLMESH_NAMESPACE", value_name = "NAME")]
    pub(super) namespace: Option<String>,

    /// Look once a second, and print new objects
    #[arg(long, short, env = "CTRLMESH_WATCH")]
    pub(super) watch: bool,

    /// The form of the output
    #[arg(long, short, env = "CTRLMESH_OUTPUT", value_enum, default_value_t = Output::Text)]
    pub(super) output: Output,

    /// Delete, by force, the pods that another shard waits for and whose Leases are not renewed for
    /// half a minute. The API server refuses their tokens ten seconds later, and the manager deletes
    /// their Leases after two minutes
    #[arg(long, conflicts_with = "watch")]
    pub(super) delete_silent: bool,

    /// The ring: spec.ring of its ShardingConfigs, by default their leaderElectionName
    #[arg(value_name = "[NAMESPACE/]RING")]
    pub(super) ring: Option<ObjectName>,
}

/// The values of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// A line for each pod
    Text,
    /// An array of rings, with the claims; with --watch, a line for each look that shows something
    /// new
    Json,
}
