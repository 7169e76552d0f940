//! The rules of a plan, as data.
//!
//! Each family has the same shape, table `nat`:
//!
//! | chain | rule | why |
//! |---|---|---|
//! | OUTPUT, first | tcp → `CTRLMESH_OUT` | before any other mesh's rules |
//! | `CTRLMESH_OUT` | address, port, the proxy's uid → ACCEPT | its upstream connection; ACCEPT, since RETURN would fall into another mesh's catch-all |
//! | | address, port → REDIRECT | API calls of all other processes |
//! | PREROUTING, first | tcp → `CTRLMESH_IN` | only with a webhook port |
//! | `CTRLMESH_IN` | webhook port → REDIRECT | |
//!
//! Rules match one address and port, not "all tcp", so localhost, DNS, probes and all other
//! destinations need no exemption.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::family::Family;
use crate::plan::{Plan, ProxyUid};
use crate::targets::Targets;

/// The prefix of our chains' names.
pub(crate) const PREFIX: &str = "CTRLMESH_";

/// The rules of a plan, both families; a family may have none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSet {
    families: [FamilyRules; 2],
}

impl RuleSet {
    /// The rules of `plan` for its addresses in this pod.
    pub fn render(plan: &Plan, targets: &Targets) -> Self {
        Self { families: Family::ALL.map(|family| FamilyRules::render(family, plan, targets)) }
    }

    /// Both families, IPv4 first.
    pub fn families(&self) -> &[FamilyRules; 2] {
        &self.families
    }
}

/// The rules of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyRules {
    /// The family.
    pub family: Family,
    /// The chains, in the order of the text.
    pub chains: Vec<ChainRules>,
}

impl FamilyRules {
    /// An empty rule set, which removes our rules.
    pub fn none(family: Family) -> Self {
        Self { family, chains: Vec::new() }
    }

    fn render(family: Family, plan: &Plan, targets: &Targets) -> Self {
        let outbound: Vec<Rule> = targets
            .outbound()
            .iter()
            .filter(|address| Family::of(address.ip()) == family)
            .flat_map(|address| {
                let port = plan.outbound_port().get();
                [Rule::pass_proxy(*address, plan.proxy_uid()), Rule::redirect_out(*address, port)]
            })
            .collect();
        let inbound: Vec<Rule> = plan
            .inbound()
            .filter(|_| targets.inbound().contains(&family))
            .map(|inbound| Rule::redirect_in(inbound.port().get(), inbound.listener().get()))
            .into_iter()
            .collect();
        let chains = [(Chain::Out, outbound), (Chain::In, inbound)]
            .into_iter()
            .filter(|(_, body)| !body.is_empty())
            .map(|(chain, body)| ChainRules { chain, body })
            .collect();
        Self { family, chains }
    }

    /// Whether this family has no rules.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }
}

/// One chain of ours: its rules and the jump to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainRules {
    /// The chain.
    pub chain: Chain,
    /// The rules, in order.
    pub body: Vec<Rule>,
}

impl ChainRules {
    /// The jump, the first rule of the built-in chain.
    pub fn jump(&self) -> Rule {
        Rule::jump(self.chain)
    }
}

/// A chain of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// Connections that processes of the pod open.
    Out,
    /// Connections that arrive from the network.
    In,
}

impl Chain {
    /// Both chains.
    pub const ALL: [Self; 2] = [Self::Out, Self::In];

    /// The chain's name (28 bytes at most, by xtables).
    pub fn name(self) -> &'static str {
        match self {
            Self::Out => "CTRLMESH_OUT",
            Self::In => "CTRLMESH_IN",
        }
    }

    /// The built-in chain of table `nat` that jumps here.
    pub fn hook(self) -> &'static str {
        match self {
            Self::Out => "OUTPUT",
            Self::In => "PREROUTING",
        }
    }
}

/// One rule, always for tcp. [`fmt::Display`] writes it as `iptables-save` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub(crate) destination: Option<IpAddr>,
    pub(crate) port: Option<u16>,
    pub(crate) owner: Option<u32>,
    pub(crate) comment: String,
    pub(crate) action: RuleTarget,
}

/// The verdict on a new connection that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuleTarget {
    /// ACCEPT: the connection is unchanged; no later rule of the table sees it.
    Accept,
    Jump(String),
    /// REDIRECT to this port of the pod itself.
    Redirect(u16),
}

impl Rule {
    fn jump(chain: Chain) -> Self {
        let comment = match chain {
            Chain::Out => "ctrlmesh: tcp that the pod opens",
            Chain::In => "ctrlmesh: tcp that comes in",
        };
        Self {
            destination: None,
            port: None,
            owner: None,
            comment: comment.to_owned(),
            action: RuleTarget::Jump(chain.name().to_owned()),
        }
    }

    fn pass_proxy(address: SocketAddr, proxy: ProxyUid) -> Self {
        Self {
            destination: Some(address.ip()),
            port: Some(address.port()),
            owner: Some(proxy.as_u32()),
            comment: "ctrlmesh: the proxy goes straight to the API server".to_owned(),
            action: RuleTarget::Accept,
        }
    }

    fn redirect_out(address: SocketAddr, listener: u16) -> Self {
        Self {
            destination: Some(address.ip()),
            port: Some(address.port()),
            owner: None,
            comment: "ctrlmesh: everyone else goes to the proxy".to_owned(),
            action: RuleTarget::Redirect(listener),
        }
    }

    fn redirect_in(port: u16, listener: u16) -> Self {
        Self {
            destination: None,
            port: Some(port),
            owner: None,
            comment: "ctrlmesh: webhook calls go to the proxy".to_owned(),
            action: RuleTarget::Redirect(listener),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.destination {
            Some(IpAddr::V4(address)) => write!(f, "-d {address}/32 ")?,
            Some(IpAddr::V6(address)) => write!(f, "-d {address}/128 ")?,
            None => {}
        }
        f.write_str("-p tcp")?;
        if let Some(port) = self.port {
            write!(f, " -m tcp --dport {port}")?;
        }
        if let Some(owner) = self.owner {
            write!(f, " -m owner --uid-owner {owner}")?;
        }
        write!(f, " -m comment --comment \"{}\"", self.comment)?;
        match &self.action {
            RuleTarget::Accept => f.write_str(" -j ACCEPT"),
            RuleTarget::Jump(chain) => write!(f, " -j {chain}"),
            RuleTarget::Redirect(port) => write!(f, " -j REDIRECT --to-ports {port}"),
        }
    }
}
