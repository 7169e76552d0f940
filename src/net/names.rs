//! The names by which clients in a cluster call the API server.

use std::str::FromStr;

use rustls_pki_types::DnsName;

/// The API server's Service by the short names that clients in any namespace may use.
const SERVICE: [&str; 3] = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
/// The name of this machine: never a name of the API server, even if a certificate has it.
pub const LOCALHOST: &str = "localhost";

/// The DNS domain of a cluster's Services: the kubelet's `clusterDomain`.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub struct ClusterDomain(String);

/// The error for a text that is not a DNS domain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a DNS domain, for example cluster.local")]
pub struct BadDomain(String);

impl ClusterDomain {
    /// The domain of most clusters.
    pub const DEFAULT: &str = "cluster.local";

    /// The names of the API server's Service.
    pub fn service_names(&self) -> impl Iterator<Item = String> {
        SERVICE.into_iter().map(str::to_owned).chain([self.whole()])
    }

    /// The names of the API server's Service, and localhost.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.service_names().chain([LOCALHOST.to_owned()])
    }

    fn whole(&self) -> String {
        format!("{}.{self}", SERVICE[2])
    }
}

/// Whether this is a name of the API server's Service, in whatever domain.
pub fn is_api_servers_name(name: &str) -> bool {
    let in_domain =
        |whole: &str| whole.strip_prefix(SERVICE[2]).is_some_and(|d| d.starts_with('.'));
    SERVICE.contains(&name) || in_domain(name)
}

impl Default for ClusterDomain {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

impl FromStr for ClusterDomain {
    type Err = BadDomain;

    /// Lowers the case, since DNS names are case-insensitive (RFC 4343).
    fn from_str(text: &str) -> Result<Self, BadDomain> {
        let domain = Self(text.to_ascii_lowercase());
        let is_name = DnsName::try_from(domain.whole()).is_ok();
        let is_bare = !text.is_empty() && !text.ends_with('.');
        if is_name && is_bare { Ok(domain) } else { Err(BadDomain(text.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_a_dns_name_without_its_last_dot() {
        let domain: ClusterDomain = "Corp.Example".parse().unwrap();
        let names: Vec<_> = domain.names().collect();
        assert!(domain.service_names().all(|name| is_api_servers_name(&name)), "{names:?}");
        for other in [LOCALHOST, "kubernetes.other", "kubernetes.default.svc2", "a.kubernetes"] {
            assert!(!is_api_servers_name(other), "{other}");
        }
        assert!(names.contains(&"kubernetes.default.svc.corp.example".to_owned()), "{names:?}");
        for text in ["", ".", "cluster.local.", ".local", "a b", "10.0.0.1", &"a".repeat(64)] {
            let error = text.parse::<ClusterDomain>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
