//! The rights of proxies to objects of their namespace, by the role that is bound to them.
//!
//! Hides that the role is the cluster's with the chart, and the namespace's without it. That an account
//! is not bound at all is reported elsewhere.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleBinding};

use crate::doctor::{
    facts::{ManagerFacts, NamespaceFacts},
    finding::{Check, Findings},
};
use ctrlmesh_inject::companions::ROLE;

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
    verbs: &["get", "list", "watch", "create", "patch", "delete"],
    has: "lets proxies keep and watch the Leases of their ring",
    lacks: "does not let proxies get, list, watch, create, patch and delete leases, so that a new pod \
            of a ring waits, and a boundary that moves is not handed over",
};

/// The right to renew the locks of a shard.
const LOCKS: Need = Need {
    check: Check::LocksRight,
    group: "coordination.k8s.io",
    resource: "leases",
    verbs: &["update"],
    has: "may renew the locks of its shards",
    lacks: "has no Role that lets it renew the locks of its shards: unless a ClusterRole of the operator does, \
            none of them leads",
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

/// Judges whether an account may renew the locks of its shards. The role of proxies gives the right to all
/// Leases of the namespace, but for a chart with `leases.strict`.
pub(super) fn of_locks(
    account: &str,
    names: &BTreeSet<String>,
    facts: &NamespaceFacts,
    manager: &ManagerFacts,
    found: &mut Findings,
) {
    let (check, namespace) = (Check::LocksRight, &facts.name);
    let subject = format!("ServiceAccount {namespace}/{account}");
    let Some(bindings) = found.seen(check, &subject, &facts.bindings) else { return };
    let Some(roles) = found.seen(check, &subject, &facts.roles) else { return };
    let Some(of_cluster) = found.seen(check, &subject, &manager.proxy_role) else { return };
    let of_cluster = of_cluster.as_ref();
    let rules: Vec<&PolicyRule> = bindings
        .iter()
        .filter(|binding| binds(binding, account, namespace))
        .flat_map(|binding| {
            let name = Some(binding.role_ref.name.as_str());
            let of_namespace = roles.iter().filter(|_| binding.role_ref.kind == "Role");
            let own = of_namespace.filter(move |role| role.metadata.name.as_deref() == name);
            let shared = of_cluster.filter(|_| binding.role_ref.kind == "ClusterRole");
            let shared = shared.filter(|role| role.metadata.name.as_deref() == name);
            own.flat_map(|role| &role.rules).chain(shared.and_then(|role| role.rules.as_ref()))
        })
        .flatten()
        .collect();
    let lacking: Vec<&str> = names
        .iter()
        .filter(|name| !rules.iter().any(|rule| LOCKS.is_granted_on(rule, "update", Some(name))))
        .map(String::as_str)
        .collect();
    if lacking.is_empty() {
        found.ok(check, subject, LOCKS.has);
        return;
    }
    let says = format!("{}: {}", LOCKS.lacks, lacking.join(", "));
    let fix = match lacking.iter().any(|name| name.contains('*')) {
        true => {
            "name the lock whole in spec.controller.locks, which a Role can name then, or leave \
                 leases.strict of the chart off"
                .to_owned()
        }
        false => role_of_locks(namespace, account, names),
    };
    // The operator's own ClusterRoles are not seen here: that a lock is refused is an error of D34.
    found.warning(check, subject, says, fix);
}

/// The commands that give an account the right to its locks.
fn role_of_locks(namespace: &str, account: &str, names: &BTreeSet<String>) -> String {
    let names: String = names.iter().map(|name| format!(" --resource-name={name}")).collect();
    let apply = "--dry-run=client -o yaml | kubectl apply -f -";
    format!(
        "kubectl create role ctrlmesh-locks-{account} -n {namespace} --verb=get,update,patch \
         --resource=leases.coordination.k8s.io{names} {apply}; kubectl create rolebinding \
         ctrlmesh-locks-{account} -n {namespace} --role=ctrlmesh-locks-{account} \
         --serviceaccount={namespace}:{account} {apply}"
    )
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
        rules.iter().any(|rule| self.is_granted_on(rule, verb, None))
    }

    /// Whether a rule grants a verb on an object of the resource, or on all.
    fn is_granted_on(&self, rule: &PolicyRule, verb: &str, name: Option<&str>) -> bool {
        let has = |all: Option<&[String]>, one: &str| {
            all.unwrap_or_default().iter().any(|other| other == one || other == "*")
        };
        let names = rule.resource_names.as_deref().unwrap_or_default();
        let has_name = names.is_empty() || names.iter().any(|one| Some(one.as_str()) == name);
        has(rule.api_groups.as_deref(), self.group)
            && has(rule.resources.as_deref(), self.resource)
            && has(Some(&rule.verbs), verb)
            && has_name
    }
}
