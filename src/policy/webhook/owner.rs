//! The owner of a review.

use super::siblings::ControllerShards;
use crate::{
    GroupResource,
    sharding::{ObjectFacts, OfNamespace, Scope},
};
use ctrlmesh_api::{OwnerDown, Route, Unowned};
use ctrlmesh_wire::review::{Review, Stated};

/// The shard that answers a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'s> {
    /// The shard that got it.
    Here(Here),
    /// Another shard, by its name.
    Sibling(&'s str),
    /// No shard: every one limits the resource, and none has the object.
    Unowned,
    /// An unknown one: no shard that can be read has the object, and another cannot be
    /// read.
    Unknown,
}

/// The reason why the shard that got a review answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// The shard has the object.
    Own,
    /// No shard limits the resource.
    Unlimited,
    /// A fact that decides is not in the review.
    FactMissing,
    /// The shard's route is `Any`.
    Route,
}

/// The answerer of a review, or the answer if no one is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answerer<'s> {
    /// The pod that got it.
    Here,
    /// A pod of the shard of this name; if there is none, it is [`Self::Here`] or [`Self::Fail`] as
    /// `ownerDown` says.
    Sibling(&'s str),
    /// No one: the request is allowed.
    Allow,
    /// No one: the request is denied.
    Deny,
    /// No one: the call fails.
    Fail,
}

/// The judgement of one shard on the object of a review.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'s> {
    /// The shard.
    pub shard: &'s str,
    /// Its scope of the resource. `None` if it does not limit it, and so has all of it.
    pub scope: Option<&'s Scope>,
    /// Whether it has the object. `None` if that depends on a fact that is not known.
    pub has: Option<bool>,
}

impl ControllerShards {
    /// The owner of a review. `None` if that depends on its object, which is [still to
    /// come](Stated::Coming).
    ///
    /// Of several owners the shard that got the review comes first, then the first by name.
    pub fn owner(&self, review: &Review<'_>) -> Option<Owner<'_>> {
        if self.webhook.route == Route::Any {
            return Some(Owner::Here(Here::Route));
        }
        if self.judged(review).all(|judged| judged.scope.is_none()) {
            return Some(Owner::Here(Here::Unlimited));
        }
        let mut is_missing = false;
        for (at, judged) in self.judged(review).enumerate() {
            match judged.has {
                Some(true) if at == 0 => return Some(Owner::Here(Here::Own)),
                Some(true) => return Some(Owner::Sibling(judged.shard)),
                Some(false) => {}
                None if matches!(review.object, Stated::Coming) => return None,
                None => is_missing = true,
            }
        }
        Some(match () {
            () if is_missing => Owner::Here(Here::FactMissing),
            () if !self.unreadable.is_empty() => Owner::Unknown,
            () => Owner::Unowned,
        })
    }

    /// The answerer for this owner.
    pub fn answerer<'s>(&self, owner: Owner<'s>) -> Answerer<'s> {
        match (owner, self.webhook.unowned, self.webhook.owner_down) {
            (Owner::Here(_), ..)
            | (Owner::Unowned, Unowned::Any, _)
            | (Owner::Unknown, _, OwnerDown::Any) => Answerer::Here,
            (Owner::Sibling(shard), ..) => Answerer::Sibling(shard),
            (Owner::Unowned, Unowned::Allow, _) => Answerer::Allow,
            (Owner::Unowned, Unowned::Deny, _) => Answerer::Deny,
            (Owner::Unknown, _, OwnerDown::Fail) => Answerer::Fail,
        }
    }

    /// The judgement of each shard on the object of a review, that of the own shard first.
    pub fn judged(&self, review: &Review<'_>) -> impl Iterator<Item = Judged<'_>> {
        let resource = GroupResource::new(review.group, review.resource);
        let object = self.facts(review, &resource);
        self.shardings().map(move |sharding| {
            let scope = sharding.scope(&resource).map(AsRef::as_ref);
            let has = scope.map_or(Some(true), |scope: &Scope| scope.owns(&object));
            Judged { shard: sharding.shard(), scope, has }
        })
    }

    /// The facts of the object of a review. A Namespace has the labels that the review states.
    fn facts<'a>(&self, review: &Review<'a>, resource: &GroupResource) -> ObjectFacts<'a> {
        let (uid, labels) = match review.object {
            Stated::Is(object) => (object.uid, object.labels),
            Stated::Coming | Stated::Unknown => ("", None),
        };
        let labels = labels.filter(|_| !review.is_of_subresource);
        let known = self.namespaces.as_ref();
        let of_namespace = match labels {
            Some(labels) if resource.are_namespaces() => OfNamespace::Stated(labels),
            None if resource.are_namespaces() => OfNamespace::Unknown,
            _ if known.is_none_or(|known| known.contains(review.namespace)) => OfNamespace::Drawn,
            _ => OfNamespace::Unknown,
        };
        ObjectFacts { namespace: review.namespace, of_namespace, uid, labels }
    }
}
