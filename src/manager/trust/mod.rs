//! The mesh's certificate authorities: what they are, what they sign, what becomes of them in time.
//!
//! Data and decisions: time and the state of the cluster are arguments, and what comes out is stored
//! by others. Three CAs: the *serving* CA signs for the manager's own ports, the *root* is what pods
//! trust, and the *issuer* below it signs the leaves of their proxies.
//!
//! 1. [`Trust::make`] begins; [`Trust::step`] returns the next thing to do, one a write;
//! 2. a CA is *published* before it signs ([`CaRotation`]), and until what it signed has ended;
//! 3. [`LeafKey::of_request`] reads what a proxy asks for: its key, and nothing else;
//! 4. [`Trust::sign`] makes the leaf, for names that the manager decides.

mod request;
mod rotation;
mod secret;

use std::{
    net::IpAddr,
    slice,
    time::{Duration, SystemTime},
};

use rustls_pki_types::{CertificateDer, DnsName, ServerName};

pub use self::{
    request::{BadRequest, LeafKey},
    rotation::{CaRotation, Move},
    secret::{BadSecret, SecretData},
};
use ctrlmesh_net::{
    Clock, ClusterDomain,
    ca::{Authority, CaSpec, Cidr, Constraints, LeafSpec, Validity, certificate_pem},
    identity::PodIdentity,
};

/// The names of the authorities in a Secret.
const SERVING: &str = "serving";
const ROOT: &str = "root";
const ISSUER: &str = "issuer";

/// The certificate authorities of a mesh.
#[derive(Debug)]
pub struct Trust {
    serving: CaRotation,
    root: CaRotation,
    /// The CA below the root that signs leaves.
    issuer: Authority,
}

/// Authorities that are in force, and their purpose.
#[derive(Debug)]
pub struct Trusted {
    /// The authorities.
    pub trust: Trust,
    /// Their purpose.
    pub purpose: Purpose,
}

/// The names that the authorities sign for, and for how long.
#[derive(Clone, Debug)]
pub struct Purpose {
    /// The manager's own names and addresses.
    pub serving: Vec<ServerName<'static>>,
    /// The DNS domain of the cluster.
    pub domain: ClusterDomain,
    /// The addresses of the API server's Service.
    pub addresses: Vec<IpAddr>,
    /// More names of the API server.
    pub names: Vec<DnsName<'static>>,
    /// The lifetimes of certificates.
    pub lifetimes: Lifetimes,
}

/// The lifetimes of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// The lifetime of a root or a serving CA.
    pub root: Duration,
    /// The lifetime of an issuer.
    pub issuer: Duration,
    /// The lifetime of a leaf, that of a proxy or of the manager.
    pub leaf: Duration,
}

/// The trust of the cluster in CAs that do not sign yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Whether every client of the manager trusts the next serving CA.
    pub next_serving: bool,
    /// Whether every container that trusts a root trusts the next one too.
    pub next_root: bool,
}

/// The reason why no leaf was signed.
#[derive(Debug, thiserror::Error)]
pub enum NotSigned {
    #[error("the issuer has ended, and no replica that leads has made another")]
    Ended,
    #[error("the leaf could not be signed")]
    Sign(#[from] rcgen::Error),
}

/// A change of a [`Trust`], to be stored before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A change of the CA of the manager's own ports.
    Serving(Move),
    /// A change of the root.
    Root(Move),
    /// A change of the issuer.
    Issuer,
}

impl Trust {
    /// Makes all authorities.
    pub fn make(purpose: &Purpose, now: SystemTime) -> Result<Self, rcgen::Error> {
        let life = purpose.lifetimes.leaf;
        let root = CaRotation::new(purpose.root(now)?, life);
        let issuer = purpose.issuer(root.signing(), now)?;
        Ok(Self { serving: CaRotation::new(purpose.serving_ca(now)?, life), root, issuer })
    }

    /// The data to store.
    pub fn to_data(&self) -> SecretData {
        let mut data = SecretData::new();
        secret::put(&mut data, SERVING, &self.serving);
        secret::put(&mut data, ROOT, &self.root);
        secret::put_authority(&mut data, ISSUER, &self.issuer);
        data
    }

    /// Reads what [`Self::to_data`] wrote. All of it or nothing: half of it is refused.
    pub fn parse(data: &SecretData) -> Result<Self, BadSecret> {
        Ok(Self {
            serving: secret::rollover(data, SERVING)?,
            root: secret::rollover(data, ROOT)?,
            issuer: secret::authority(data, ISSUER)?,
        })
    }

    /// Takes the next step, if there is one to take.
    pub fn step(
        &mut self,
        purpose: &Purpose,
        known: Known,
        clock: &Clock,
    ) -> Result<Option<Step>, rcgen::Error> {
        let (now, life) = (clock.now(), purpose.lifetimes.leaf);
        let is_due = |ca: &Authority| is_replaced(ca, &purpose.serving, clock);
        let make = || purpose.serving_ca(now);
        if let Some(step) = self.serving.step(is_due, make, known.next_serving, life, now)? {
            return Ok(Some(Step::Serving(step)));
        }
        let names = purpose.api_server();
        let is_due = |ca: &Authority| is_replaced(ca, &names, clock);
        let make = || purpose.root(now);
        if let Some(step) = self.root.step(is_due, make, known.next_root, life, now)? {
            if step == Move::Promoted {
                self.issuer = purpose.issuer(self.root.signing(), now)?;
            }
            return Ok(Some(Step::Root(step)));
        }
        let names = permitted(self.root.signing(), names, clock);
        if !is_replaced(&self.issuer, &names, clock) {
            return Ok(None);
        }
        let issuer = purpose.issuer(self.root.signing(), now)?;
        // Below a root that ends, another would end as soon: the next root is the missing part.
        let ends_later = issuer.validity().to > self.issuer.validity().to;
        if !ends_later && self.issuer.first_outside(&names, clock).is_none() {
            return Ok(None);
        }
        self.issuer = issuer;
        Ok(Some(Step::Issuer))
    }

    /// Signs a leaf for a pod's proxy; returns its chain, the leaf first. It has those names of the
    /// API server that root and issuer may sign for, since one other would have clients refuse it for
    /// all names, and ends no later than the issuer. Fails with
    /// [`NotSigned`].
    pub fn sign(
        &self,
        purpose: &Purpose,
        key: &LeafKey,
        pod: &PodIdentity,
        clock: &Clock,
    ) -> Result<Vec<CertificateDer<'static>>, NotSigned> {
        let now = clock.now();
        if now >= self.issuer.validity().to {
            return Err(NotSigned::Ended);
        }
        let names = permitted(self.root.signing(), purpose.api_server(), clock);
        let names = permitted(&self.issuer, names, clock);
        // A longer life is stored before anything has it.
        let life = purpose.lifetimes.leaf.min(self.root.longest);
        let validity = Validity::starting(now, life).within(self.issuer.validity());
        let uri = pod.to_string();
        let spec = LeafSpec { names: &names, uri: Some(&uri), validity };
        Ok(vec![self.issuer.sign(&spec, key.info())?, self.issuer.cert().clone()])
    }

    /// The CA of the manager's own ports.
    pub fn serving(&self) -> &CaRotation {
        &self.serving
    }

    /// The CAs that API servers trust for the manager's own ports, as PEM.
    pub fn serving_pem(&self) -> String {
        self.serving.published().map(certificate_pem).collect()
    }

    /// The CA below the root that signs leaves.
    pub fn issuer(&self) -> &Authority {
        &self.issuer
    }

    /// The root that pods trust.
    pub fn root(&self) -> &CaRotation {
        &self.root
    }
}

/// Whether a CA is to be replaced: two thirds of its life are over, or clients would not accept it for one
/// of the names.
fn is_replaced(ca: &Authority, names: &[ServerName<'_>], clock: &Clock) -> bool {
    clock.now() >= ca.validity().two_thirds() || ca.first_outside(names, clock).is_some()
}

/// The names that a CA may sign for, of these.
fn permitted(
    ca: &Authority,
    mut names: Vec<ServerName<'static>>,
    clock: &Clock,
) -> Vec<ServerName<'static>> {
    names.retain(|name| ca.first_outside(slice::from_ref(name), clock).is_none());
    names
}

impl Purpose {
    /// The names and addresses by which clients call the API server.
    fn api_server(&self) -> Vec<ServerName<'static>> {
        let loopback = [[127, 0, 0, 1].into(), 1_u128.to_be_bytes().into()];
        let domain = self.domain.names().filter_map(|name| ServerName::try_from(name).ok());
        let addresses = loopback.iter().chain(&self.addresses).map(|ip| ServerName::from(*ip));
        let names = self.names.iter().cloned().map(ServerName::DnsName);
        domain.chain(addresses).chain(names).collect()
    }

    fn root(&self, now: SystemTime) -> Result<Authority, rcgen::Error> {
        let validity = Validity::starting(now, self.lifetimes.root);
        let constraints = &self.constraints();
        Authority::root(&CaSpec { name: "ctrlmesh root", constraints, below: 1, validity })
    }

    fn issuer(&self, root: &Authority, now: SystemTime) -> Result<Authority, rcgen::Error> {
        let validity = Validity::starting(now, self.lifetimes.issuer).within(root.validity());
        let constraints = &self.constraints();
        root.issue(&CaSpec { name: "ctrlmesh issuer", constraints, below: 0, validity })
    }

    fn serving_ca(&self, now: SystemTime) -> Result<Authority, rcgen::Error> {
        let validity = Validity::starting(now, self.lifetimes.root);
        let dns = |name: &ServerName<'_>| match name {
            ServerName::DnsName(name) => Some(name.as_ref().to_owned()),
            _ => None,
        };
        let ip = |name: &ServerName<'_>| match name {
            ServerName::IpAddress(ip) => whole(&(*ip).into()),
            _ => None,
        };
        let constraints = &Constraints {
            dns: self.serving.iter().filter_map(dns).collect(),
            ip: self.serving.iter().filter_map(ip).collect(),
        };
        Authority::root(&CaSpec { name: "ctrlmesh manager CA", constraints, below: 0, validity })
    }

    fn constraints(&self) -> Constraints {
        let addresses = self.addresses.iter().filter_map(whole).collect();
        Constraints::kubernetes_and(&self.domain, texts(&self.names), addresses)
    }
}

/// The block of one address.
fn whole(ip: &IpAddr) -> Option<Cidr> {
    Cidr::new(*ip, if ip.is_ipv4() { 32 } else { 128 })
}

fn texts(names: &[DnsName<'_>]) -> Vec<String> {
    names.iter().map(|name| name.as_ref().to_owned()).collect()
}

impl Default for Lifetimes {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self { root: 3650 * DAY, issuer: 90 * DAY, leaf: DAY }
    }
}

#[cfg(test)]
mod tests;
