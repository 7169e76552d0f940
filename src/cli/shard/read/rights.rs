//! The rights of an account, by the roles that are bound to it.
//!
//! Hides subjects, aggregation and wildcards. Does not know what a right is needed for.

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};

/// A ServiceAccount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) struct Account<'a> {
    pub(in crate::shard) namespace: &'a str,
    pub(in crate::shard) name: &'a str,
}

/// The roles and bindings of a cluster.
pub(in crate::shard) struct Roles {
    pub(in crate::shard) cluster_bindings: Vec<ClusterRoleBinding>,
    pub(in crate::shard) bindings: Vec<RoleBinding>,
    pub(in crate::shard) cluster_roles: Vec<ClusterRole>,
    pub(in crate::shard) roles: Vec<Role>,
}

/// A rule that holds for an account.
#[derive(Clone, Debug, PartialEq)]
struct Granted {
    /// The namespace in which it holds. `None` is the whole cluster.
    namespace: Option<String>,
    rule: PolicyRule,
}

/// The rights of an account.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::shard) struct Rights(Vec<Granted>);

/// A Lease that a rule names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) struct NamedLease {
    pub(in crate::shard) namespace: Option<String>,
    pub(in crate::shard) name: String,
}

impl Rights {
    /// The rights that these roles give an account.
    pub(in crate::shard) fn of(account: Account<'_>, all: &Roles) -> Self {
        let mut granted = Vec::new();
        let cluster_rules = |role: &RoleRef| {
            let is_named = |one: &&ClusterRole| one.metadata.name.as_deref() == Some(&*role.name);
            all.cluster_roles.iter().find(is_named).and_then(|role| role.rules.clone())
        };
        for binding in &all.cluster_bindings {
            if is_bound(binding.subjects.as_deref(), account, "") {
                let rules = cluster_rules(&binding.role_ref).unwrap_or_default();
                granted.extend(rules.into_iter().map(|rule| Granted { namespace: None, rule }));
            }
        }
        for binding in &all.bindings {
            let namespace = binding.metadata.namespace.as_deref().unwrap_or_default();
            if !is_bound(binding.subjects.as_deref(), account, namespace) {
                continue;
            }
            let is_named = |one: &&Role| {
                one.metadata.namespace.as_deref() == Some(namespace)
                    && one.metadata.name.as_deref() == Some(&*binding.role_ref.name)
            };
            let rules = match &*binding.role_ref.kind {
                "ClusterRole" => cluster_rules(&binding.role_ref),
                _ => all.roles.iter().find(is_named).and_then(|role| role.rules.clone()),
            };
            granted.extend(
                rules
                    .unwrap_or_default()
                    .into_iter()
                    .map(|rule| Granted { namespace: Some(namespace.to_owned()), rule }),
            );
        }
        Self(granted)
    }

    /// Whether it may do one of these in some namespace, or in the whole cluster.
    pub(in crate::shard) fn may(&self, verbs: &[&str], group: &str, resource: &str) -> bool {
        self.0.iter().any(|one| allows(&one.rule, verbs, group, resource))
    }

    /// Whether a rule that is not `*` lets it do one of these.
    pub(in crate::shard) fn names(&self, verbs: &[&str], group: &str, resource: &str) -> bool {
        let names = |rule: &PolicyRule| {
            let groups = rule.api_groups.iter().flatten();
            groups.into_iter().any(|of| of == group) && allows(rule, verbs, group, resource)
        };
        self.0.iter().any(|one| names(&one.rule))
    }

    /// Whether it may do one of these in the whole cluster.
    pub(in crate::shard) fn may_everywhere(
        &self,
        verbs: &[&str],
        group: &str,
        resource: &str,
    ) -> bool {
        let mut everywhere = self.0.iter().filter(|one| one.namespace.is_none());
        everywhere.any(|one| allows(&one.rule, verbs, group, resource))
    }

    /// The Leases that it may update by their names alone.
    pub(in crate::shard) fn named_leases(&self) -> Vec<NamedLease> {
        let verbs = &["update", "patch"];
        let rules = self.0.iter().filter(|one| has(one.rule.resources.as_deref(), "leases"));
        let rules = rules.filter(|one| one.rule.verbs.iter().any(|verb| verbs.contains(&&**verb)));
        let mut named: Vec<_> = rules
            .flat_map(|one| {
                let names = one.rule.resource_names.iter().flatten();
                names
                    .map(|name| NamedLease { namespace: one.namespace.clone(), name: name.clone() })
            })
            .collect();
        named.sort();
        named.dedup();
        named
    }
}

fn has(all: Option<&[String]>, one: &str) -> bool {
    all.is_some_and(|all| all.iter().any(|of| of == "*" || of == one))
}

fn allows(rule: &PolicyRule, verbs: &[&str], group: &str, resource: &str) -> bool {
    let is_named = |of: &String| match of.strip_prefix("*/") {
        Some(part) => resource.split_once('/').is_some_and(|(_, of)| of == part),
        None => of == "*" || of == resource,
    };
    rule.resource_names.as_ref().is_none_or(Vec::is_empty)
        && has(rule.api_groups.as_deref(), group)
        && rule.resources.iter().flatten().any(is_named)
        && rule.verbs.iter().any(|verb| verb == "*" || verbs.contains(&&**verb))
}

/// Whether a binding is for an account. The subjects of a RoleBinding without a namespace are of its own.
fn is_bound(subjects: Option<&[Subject]>, account: Account<'_>, own: &str) -> bool {
    let Account { namespace, name } = account;
    let is_it = |subject: &Subject| match &*subject.kind {
        "ServiceAccount" => {
            let of = subject.namespace.as_deref().unwrap_or(own);
            subject.name == name && of == namespace
        }
        "User" => subject.name == format!("system:serviceaccount:{namespace}:{name}"),
        "Group" => {
            let groups = ["system:authenticated", "system:serviceaccounts"];
            groups.contains(&&*subject.name)
                || subject.name == format!("system:serviceaccounts:{namespace}")
        }
        _ => false,
    };
    subjects.is_some_and(|subjects| subjects.iter().any(is_it))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn rights(subject: Value) -> Rights {
        let role =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "op"});
        let of_role =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lock"});
        let roles = Roles {
            cluster_bindings: vec![read(json!({"metadata": {"name": "op"}, "roleRef": role,
                                               "subjects": [subject]}))],
            bindings: vec![read(json!({"metadata": {"name": "lock", "namespace": "kube-system"},
                "roleRef": of_role, "subjects": [subject]}))],
            cluster_roles: vec![read(json!({"metadata": {"name": "op"}, "rules": [
                {"apiGroups": ["example.com"], "resources": ["widgets", "*/status"],
                 "verbs": ["list", "update"]},
                {"apiGroups": ["*"], "resources": ["secrets"], "verbs": ["*"]},
            ]}))],
            roles: vec![read(
                json!({"metadata": {"name": "lock", "namespace": "kube-system"}, "rules": [
                    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"],
                     "resourceNames": ["op", "op-2"]},
                ]}),
            )],
        };
        Rights::of(Account { namespace: "ops", name: "op" }, &roles)
    }

    #[test]
    fn an_account_has_the_rights_of_the_roles_that_are_bound_to_it() {
        for subject in [
            json!({"kind": "ServiceAccount", "name": "op", "namespace": "ops"}),
            json!({"kind": "User", "name": "system:serviceaccount:ops:op"}),
            json!({"kind": "Group", "name": "system:serviceaccounts:ops"}),
        ] {
            let rights = rights(subject);
            assert!(rights.may(&["list"], "example.com", "widgets"));
            assert!(rights.may(&["update"], "example.com", "gears/status"));
            assert!(!rights.may(&["update"], "example.com", "gears"));
            assert!(!rights.may(&["delete"], "example.com", "widgets"));
            assert!(!rights.may(&["list"], "other.com", "widgets"));
            assert!(rights.may(&["delete"], "", "secrets"));
            assert!(!rights.names(&["delete"], "", "secrets"), "`*` names nothing");
            let lock = |name: &str| NamedLease {
                namespace: Some("kube-system".to_owned()),
                name: name.to_owned(),
            };
            assert_eq!(rights.named_leases(), [lock("op"), lock("op-2")]);
            assert!(!rights.may(&["update"], "coordination.k8s.io", "leases"), "only two of them");
        }
    }

    #[test]
    fn another_account_has_none_of_them() {
        for subject in [
            json!({"kind": "ServiceAccount", "name": "op", "namespace": "other"}),
            json!({"kind": "ServiceAccount", "name": "op"}),
            json!({"kind": "Group", "name": "system:masters"}),
        ] {
            assert_eq!(rights(subject), Rights::default());
        }
    }
}
