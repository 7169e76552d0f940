//! The fence: the judgement of writes by the namespace in their line.
//!
//! Hides which writes are judged, and how exceptions match. Knows no body and no stored object, and not
//! when a boundary moves. Words: a write is *foreign* if its namespace is not the shard's; cluster-scoped objects
//! counts as in one that is called `""`.

mod except;
mod exempt;
mod foreign;

pub(crate) use self::except::Except;
use self::exempt::is_exempt;
pub use self::{except::BadExcept, exempt::deletes, foreign::Foreign};
use super::{GroupResource, Refusal, Refused, RequestAction, Rule, Scope, Sharding};
use ctrlmesh_api::{FenceMode, SharedWrite};
use ctrlmesh_wire::request::RequestInfo;

/// The resources of the core group whose objects all shards may write in the namespace of their pods.
pub(super) const OWN_RESOURCES: [&str; 4] =
    ["configmaps", "secrets", "serviceaccounts", "services"];

/// The part of a policy that says which writes pass. It has no epoch: a change of it touches no watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// `None` leaves it to the default of the mesh.
    pub(crate) mode: Option<FenceMode>,
    pub(crate) except: Vec<Except>,
    /// The limits of the config, in its order.
    pub(crate) limits: Vec<FencedLimit>,
    /// The config, for people.
    pub(crate) config: Box<str>,
}

/// A limit, as far as the fence asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FencedLimit {
    pub(crate) rule: Rule,
    /// The field of the config.
    pub(crate) field: Box<str>,
    /// Whether it limits by namespace.
    pub(crate) is_by_namespace: bool,
}

/// Whether cluster-scoped objects is the shard's, of a resource of which all shards are shown it. `None` if
/// they are not, or other things decide.
fn has_outside(
    sharding: &Sharding,
    resource: &GroupResource,
    scope: Option<&Scope>,
) -> Option<bool> {
    let scope = scope?;
    sharding.shared().write(resource, "")?;
    let is_by_namespace = scope.is_nothing() || scope.is_by_namespace();
    is_by_namespace.then(|| scope.may_have(""))
}

/// Whether these are objects that every shard has next to its own pods: certificates, settings, accounts.
fn is_own(sharding: &Sharding, resource: &GroupResource, namespace: &str) -> bool {
    namespace == sharding.namespace()
        && resource.group().is_empty()
        && OWN_RESOURCES.contains(&resource.resource())
}

/// The judgement of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Verdict {
    /// It is no write, or one that any shard may send at any time.
    Exempt,
    /// Its line does not decide.
    Unjudged,
    /// It writes into a namespace of the shard.
    Inside,
    /// It is foreign, and all shards may write this, or an exception lets it pass.
    Excepted,
    /// It is foreign, and passes with a warning.
    Warned,
    /// It is foreign, and refused.
    Refused,
}

impl Verdict {
    /// The metric label.
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// Whether a handover waits for its end: it may write what the shard has. `is_limited` says whether
    /// a limit names its resource.
    pub fn is_waited_for(self, is_limited: bool) -> bool {
        match self {
            Self::Inside => true,
            Self::Unjudged => is_limited,
            Self::Exempt | Self::Excepted | Self::Warned | Self::Refused => false,
        }
    }
}

impl Fence {
    /// The fence with this mode, where its config leaves it open.
    pub fn or_mode(mut self, mode: FenceMode) -> Self {
        self.mode.get_or_insert(mode);
        self
    }

    /// The mode.
    pub fn mode(&self) -> FenceMode {
        self.mode.unwrap_or_default()
    }

    /// Judges a request by its line, for the shard of a sharding, whose decision about it is `action`.
    pub fn judge(
        &self,
        sharding: &Sharding,
        info: &RequestInfo<'_>,
        action: &RequestAction,
    ) -> Verdict {
        let Some(resource) = info.resource() else { return Verdict::Exempt };
        if is_exempt(info.verb, resource) || sharding.locks().named_by(info).is_some() {
            return Verdict::Exempt;
        }
        let mode = self.mode();
        if mode == FenceMode::Disabled {
            return Verdict::Unjudged;
        }
        let stored = GroupResource::of(resource);
        let namespace = resource.namespace.as_deref();
        let is_inside = match namespace {
            Some(namespace) => self.has(sharding, &stored, action.scope(), namespace),
            None => has_outside(sharding, &stored, action.scope()),
        };
        let namespace = namespace.unwrap_or_default();
        match is_inside {
            None => return Verdict::Unjudged,
            Some(true) => return Verdict::Inside,
            Some(false) => {}
        }
        let is_for_all = || {
            is_own(sharding, &stored, namespace)
                || sharding.shared().write(&stored, namespace) == Some(SharedWrite::All)
        };
        let passes = |except: &Except| except.has(&stored, namespace, info.verb);
        match mode {
            // The owner alone deletes what all may write.
            _ if !deletes(info) && is_for_all() => Verdict::Excepted,
            _ if self.except.iter().any(passes) => Verdict::Excepted,
            FenceMode::Enforce => Verdict::Refused,
            FenceMode::Warn | FenceMode::Disabled => Verdict::Warned,
        }
    }

    /// Whether a namespace is the shard's, for a resource. `None` if other things decide.
    fn has(
        &self,
        sharding: &Sharding,
        resource: &GroupResource,
        scope: Option<&Scope>,
        namespace: &str,
    ) -> Option<bool> {
        let Some(scope) = scope else {
            return self.judges_others().then(|| sharding.has_namespace(namespace));
        };
        // One that has nothing does not show by what it limits.
        let is_by_namespace = match scope.is_nothing() {
            true => self.limit(resource).is_some_and(|limit| limit.is_by_namespace),
            false => scope.is_by_namespace(),
        };
        is_by_namespace.then(|| scope.may_have(namespace))
    }

    /// Whether resources that no limit names are judged by the namespaces of all limits together. They are
    /// not, if one limit has no namespaces.
    pub fn judges_others(&self) -> bool {
        !self.limits.is_empty() && self.limits.iter().all(|limit| limit.is_by_namespace)
    }

    /// The limit that decides about a resource.
    fn limit(&self, resource: &GroupResource) -> Option<&FencedLimit> {
        let mut limits = self.limits.iter().filter(|limit| limit.rule.covers(resource));
        let first = limits.clone().next();
        limits.find(|limit| limit.is_by_namespace).or(first)
    }

    /// The refusal of a foreign write. `owner` is the shard whose namespace it is, if that is known.
    pub fn refused(
        &self,
        sharding: &Sharding,
        info: &RequestInfo<'_>,
        owner: Option<&str>,
    ) -> Refused {
        let Some(foreign) = Foreign::of(info) else {
            return Refusal::NotInShard.because("the namespace is not in the shard");
        };
        let limit =
            self.limit(&foreign.resource).filter(|_| sharding.scope(&foreign.resource).is_some());
        let field = limit.map_or("spec.limits", |limit| &limit.field);
        foreign.refused(info, sharding.shard(), owner, &self.config, field)
    }
}

#[cfg(test)]
mod tests;
