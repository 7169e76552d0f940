//! The facts that are reported of a foreign write.

use std::sync::Arc;

use crate::{ByResource, GroupResource, Refusal, Refused, Rule, Scope};
use ctrlmesh_api::Except;
use ctrlmesh_wire::{request::RequestInfo, status::Details};

/// A foreign write, but for the object's name: what an exception names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Foreign {
    /// The resource.
    pub resource: GroupResource,
    /// The namespace that is written into; `""` stands for none.
    pub namespace: Box<str>,
    /// The verb, as the API server spells it.
    pub verb: &'static str,
}

impl Foreign {
    /// The write of a request. `None` if it is about no resource.
    pub fn of(info: &RequestInfo<'_>) -> Option<Self> {
        let resource = info.resource()?;
        Some(Self {
            resource: GroupResource::of(resource),
            namespace: resource.namespace.as_deref().unwrap_or_default().into(),
            verb: info.verb.as_str(),
        })
    }

    /// The shard among these that has the namespace.
    pub fn owner<'s>(
        &self,
        mut shards: impl Iterator<Item = (&'s str, &'s ByResource<Arc<Scope>>)>,
    ) -> Option<&'s str> {
        let rule = Rule::of(&self.resource);
        let has_it =
            |scope: &Arc<Scope>| scope.is_by_namespace() && scope.may_have(&self.namespace);
        let has = |area: &ByResource<Arc<Scope>>| match area.find(&rule) {
            Some(scope) => has_it(scope),
            None => area.pieces().filter_map(|(_, scope)| scope).any(has_it),
        };
        shards.find(|(_, area)| has(area)).map(|(shard, _)| shard)
    }

    /// The entry of `spec.fence.except` that lets it pass.
    pub fn except(&self) -> Except {
        Except {
            api_groups: vec![self.resource.group().to_owned()],
            resources: vec![self.resource.resource().to_owned()],
            namespaces: vec![self.namespace.to_string()],
            verbs: vec![self.verb.to_owned()],
        }
    }

    /// The write of a request in a few words, for people: `delete secrets "x" in namespace b, of shard green`.
    pub fn example(&self, info: &RequestInfo<'_>, owner: Option<&str>) -> String {
        let Self { resource, namespace, verb } = self;
        let resource_of = info.resource();
        let name = resource_of.and_then(|of| of.name.as_deref());
        let name = name.map(|name| format!(" {name:?}")).unwrap_or_default();
        let subresource = resource_of.and_then(|of| of.subresource.as_deref());
        let subresource = subresource.map(|of| format!("/{of}")).unwrap_or_default();
        let owner = owner.map(|owner| format!(", of shard {owner}")).unwrap_or_default();
        let namespace = match &**namespace {
            "" => "in no namespace".to_owned(),
            namespace => format!("in namespace {namespace}"),
        };
        format!("{verb} {resource}{subresource}{name} {namespace}{owner}")
    }

    pub(super) fn refused(
        &self,
        info: &RequestInfo<'_>,
        shard: &str,
        owner: Option<&str>,
        config: &str,
        field: &str,
    ) -> Refused {
        let Self { resource, .. } = self;
        let name =
            info.resource().and_then(|resource| resource.name.as_deref()).unwrap_or_default();
        let what = if self.namespace.is_empty() { "such an object" } else { "the namespace" };
        let mut refused = Refusal::NotInShard.because(format_args!(
            "cannot {}: {what} is not in shard {shard} by {field} of {config}; to let such writes pass, add \
             to its spec.fence.except: {}",
            self.example(info, owner),
            self.except()
        ));
        refused.status.details = Some(Details {
            name: name.to_owned(),
            group: resource.group().to_owned(),
            kind: resource.resource().to_owned(),
            ..Details::default()
        });
        refused
    }
}
