//! The rights of proxies to objects of their namespace, by the role that is bound to them.
//!
//! Hides that the role is the cluster's with the chart, and the namespace's without it. That an account
//! is not bound at all is reported elsewhere.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleBinding};

use crate::{
    cli::doctor::{
        facts::{ManagerFacts, NamespaceFacts},
        finding::{Check, Findings},
    },
    manager::inject::companions::ROLE,
};

/// A right that proxies need.
pub(super) struct Need {
    check: Check,
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    /// The words where they have it, and where they do not.
    has: &'static str,
    lacks: &'static str,
}

/// The right to find pods that may answer reviews.
pub(super) const PODS: Need = Need {
    check: Check::PodsRight,
    group: "",
    resource: "pods",
    verbs: &["list", "watch"],
    has: "lets proxies watch the pods of their namespace",
    lacks: "does not let proxies list and watch pods, so that reviews of other shards' objects have \
            nowhere to go",
};

/// The right to say what a pod of a ring has, and to see what others have.
pub(super) const LEASES: Need = Need {
    check: Check::LeasesRight,
    group: "coordination.k8s.io",
    resource: "leases",
    verbs: &["get", "list", "watch", "create", "update", "patch", "delete"],
    has: "lets proxies keep and watch the Leases of their ring",
    lacks: "does not let proxies get, list, watch, create, patch and delete leases, so that a new pod \
            of a ring waits, and a boundary that moves is not handed over",
};

/// Judges the roles that are bound to these accounts.
pub(super) fn judge(
    need: &Need,
    accounts: &BTreeSet<&str>,
    facts: &NamespaceFacts,
    manager: &ManagerFacts,
    found: &mut Findings,
) {
    let (check, namespace) = (need.check, &facts.name);
    let ours = facts.bindings.iter().flatten().filter(|binding| binding.role_ref.name == ROLE);
    let of_pods = ours.filter(|one| accounts.iter().any(|account| binds(one, account, namespace)));
    let kinds: BTreeSet<_> = of_pods.map(|binding| binding.role_ref.kind.as_str()).collect();
    for kind in kinds {
        let (subject, rules, fix);
        if kind == "Role" {
            subject = format!("Role {namespace}/{ROLE}");
            fix = "apply this Role as `ctrlmesh inject` of this version prints it";
            let Some(roles) = found.seen(check, &subject, &facts.roles) else { continue };
            let role = roles.iter().find(|role| role.metadata.name.as_deref() == Some(ROLE));
            rules = role.map(|role| role.rules.as_deref().unwrap_or_default());
        } else {
            subject = format!("ClusterRole {ROLE}");
            fix = "upgrade the chart: it brings this ClusterRole";
            let Some(role) = found.seen(check, &subject, &manager.proxy_role) else { continue };
            rules = role.as_ref().map(|role| role.rules.as_deref().unwrap_or_default());
        }
        match rules {
            None => found.error(check, subject, "is not there, and is bound to proxies", fix),
            Some(rules) if need.verbs.iter().all(|verb| need.is_granted(rules, verb)) => {
                found.ok(check, subject, need.has);
            }
            Some(_) => found.error(check, subject, need.lacks, fix),
        }
    }
}

/// Whether a RoleBinding is for an account of its namespace.
pub(super) fn binds(binding: &RoleBinding, account: &str, namespace: &str) -> bool {
    binding.subjects.iter().flatten().any(|subject| {
        let is_here = subject.namespace.as_deref().is_none_or(|other| other == namespace);
        subject.kind == "ServiceAccount" && subject.name == account && is_here
    })
}

impl Need {
    /// Whether one of the rules grants a verb on all objects of the resource.
    fn is_granted(&self, rules: &[PolicyRule], verb: &str) -> bool {
        let has = |all: Option<&[String]>, one: &str| {
            all.unwrap_or_default().iter().any(|other| other == one || other == "*")
        };
        rules.iter().any(|rule| {
            has(rule.api_groups.as_deref(), self.group)
                && has(rule.resources.as_deref(), self.resource)
                && has(Some(&rule.verbs), verb)
                && rule.resource_names.as_ref().is_none_or(Vec::is_empty)
        })
    }
}
