//! The flags of `ctrlmesh doctor`.

use clap::{Args, ValueEnum};

/// The flags of `ctrlmesh doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// The namespace to look at [default: all that have a ShardingConfig or a labelled pod; for a
    /// POD, that of the kubeconfig]
    #[arg(long, short, env = "CTRLMESH_NAMESPACE", value_name = "NAME")]
    pub(super) namespace: Option<String>,

    /// The namespace of the manager [default: that of the webhooks' Service, else ctrlmesh-system]
    #[arg(long, env = "CTRLMESH_MANAGER_NAMESPACE", value_name = "NAME")]
    pub(super) manager_namespace: Option<String>,

    /// The form of the findings
    #[arg(long, short, env = "CTRLMESH_OUTPUT", value_enum, default_value_t = Output::Text)]
    pub(super) output: Output,

    /// The pod to look at, with its proxy [default, in the proxy's own container: its pod]
    #[arg(value_name = "POD")]
    pub(super) pod: Option<String>,
}

/// The values of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// A line for each finding, and one for its fix
    Text,
    /// An array of objects with id, severity, subject, says, fix
    Json,
}
