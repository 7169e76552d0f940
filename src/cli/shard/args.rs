//! The flags of `ctrlmesh shard` and `ctrlmesh unshard`.

use std::{str::FromStr, time::Duration};

use clap::{Args, ValueEnum, value_parser};

use ctrlmesh_api::TargetKind;
use ctrlmesh_policy::GroupResource;
use ctrlmesh_wire::dns::{is_label, is_subdomain};

/// The flags of `ctrlmesh shard`.
#[derive(Args, Clone, Debug)]
pub struct ShardArgs {
    /// The namespace of the workload [default: that of the kubeconfig]
    #[arg(long, short, env = "CTRLMESH_NAMESPACE", value_name = "NAME")]
    pub(super) namespace: Option<String>,

    /// The number of shards, which is the number of replicas [default: as many as there are replicas, at
    /// least 2]
    #[arg(long, env = "CTRLMESH_SHARDS", value_name = "NUMBER", value_parser = value_parser!(u32).range(1..=32))]
    pub(super) shards: Option<u32>,

    /// The attribute of an object that tells its shard
    #[arg(long, env = "CTRLMESH_BY", value_enum, default_value_t = By::Namespace)]
    pub(super) by: By,

    /// With `--by uid`, the resources that the operator reconciles, such as applications.argoproj.io
    /// [default: those whose status it may write]
    #[arg(long, env = "CTRLMESH_RESOURCES", value_name = "PLURAL.GROUP", value_delimiter = ',',
          value_parser = resource)]
    pub(super) resources: Vec<GroupResource>,

    /// Write it, and wait until each shard leads and each object has an owner. A dry run by the API server
    /// comes first
    #[arg(long, env = "CTRLMESH_APPLY")]
    pub(super) apply: bool,

    /// The longest time to wait, in seconds
    #[arg(long, env = "CTRLMESH_TIMEOUT", value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,

    /// The workload
    #[arg(value_name = "KIND/NAME")]
    pub(super) workload: WorkloadName,
}

/// The flags of `ctrlmesh unshard`.
#[derive(Args, Clone, Debug)]
pub struct UnshardArgs {
    /// The namespace of the workload [default: that of the kubeconfig]
    #[arg(long, short, env = "CTRLMESH_NAMESPACE", value_name = "NAME")]
    pub(super) namespace: Option<String>,

    /// The longest time to wait, in seconds
    #[arg(long, env = "CTRLMESH_TIMEOUT", value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,

    /// The workload
    #[arg(value_name = "KIND/NAME")]
    pub(super) workload: WorkloadName,
}

impl ShardArgs {
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

impl UnshardArgs {
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// The values of `--by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The namespace: all objects of a namespace are in one shard
    Namespace,
    /// The uid: objects of one namespace are in several shards
    Uid,
}

impl By {
    /// The value of `spec.root.auto.by`.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Uid => "Uid",
        }
    }
}

/// The kind and the name of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadName {
    /// The kind.
    pub kind: TargetKind,
    /// The name.
    pub name: String,
}

/// A text that names no workload.
#[derive(Debug, thiserror::Error)]
pub enum BadWorkload {
    #[error("{0:?} names no workload: give KIND/NAME, such as deployment/cert-manager")]
    NoName(String),
    #[error(
        "a {0} cannot be sharded: its pods have no number that could be changed. Give a Deployment or a StatefulSet"
    )]
    NoReplicas(String),
    #[error("{0} is no kind that can be sharded: give a Deployment or a StatefulSet")]
    Kind(String),
}

impl FromStr for WorkloadName {
    type Err = BadWorkload;

    fn from_str(text: &str) -> Result<Self, BadWorkload> {
        let parts = text.split_once('/').filter(|(_, name)| is_label(name));
        let (kind, name) = parts.ok_or_else(|| BadWorkload::NoName(text.to_owned()))?;
        let lower = kind.to_ascii_lowercase();
        let kind = match lower.trim_end_matches(".apps") {
            "deployment" | "deployments" | "deploy" => TargetKind::Deployment,
            "statefulset" | "statefulsets" | "sts" => TargetKind::StatefulSet,
            "job" | "jobs" | "cronjob" | "cronjobs" | "daemonset" | "daemonsets" | "ds" | "pod"
            | "pods" => return Err(BadWorkload::NoReplicas(kind.to_owned())),
            _ => return Err(BadWorkload::Kind(kind.to_owned())),
        };
        Ok(Self { kind, name: name.to_owned() })
    }
}

/// A resource by its plural name and its group.
fn resource(text: &str) -> Result<GroupResource, String> {
    let (plural, group) = text.split_once('.').unwrap_or((text, ""));
    if !is_label(plural) || !(group.is_empty() || is_subdomain(group)) {
        return Err("give PLURAL.GROUP, such as applications.argoproj.io".to_owned());
    }
    Ok(GroupResource::new(group, plural))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_named_as_kubectl_names_it() {
        for (text, kind) in [
            ("deployment/op", TargetKind::Deployment),
            ("Deployment/op", TargetKind::Deployment),
            ("deploy/op", TargetKind::Deployment),
            ("deployments.apps/op", TargetKind::Deployment),
            ("sts/op", TargetKind::StatefulSet),
            ("statefulset/op", TargetKind::StatefulSet),
        ] {
            let named: WorkloadName = text.parse().unwrap();
            assert_eq!(named, WorkloadName { kind, name: "op".to_owned() }, "{text}");
        }
    }

    #[test]
    fn bad_workloads_that_cannot_be_sharded_say_why() {
        for (text, expected) in [
            ("job/op", "a job cannot be sharded: its pods have no number"),
            ("DaemonSet/op", "a DaemonSet cannot be sharded"),
            ("pod/op", "a pod cannot be sharded"),
            ("service/op", "service is no kind that can be sharded: give a Deployment"),
            ("op", "\"op\" names no workload: give KIND/NAME"),
            ("deployment/", "\"deployment/\" names no workload"),
            ("deployment/a/b", "names no workload"),
        ] {
            let why = text.parse::<WorkloadName>().unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
        }
        assert!(resource("Applications.argoproj.io").is_err());
        assert_eq!(resource("pods").unwrap(), GroupResource::new("", "pods"));
    }
}
