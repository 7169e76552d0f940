//! A policy whose namespace selectors are not resolved yet.

use std::{collections::HashMap, sync::Arc};

use crate::{
    policy::{
        parts::Policy,
        sharding::{
            Boundary, Lock, Namespaces, NamespacesUnknown, Resolved, Rule, Scope, Scopes, Sharding,
        },
    },
    wire::selector::Selector,
};

/// A checked ShardingConfig whose namespace selectors are not resolved: [`Draft::resolve`] makes a
/// policy of it, again whenever the labels of namespaces change.
#[derive(Clone, Debug)]
pub struct Draft {
    pub(super) shard: Box<str>,
    pub(super) namespace: Box<str>,
    pub(super) pods: Selector,
    pub(super) lock: Option<Lock>,
    pub(super) limits: Vec<(Rule, Arc<DraftScope>)>,
}

/// The scope that a limit declares.
#[derive(Debug)]
pub(super) struct DraftScope {
    pub(super) selector: Selector,
    pub(super) boundary: Option<Boundary>,
    pub(super) labels: Option<LabelRule>,
}

/// A limit's selector for namespaces, and its field in the ShardingConfig.
#[derive(Debug)]
pub(super) struct LabelRule {
    pub(super) field: String,
    pub(super) selector: Selector,
}

impl Draft {
    /// The name of the ShardingConfig.
    #[must_use]
    pub fn shard(&self) -> &str {
        &self.shard
    }

    /// The selector of the shard's pods.
    #[must_use]
    pub fn pods(&self) -> &Selector {
        &self.pods
    }

    /// The policy for namespaces with these labels; `None` if the labels are not known.
    ///
    /// # Errors
    /// [`NamespacesUnknown`] if a limit needs labels that are not known.
    pub fn resolve(&self, known: Option<&Namespaces>) -> Result<Policy, NamespacesUnknown> {
        let mut resolved = Resolved::default();
        let mut rules = HashMap::new();
        // The rules of a limit share its scope.
        let mut last: Option<(&Arc<DraftScope>, Arc<Scope>)> = None;
        for (rule, draft) in &self.limits {
            let scope = match &last {
                Some((of, scope)) if Arc::ptr_eq(of, draft) => Arc::clone(scope),
                _ => Arc::new(draft.resolve(known, &mut resolved)?),
            };
            last = Some((draft, Arc::clone(&scope)));
            rules.insert(rule.clone(), scope);
        }
        let scopes = Scopes::new(&rules);
        let sharding = Sharding::new(&self.shard, &self.namespace, self.lock.clone(), scopes);
        Ok(Policy { pods: self.pods.clone(), sharding: Arc::new(sharding) })
    }
}

impl DraftScope {
    fn resolve(
        &self,
        known: Option<&Namespaces>,
        resolved: &mut Resolved,
    ) -> Result<Scope, NamespacesUnknown> {
        let scope = Scope::new(self.selector.clone());
        let Some(mut boundary) = self.boundary.clone() else { return Ok(scope) };
        if let Some(LabelRule { field, selector }) = &self.labels {
            let unknown = || NamespacesUnknown { field: field.clone() };
            boundary.selected = Some(resolved.get(selector, known.ok_or_else(unknown)?));
        }
        Ok(scope.inside(boundary))
    }
}
