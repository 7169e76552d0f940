//! The addresses that the rules match in this pod, resolved from names.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::family::Family;
use crate::plan::{Host, MAX_UPSTREAMS, Plan, PlanError, interceptable};
use crate::pod::Pod;

/// The addresses of a plan in this pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Targets {
    outbound: BTreeSet<SocketAddr>,
    inbound: BTreeSet<Family>,
}

impl Targets {
    /// Resolves every upstream with `lookup`.
    ///
    /// Of a name, only addresses of the pod's own families count: names of managed clusters often
    /// have an AAAA record that an IPv4 pod can never reach. A literal address always counts.
    pub fn resolve(
        plan: &Plan,
        pod: &Pod,
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
    ) -> Result<Self, TargetError> {
        let default = match plan.upstreams() {
            [] => Some(pod.api_server.clone()?),
            _ => None,
        };
        let mut outbound = BTreeSet::new();
        for upstream in plan.upstreams().iter().chain(&default) {
            let port = upstream.port().get();
            match upstream.host() {
                Host::Address(address) => {
                    outbound.insert(SocketAddr::new(*address, port));
                }
                Host::Name(name) => outbound.extend(resolve_name(name, port, pod, &lookup)?),
            }
        }
        if outbound.len() > MAX_UPSTREAMS {
            return Err(PlanError::TooMany(outbound.len()).into());
        }
        let inbound = match plan.inbound() {
            None => BTreeSet::new(),
            Some(_) if pod.families.is_empty() => {
                outbound.iter().map(|address| Family::of(address.ip())).collect()
            }
            Some(_) => pod.families.clone(),
        };
        Ok(Self { outbound, inbound })
    }

    /// The addresses to intercept; never empty.
    pub fn outbound(&self) -> &BTreeSet<SocketAddr> {
        &self.outbound
    }

    /// The families in which the webhook port is intercepted.
    pub fn inbound(&self) -> &BTreeSet<Family> {
        &self.inbound
    }
}

/// The system's resolver (`/etc/hosts`, DNS).
pub fn system_resolver(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (name, port).to_socket_addrs().map(Iterator::collect)
}

fn resolve_name(
    name: &str,
    port: u16,
    pod: &Pod,
    lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
) -> Result<BTreeSet<SocketAddr>, TargetError> {
    let found = lookup(name, port)
        .map_err(|source| TargetError::Unresolved { name: name.to_owned(), source })?;
    let mut kept = BTreeSet::new();
    for address in found {
        let ip = interceptable(address.ip())?;
        if pod.families.is_empty() || pod.families.contains(&Family::of(ip)) {
            kept.insert(SocketAddr::new(ip, port));
        }
    }
    if kept.is_empty() {
        return Err(TargetError::NoAddress(name.to_owned()));
    }
    Ok(kept)
}

/// The reason why a plan has no addresses in this pod.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TargetError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("upstream {name} cannot be resolved: {source}")]
    Unresolved { name: String, source: io::Error },
    #[error("upstream {0} has no address of a family that the pod has")]
    NoAddress(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::InitError;
    use crate::plan::Upstream;

    fn pod(families: &[Family]) -> Pod {
        let api_server = Upstream::new("fd00:96::1", "443");
        Pod { api_server, families: families.iter().copied().collect() }
    }

    fn resolve(args: &[&str], pod: &Pod) -> Result<Vec<String>, TargetError> {
        let lookup = |name: &str, port| match name {
            "api.example" => Ok(vec![
                SocketAddr::from(([192, 0, 2, 1], port)),
                SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], port)),
                SocketAddr::from(([192, 0, 2, 2], port)),
            ]),
            "local.example" => Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]),
            _ => Err(io::Error::other("no such name")),
        };
        let plan = Plan::from_args(args).unwrap();
        let targets = Targets::resolve(&plan, pod, lookup)?;
        Ok(targets.outbound().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_name_stands_for_its_addresses_of_the_pods_families() {
        let name = ["--upstream=API.example:6443"];
        assert_eq!(
            resolve(&name, &pod(&[Family::V4])).unwrap(),
            ["192.0.2.1:6443", "192.0.2.2:6443"]
        );
        assert_eq!(resolve(&name, &pod(&[Family::V6])).unwrap(), ["[2001:db8::1]:6443"]);
        assert_eq!(resolve(&name, &pod(&Family::ALL)).unwrap().len(), 3);
        assert_eq!(resolve(&name, &pod(&[])).unwrap().len(), 3);
    }

    #[test]
    fn an_address_counts_whatever_the_pods_families_are() {
        let given = ["--upstream=[fd00::1]:443", "--upstream=10.96.0.1:443"];
        assert_eq!(
            resolve(&given, &pod(&[Family::V4])).unwrap(),
            ["10.96.0.1:443", "[fd00::1]:443"]
        );
    }

    #[test]
    fn mapped_addresses_and_repeats_are_one() {
        let given = ["--upstream=[::ffff:10.96.0.1]:443", "--upstream=10.96.0.1:443"];
        assert_eq!(resolve(&given, &pod(&[])).unwrap(), ["10.96.0.1:443"]);
    }

    #[test]
    fn the_environment_is_the_default_and_its_ipv6_may_be_bare_or_bracketed() {
        assert_eq!(resolve(&[], &pod(&[Family::V6])).unwrap(), ["[fd00:96::1]:443"]);
        assert_eq!(
            Upstream::new("[fd00:96::1]", "443").unwrap(),
            Upstream::new("fd00:96::1", "443").unwrap()
        );
    }

    #[test]
    fn what_a_name_lacks_is_told() {
        let told = |name: &str, families: &[Family]| {
            let error = resolve(&[&format!("--upstream={name}:443")], &pod(families)).unwrap_err();
            let error = InitError::from(error);
            (error.exit_code().code(), error.to_string())
        };
        assert_eq!(
            told("gone.example", &[]),
            (69, "upstream gone.example cannot be resolved: no such name".to_owned())
        );
        let (code, text) = told("local.example", &[]);
        assert_eq!(code, 64);
        assert!(text.starts_with("upstream 127.0.0.1 is a loopback address"), "{text}");
    }
}
