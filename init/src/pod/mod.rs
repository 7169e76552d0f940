//! The pod's own view of itself: its environment, and its network.

pub mod network;

use std::collections::BTreeSet;
use std::env;
use std::net::IpAddr;

use crate::family::Family;
use crate::plan::env_from::EnvFrom;
use crate::plan::{PlanError, Upstream};

/// The pod's own view of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// The value of `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`, or the error.
    pub api_server: Result<Upstream, PlanError>,
    /// The families in which the pod has an address of its own.
    pub families: BTreeSet<Family>,
}

impl Pod {
    /// Reads the environment. The families come from `POD_IPS` (the field `status.podIPs`,
    /// comma-separated) if it is set, else from the pod's interfaces ([`network::families`]). Both
    /// agree in a pod; the variable exists for dry runs elsewhere. Fails with [`PlanError`], also
    /// if an `envFrom` gives a container another API server's address.
    pub fn from_env() -> Result<Self, PlanError> {
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        if let Some(entry) = names.filter_map(|name| EnvFrom::of_variable(&name)).min() {
            return Err(PlanError::EnvFrom(entry));
        }
        let families = match env::var("POD_IPS") {
            Ok(ips) => families_of_list(&ips)?,
            Err(_) => families_of_interfaces(),
        };
        Ok(Self { api_server: api_server_from_env(), families })
    }
}

fn api_server_from_env() -> Result<Upstream, PlanError> {
    let host = env::var("KUBERNETES_SERVICE_HOST")
        .map_err(|_| PlanError::NoUpstream("KUBERNETES_SERVICE_HOST is not set"))?;
    let port = env::var("KUBERNETES_SERVICE_PORT")
        .map_err(|_| PlanError::NoUpstream("KUBERNETES_SERVICE_PORT is not set"))?;
    Upstream::new(&host, &port)
}

fn families_of_list(ips: &str) -> Result<BTreeSet<Family>, PlanError> {
    ips.split(',')
        .map(str::trim)
        .filter(|ip| !ip.is_empty())
        .map(|ip| match ip.parse::<IpAddr>() {
            Ok(address) => Ok(Family::of(address)),
            Err(_) => Err(PlanError::PodIp(ip.to_owned())),
        })
        .collect()
}

/// The interfaces' families. Empty, which means both, if the kernel does not answer.
fn families_of_interfaces() -> BTreeSet<Family> {
    network::families().unwrap_or_else(|error| {
        tracing::warn!("the kernel does not say which addresses the pod has: {error}");
        BTreeSet::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_ips_give_the_families() {
        assert_eq!(families_of_list("10.0.0.1, fd00::1").unwrap().len(), 2);
        assert_eq!(families_of_list("10.0.0.1").unwrap(), BTreeSet::from([Family::V4]));
        assert!(families_of_list("10.0.0.x").unwrap_err().to_string().contains("status.podIPs"));
    }
}
