//! The names and addresses that a CA may sign for (RFC 5280 section 4.2.1.10).

use std::{net::IpAddr, str::FromStr};

use rcgen::{CidrSubnet, GeneralSubtree, NameConstraints};

use crate::ClusterDomain;

/// A range of addresses, as `--ip` takes it: `10.96.0.0/16`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    addr: IpAddr,
    prefix: u8,
}

/// The error for a text that is not a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address or a CIDR range, for example 10.96.0.1 or fd00::/112")]
pub struct BadCidr(String);

impl Cidr {
    /// The range of the first `prefix` bits of `addr`; `None` if it has fewer bits.
    pub fn new(addr: IpAddr, prefix: u8) -> Option<Self> {
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        (prefix <= bits).then_some(Self { addr, prefix })
    }

    /// Whether it has this address.
    pub fn has(&self, addr: IpAddr) -> bool {
        let (bits, of, is) = match (self.addr, addr) {
            (IpAddr::V4(of), IpAddr::V4(is)) => (32, of.to_bits().into(), is.to_bits().into()),
            (IpAddr::V6(of), IpAddr::V6(is)) => (128, of.to_bits(), is.to_bits()),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        let differ: u128 = of ^ is;
        differ.checked_shr(bits - u32::from(self.prefix)).unwrap_or_default() == 0
    }
}

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Self, BadCidr> {
        let bad = || BadCidr(text.to_owned());
        let (addr, prefix) = match text.split_once('/') {
            Some((addr, prefix)) => (addr, Some(prefix.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let whole = if addr.is_ipv4() { 32 } else { 128 };
        Self::new(addr, prefix.unwrap_or(whole)).ok_or_else(bad)
    }
}

/// The names and addresses that a CA may sign for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraints {
    /// DNS names; each permits itself and every name below it.
    pub dns: Vec<String>,
    /// Ranges; each permits the addresses in it.
    pub ip: Vec<Cidr>,
}

impl Constraints {
    /// The API server's names in a cluster of this domain, localhost and loopback, and the caller's
    /// additions.
    pub fn kubernetes_and(domain: &ClusterDomain, dns: Vec<String>, ip: Vec<Cidr>) -> Self {
        let loopback = [
            Cidr::new(IpAddr::from([127, 0, 0, 0]), 8),
            Cidr::new(IpAddr::from(1_u128.to_be_bytes()), 128),
        ];
        Self {
            dns: domain.names().chain(dns).collect(),
            ip: loopback.into_iter().flatten().chain(ip).collect(),
        }
    }

    pub(super) fn to_extension(&self) -> NameConstraints {
        let dns = self.dns.iter().cloned().map(GeneralSubtree::DnsName);
        let ip = self.ip.iter().map(|range| {
            GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(range.addr, range.prefix))
        });
        NameConstraints {
            permitted_subtrees: dns.chain(ip).collect(),
            excluded_subtrees: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_an_address_and_a_prefix() {
        for text in ["10.0.0.0/33", "10.0.0", "fd00::/129", "x/8", "10.0.0.0/"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
        let whole: Cidr = "fd00::1".parse().unwrap();
        assert_eq!(Some(whole), Cidr::new(whole.addr, 128));
    }

    #[test]
    fn a_range_has_the_addresses_with_its_first_bits() {
        for (range, addr, wanted) in [
            ("10.1.0.0/16", "10.1.255.1", true),
            ("10.1.0.0/16", "10.2.0.1", false),
            ("10.1.0.3", "10.1.0.3", true),
            ("10.1.0.3", "10.1.0.2", false),
            ("0.0.0.0/0", "10.1.0.3", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("::/0", "fd00::1", true),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe00::1", false),
            ("::/0", "10.1.0.3", false),
        ] {
            let range: Cidr = range.parse().unwrap();
            assert_eq!(range.has(addr.parse().unwrap()), wanted, "{range:?} {addr}");
        }
    }
}
