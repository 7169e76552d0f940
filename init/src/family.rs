//! The two address families.

use std::net::IpAddr;

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
pub enum Family {
    /// IPv4.
    #[strum(serialize = "IPv4")]
    V4,
    /// IPv6.
    #[strum(serialize = "IPv6")]
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of a canonical address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The prefix of the names of the family's programs.
    pub(crate) fn tool(self) -> &'static str {
        match self {
            Self::V4 => "iptables",
            Self::V6 => "ip6tables",
        }
    }
}
