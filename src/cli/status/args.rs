//! The flags of `ctrlmesh status`.

use clap::{Args, ValueEnum};

/// The flags of `ctrlmesh status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// The namespace of the ShardingConfigs [default: all]
    #[arg(long, short, env = "CTRLMESH_NAMESPACE", value_name = "NAME")]
    pub(super) namespace: Option<String>,

    /// Look once a second, and print new objects
    #[arg(long, short, env = "CTRLMESH_WATCH")]
    pub(super) watch: bool,

    /// The form of the output
    #[arg(long, short, env = "CTRLMESH_OUTPUT", value_enum, default_value_t = Output::Text)]
    pub(super) output: Output,

    /// The thing whose owners are printed in place of the state: a namespace, by its name, or an
    /// object, as RESOURCE[.GROUP]/NAMESPACE/NAME or, if it is in none, RESOURCE[.GROUP]/NAME
    #[arg(value_name = "OBJECT")]
    pub(super) object: Option<String>,
}

/// The values of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// A line for each config, and one for each problem
    Text,
    /// One object; with --watch, a line for each look that shows something new
    Json,
}
