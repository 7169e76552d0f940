//! Checked objects, before they are resolved to parts of a policy.

use std::{collections::HashMap, sync::Arc};

use super::{
    problem::{Invalid, Problem, Server},
    webhook::Webhook,
};
use crate::{
    fence::Fence,
    object::ObjectRef,
    parts::{PodConfig, Policy},
    roots::Root,
    sharding::{Boundary, Locks, NamespaceLabels, Resolved, Rule, Scope, Scopes, Sharding, Shared},
};
use ctrlmesh_api::keys;
use ctrlmesh_wire::selector::Selector;

/// A checked object, by the part of the policy that it compiles to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Draft {
    /// The shard's objects and lock.
    Sharding(ShardingDraft),
    /// The shards of a workload. It is no part of a policy: its children are.
    Root(RootDraft),
}

/// A checked root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootDraft {
    /// The root.
    pub root: Root,
    /// A shard with all that the children have between them.
    pub whole: Box<ShardingDraft>,
    /// The values that can be used and mean nothing, each by its field.
    pub warnings: Vec<Problem>,
}

impl RootDraft {
    /// Whether a pod of its Deployment with these labels belongs to one of its shards. The pod is judged as
    /// if it had the label of its shard: another selector may stand next to the root.
    pub fn selects<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        let child = &*self.whole.config.object.name;
        self.whole.config.pods.matches(|key: &str| match key {
            keys::SHARD => Some(child),
            key => label(key),
        })
    }
}

/// The result of the check of one object.
pub type Checked = Result<Draft, Invalid>;

/// A checked config whose namespace selectors are not resolved: [`ShardingDraft::resolve`] makes a
/// policy of it, again whenever the labels of namespaces change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardingDraft {
    /// The config, and the pods that it selects.
    pub config: PodConfig,
    /// The controller's webhook server. `None` if it has none.
    pub webhook: Option<Webhook>,
    /// The time of the config's creation, in seconds; `None` outside an API server.
    pub created: Option<i64>,
    /// The ring of the shard. `None` if it is in none.
    pub ring: Option<Box<str>>,
    /// Whether the shard waits until others of its ring have given up what it gains.
    pub waits: bool,
    /// The values that can be used and mean nothing, each by its field.
    pub warnings: Vec<Problem>,
    /// The judgement of writes.
    pub fence: Arc<Fence>,
    pub(super) shared: Shared,
    pub(super) locks: Locks,
    pub(super) limits: Vec<(Rule, Arc<DraftScope>)>,
}

/// A limit needs the labels of namespaces, and they are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field} needs the labels of namespaces, which are not known")]
pub struct NamespacesUnknown {
    /// The config with the limit.
    pub object: ObjectRef,
    /// The field that needs them.
    pub field: String,
}

/// The scope that a limit declares.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DraftScope {
    pub(super) selector: Selector,
    pub(super) boundary: Option<Boundary>,
    pub(super) labels: Option<LabelRule>,
    /// The field of the limit.
    pub(super) field: String,
    /// Whether it limits by namespace.
    pub(super) is_by_namespace: bool,
}

/// A limit's selector for namespaces, and its field in the config.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LabelRule {
    pub(super) field: String,
    pub(super) selector: Selector,
}

/// The config of a shard. `None` if it is a root, or invalid.
pub fn shard_of(checked: &Checked) -> Option<&ShardingDraft> {
    match checked {
        Ok(Draft::Sharding(draft)) => Some(draft),
        Ok(Draft::Root(_)) | Err(_) => None,
    }
}

/// The object that was checked.
pub fn object_of(checked: &Checked) -> &ObjectRef {
    match checked {
        Ok(Draft::Sharding(draft)) => &draft.config.object,
        Ok(Draft::Root(draft)) => &draft.root.object,
        Err(invalid) => &invalid.object,
    }
}

impl ShardingDraft {
    /// The controller that it is about, as its siblings name it.
    pub(crate) fn server(&self) -> Server {
        let lock = Some(self.locks.first().map(Into::into));
        Server { lock, has_webhook: self.webhook.is_some() }
    }

    /// Whether the config names a lock of this namespace, and of this name if one is given.
    pub fn has_lock(&self, namespace: &str, name: Option<&str>) -> bool {
        let mut locks = self.locks.names().filter(|lock| lock.namespace() == namespace);
        locks.any(|lock| name.is_none_or(|name| lock.matches(name)))
    }

    /// The shard's Leases in place of the locks, as `namespace/name`: with `*` where the config names a
    /// beginning.
    pub fn own_locks(&self) -> impl Iterator<Item = String> {
        self.locks.own_names()
    }

    /// The locks of the controller, as the config names them.
    pub fn lock_names(&self) -> impl Iterator<Item = String> {
        self.locks.names().map(ToString::to_string)
    }

    /// Whether both are shards of one controller that has a webhook: a pod of the one may answer
    /// reviews that came to the other.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.server().may_be(&other.server())
    }

    /// The first limit of this config, or of a sibling among `checked`, that needs the labels of
    /// namespaces.
    pub fn namespaces_unknown<'c>(
        &self,
        checked: impl IntoIterator<Item = &'c Checked>,
    ) -> Option<NamespacesUnknown> {
        let server = self.server();
        let siblings = checked.into_iter().filter_map(|checked| match checked {
            Ok(Draft::Sharding(draft)) if server.may_be(&draft.server()) => Some(draft),
            _ => None,
        });
        let needy = std::iter::once(self).chain(siblings).find(|draft| draft.needs_namespaces());
        needy.and_then(|draft| draft.resolve(None).err())
    }

    /// Whether a limit needs the labels of namespaces.
    pub fn needs_namespaces(&self) -> bool {
        self.limits.iter().any(|(_, scope)| scope.labels.is_some())
    }

    /// The policy for namespaces with these labels; `None` if the labels are not known.
    pub fn resolve(&self, known: Option<&NamespaceLabels>) -> Result<Policy, NamespacesUnknown> {
        let mut resolved = Resolved::default();
        let mut rules = HashMap::new();
        // The rules of a limit share its scope.
        let mut last: Option<(&Arc<DraftScope>, Arc<Scope>)> = None;
        for (rule, draft) in &self.limits {
            let scope = match &last {
                Some((of, scope)) if Arc::ptr_eq(of, draft) => Arc::clone(scope),
                _ => Arc::new(draft.resolve(known, &mut resolved).map_err(|field| {
                    NamespacesUnknown { object: self.config.object.clone(), field }
                })?),
            };
            last = Some((draft, Arc::clone(&scope)));
            rules.insert(rule.clone(), scope);
        }
        let scopes = Scopes::new(&rules);
        let ObjectRef { name, namespace, .. } = &self.config.object;
        let (locks, shared) = (self.locks.clone(), self.shared.clone());
        let sharding = Sharding::new(name, namespace, locks, scopes, shared);
        let fence = Arc::clone(&self.fence);
        Ok(Policy { config: self.config.clone(), sharding: Arc::new(sharding), fence })
    }
}

impl DraftScope {
    /// The scope, or the field that needs labels that are not known.
    fn resolve(
        &self,
        known: Option<&NamespaceLabels>,
        resolved: &mut Resolved,
    ) -> Result<Scope, String> {
        let scope = Scope::new(self.selector.clone());
        let Some(mut boundary) = self.boundary.clone() else { return Ok(scope) };
        if let Some(LabelRule { field, selector }) = &self.labels {
            let known = known.ok_or_else(|| field.clone())?;
            boundary.selected = Some(resolved.get(selector, known));
        }
        Ok(scope.inside(boundary))
    }
}
