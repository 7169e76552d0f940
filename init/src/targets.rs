//! From names to addresses: what the rules match in this pod.

use std::collections::BTreeSet;
use std::env;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use nix::ifaddrs::getifaddrs;

use crate::exit::InitError;
use crate::plan::{Host, MAX_UPSTREAMS, Plan, PlanError, Upstream, interceptable};
use crate::rules::Family;

/// What the pod tells about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`, or why there is none.
    pub api_server: Result<Upstream, PlanError>,
    /// The families in which the pod has an address of its own.
    pub families: BTreeSet<Family>,
}

impl Pod {
    /// Families come from `POD_IPS` (the field `status.podIPs`, comma-separated) where it is set,
    /// else from the addresses of the pod's interfaces, loopback and link-local apart. Both say the
    /// same in a pod; the variable exists for dry runs elsewhere.
    pub fn from_env() -> Result<Self, PlanError> {
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
            Err(_) => Err(PlanError::PodIp { value: ip.to_owned() }),
        })
        .collect()
}

fn families_of_interfaces() -> BTreeSet<Family> {
    let Ok(interfaces) = getifaddrs() else {
        return BTreeSet::new();
    };
    interfaces
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .filter_map(|address| interceptable(address).ok())
        .map(Family::of)
        .collect()
}

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
    /// have an AAAA record that an IPv4 pod can never reach. An address that was given as such
    /// always counts.
    pub fn resolve(
        plan: &Plan,
        pod: &Pod,
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
    ) -> Result<Self, InitError> {
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
            return Err(PlanError::TooMany { count: outbound.len() }.into());
        }
        let inbound = match plan.inbound() {
            None => BTreeSet::new(),
            Some(_) if pod.families.is_empty() => outbound.iter().map(family).collect(),
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
) -> Result<BTreeSet<SocketAddr>, InitError> {
    let found = lookup(name, port)
        .map_err(|source| InitError::Unresolved { name: name.to_owned(), source })?;
    let mut kept = BTreeSet::new();
    for address in found {
        let ip = interceptable(address.ip())?;
        if pod.families.is_empty() || pod.families.contains(&Family::of(ip)) {
            kept.insert(SocketAddr::new(ip, port));
        }
    }
    if kept.is_empty() {
        return Err(InitError::NoAddress { name: name.to_owned() });
    }
    Ok(kept)
}

fn family(address: &SocketAddr) -> Family {
    Family::of(address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(families: &[Family]) -> Pod {
        let api_server = Upstream::new("fd00:96::1", "443");
        Pod { api_server, families: families.iter().copied().collect() }
    }

    fn resolve(args: &[&str], pod: &Pod) -> Result<Vec<String>, InitError> {
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

    #[test]
    fn pod_ips_give_the_families() {
        assert_eq!(families_of_list("10.0.0.1, fd00::1").unwrap().len(), 2);
        assert_eq!(families_of_list("10.0.0.1").unwrap(), BTreeSet::from([Family::V4]));
        assert!(families_of_list("10.0.0.x").unwrap_err().to_string().contains("status.podIPs"));
    }
}
