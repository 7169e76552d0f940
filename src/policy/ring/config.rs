//! The desired scope of each config of a ring.

use std::sync::Arc;

use crate::{ByResource, Checked, Draft, NamespaceLabels, NamespacesUnknown, Scope, ShardingDraft};

/// The objects that a config wants for its shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredScope<S> {
    /// The ring.
    pub ring: Box<str>,
    /// The shard: the name of the config.
    pub shard: Box<str>,
    /// The time of the config's creation, in seconds, and its uid: the smaller of two is the elder.
    pub birth: (i64, Box<str>),
    /// The number of the config's spec.
    pub generation: i64,
    /// The boundary, for the namespaces as they were last seen.
    pub area: Arc<ByResource<S>>,
}

/// The wishes of the configs of a ring, as one of its shards sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredScopes {
    /// The shard's own.
    pub own: DesiredScope<Arc<Scope>>,
    /// The wishes of the others. One that cannot be resolved is missing: wishes decide who claims, not
    /// who opens.
    pub rivals: Vec<DesiredScope<Arc<Scope>>>,
}

impl<S> DesiredScope<S> {
    /// Whether this is of another shard of the ring.
    pub(super) fn is_rival_of(&self, other: &Self) -> bool {
        self.ring == other.ring && self.shard != other.shard
    }
}

impl DesiredScope<Arc<Scope>> {
    /// The wish of a config. `None` if it is in no ring.
    pub fn of(
        draft: &ShardingDraft,
        known: Option<&NamespaceLabels>,
    ) -> Result<Option<Self>, NamespacesUnknown> {
        let Some(ring) = draft.ring.clone() else { return Ok(None) };
        let config = &draft.config.object;
        Ok(Some(Self {
            ring,
            shard: config.name.clone(),
            birth: (draft.created.unwrap_or_default(), config.uid.clone().unwrap_or_default()),
            generation: config.generation.unwrap_or_default(),
            area: Arc::new(draft.resolve(known)?.sharding.area()),
        }))
    }
}

impl DesiredScopes {
    /// The wishes of `own` and of its rivals among the checked configs. `known` has the labels of all
    /// namespaces, or is `None` if they are not known. `None` if `own` is in no ring.
    pub fn of<'c>(
        own: &ShardingDraft,
        checked: impl IntoIterator<Item = &'c Checked>,
        known: Option<&NamespaceLabels>,
    ) -> Result<Option<Self>, NamespacesUnknown> {
        let Some(wanted) = DesiredScope::of(own, known)? else { return Ok(None) };
        let rivals = checked.into_iter().filter_map(|checked| {
            let Ok(Draft::Sharding(draft)) = checked else { return None };
            let is_beside = draft.config.object.namespace == own.config.object.namespace;
            let rival = DesiredScope::of(draft, known).ok().flatten().filter(|_| is_beside)?;
            rival.is_rival_of(&wanted).then_some(rival)
        });
        let rivals = rivals.collect();
        Ok(Some(Self { own: wanted, rivals }))
    }
}
