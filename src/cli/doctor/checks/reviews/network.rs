//! NetworkPolicies: which of them keep a connection from a pod. A pod that none selects has them all.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::{
    api::{
        core::v1::{Container, Pod},
        networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::core::{Selector, SelectorExt};

use ctrlmesh_net::ca::Cidr;

type Labels = BTreeMap<String, String>;

/// The policies of a namespace.
pub(super) struct Policies<'f> {
    all: &'f [NetworkPolicy],
    /// The labels of the namespace. `None` if they are not known.
    namespace: Option<&'f Labels>,
}

/// The other end of a connection.
#[derive(Clone, Copy)]
pub(super) enum End<'p> {
    /// A pod of the namespace.
    Pod(&'p Pod),
    /// The API server: no pod, at an address that is not known.
    ApiServer,
}

/// The side of a pod's connection.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Ingress,
    Egress,
}

/// A rule of a policy: the ends and the ports of connections that pass.
struct Rule<'f> {
    ends: &'f [NetworkPolicyPeer],
    ports: &'f [NetworkPolicyPort],
}

impl<'f> Policies<'f> {
    pub(super) fn new(all: &'f [NetworkPolicy], namespace: Option<&'f Labels>) -> Self {
        Self { all, namespace }
    }

    /// The names of the policies that keep `client` from a port of the pod. Empty if it passes.
    pub(super) fn closed_to(&self, client: End<'_>, pod: &Pod, port: u16) -> Vec<&'f str> {
        self.closed(Side::Ingress, pod, client, (pod, port))
    }

    /// The names of the policies that keep the pod from a port of another. Empty if it passes.
    pub(super) fn closed_from(&self, pod: &Pod, other: &Pod, port: u16) -> Vec<&'f str> {
        self.closed(Side::Egress, pod, End::Pod(other), (other, port))
    }

    /// The policies of one side of `pod`, if none of them lets a connection with `end` pass to `at`.
    fn closed(&self, side: Side, pod: &Pod, end: End<'_>, at: (&Pod, u16)) -> Vec<&'f str> {
        let of_pod: Vec<_> = self.all.iter().filter_map(|policy| of(policy, pod, side)).collect();
        let mut rules = of_pod.iter().flat_map(|(_, rules)| rules);
        if rules.any(|rule| rule.has_port(at) && rule.has_end(end, self.namespace)) {
            return Vec::new();
        }
        of_pod.into_iter().map(|(name, _)| name).collect()
    }
}

/// The name of a policy and its rules for one side of a pod. `None` if it says nothing about that.
fn of<'f>(policy: &'f NetworkPolicy, pod: &Pod, side: Side) -> Option<(&'f str, Vec<Rule<'f>>)> {
    let spec = policy.spec.as_ref().filter(|spec| selects(spec.pod_selector.as_ref(), pod))?;
    let egress = spec.egress.as_deref().unwrap_or_default();
    let types = spec.policy_types.as_deref().unwrap_or_default();
    let has = |word: &str| types.iter().any(|one| one == word);
    let rules = match side {
        Side::Ingress if has("Ingress") || types.is_empty() => {
            let rules = spec.ingress.iter().flatten();
            rules.map(|rule| Rule::new(rule.from.as_deref(), rule.ports.as_deref())).collect()
        }
        Side::Egress if has("Egress") || (types.is_empty() && !egress.is_empty()) => {
            let rules = egress.iter();
            rules.map(|rule| Rule::new(rule.to.as_deref(), rule.ports.as_deref())).collect()
        }
        Side::Ingress | Side::Egress => return None,
    };
    Some((policy.metadata.name.as_deref().unwrap_or_default(), rules))
}

fn selects(selector: Option<&LabelSelector>, pod: &Pod) -> bool {
    matches(selector, pod.metadata.labels.as_ref().unwrap_or(&Labels::new()))
}

/// Whether a selector has these labels. One that is not there has all.
fn matches(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let selector = selector.cloned().map(Selector::try_from);
    selector.is_none_or(|selector| selector.is_ok_and(|selector| selector.matches(labels)))
}

impl<'f> Rule<'f> {
    fn new(ends: Option<&'f [NetworkPolicyPeer]>, ports: Option<&'f [NetworkPolicyPort]>) -> Self {
        Self { ends: ends.unwrap_or_default(), ports: ports.unwrap_or_default() }
    }

    fn has_port(&self, (pod, port): (&Pod, u16)) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|one| is_port(one, pod, port))
    }

    fn has_end(&self, end: End<'_>, namespace: Option<&Labels>) -> bool {
        self.ends.is_empty() || self.ends.iter().any(|one| is_end(one, end, namespace))
    }
}

fn is_port(of: &NetworkPolicyPort, pod: &Pod, port: u16) -> bool {
    let is_tcp = of.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
    is_tcp
        && match &of.port {
            None => true,
            Some(IntOrString::Int(first)) => {
                (*first..=of.end_port.unwrap_or(*first)).contains(&port.into())
            }
            Some(IntOrString::String(name)) => containers(pod).any(|container| {
                let mut ports = container.ports.iter().flatten();
                ports.any(|of| {
                    of.name.as_ref() == Some(name) && of.container_port == i32::from(port)
                })
            }),
        }
}

pub(super) fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// Whether a rule's end is the other end. An address of the API server may be in any block.
fn is_end(of: &NetworkPolicyPeer, end: End<'_>, namespace: Option<&Labels>) -> bool {
    match (&of.ip_block, end) {
        (Some(_), End::ApiServer) => true,
        (None, End::ApiServer) => false,
        (Some(block), End::Pod(pod)) => addresses(pod).any(|addr| is_in(block, addr)),
        (None, End::Pod(pod)) => {
            let of_namespace = of.namespace_selector.as_ref();
            namespace.is_none_or(|labels| matches(of_namespace, labels))
                && selects(of.pod_selector.as_ref(), pod)
        }
    }
}

fn addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let all = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
    all.filter_map(|ip| ip.ip.parse().ok())
}

fn is_in(block: &IPBlock, addr: IpAddr) -> bool {
    let has = |cidr: &str| cidr.parse::<Cidr>().is_ok_and(|cidr| cidr.has(addr));
    has(&block.cidr) && !block.except.iter().flatten().any(|cidr| has(cidr))
}
