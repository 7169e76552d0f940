//! The places in which the objects of a resource can be.
//!
//! Hides which resources of Kubernetes have objects outside of namespaces (those of its release 1.37,
//! `kubectl api-resources --namespaced=false`). Those of custom resources are not known here.

use crate::Rule;

/// The places in which the objects of a resource, or of the resources that a rule names, can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Namespaces.
    Namespaces,
    /// No namespace.
    Outside,
    /// Both, since the rule names several resources.
    Both,
    /// Each object is a Namespace, and counts as being in the one that it names.
    Named,
    /// Namespaces, or none: which is not known.
    Unknown,
}

/// Groups all of whose resources are in namespaces.
const NAMESPACED: [&str; 6] =
    ["apps", "autoscaling", "batch", "discovery.k8s.io", "events.k8s.io", "policy"];
/// Groups none of whose resources are.
const OUTSIDE: [&str; 4] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "flowcontrol.apiserver.k8s.io",
];
/// Groups that have both, each with those that are not in namespaces.
const MIXED: [(&str, &[&str]); 9] = [
    ("", &["componentstatuses", "namespaces", "nodes", "persistentvolumes"]),
    ("certificates.k8s.io", &["certificatesigningrequests", "clustertrustbundles"]),
    ("coordination.k8s.io", &[]),
    ("networking.k8s.io", &["ingressclasses", "ipaddresses", "servicecidrs"]),
    ("node.k8s.io", &["runtimeclasses"]),
    ("rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings"]),
    ("resource.k8s.io", &["deviceclasses", "devicetaintrules", "resourceslices"]),
    ("scheduling.k8s.io", &["priorityclasses"]),
    (
        "storage.k8s.io",
        &[
            "csidrivers",
            "csinodes",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ],
    ),
];

impl Places {
    /// The places of the resources that a rule names.
    pub fn of(rule: &Rule) -> Self {
        let (group, resource) = rule.names();
        let mixed = MIXED.iter().find(|(name, _)| *name == group);
        match (group, resource, mixed) {
            ("*", "*", _) => Self::Both,
            ("" | "*", "namespaces", _) => Self::Named,
            _ if NAMESPACED.contains(&group) => Self::Namespaces,
            _ if OUTSIDE.contains(&group) => Self::Outside,
            (_, "*", Some((_, outside))) if !outside.is_empty() => Self::Both,
            (_, resource, Some((_, outside))) if outside.contains(&resource) => Self::Outside,
            (_, _, Some(_)) => Self::Namespaces,
            ("*", resource, None) => Self::of_any_group(resource),
            _ => Self::Unknown,
        }
    }

    /// The places of a resource whose group is not named: another may have one of the same name.
    fn of_any_group(resource: &str) -> Self {
        let is_outside = MIXED.iter().any(|(_, outside)| outside.contains(&resource));
        if is_outside { Self::Outside } else { Self::Unknown }
    }

    /// Whether objects may be in namespaces.
    pub(super) fn has_namespaces(self) -> bool {
        self != Self::Outside
    }
}
