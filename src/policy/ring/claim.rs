//! The claim in the Lease of a pod: the objects that the pod may write.
//!
//! Hides that a Lease may say nothing that can be read. Knows neither how a claim is written nor
//! why it is made. Words: what a claim *may hold* is what it is not proven to leave out; what it
//! *covers* is what it is proven to have.

use std::sync::Arc;

use crate::{ByResource, ObjectSet, Rule, sharding::refined};

/// The objects that a pod says it may write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claim<S> {
    /// Nothing.
    Nothing,
    /// The objects of an area, which has an object, as far as is known.
    Of(Arc<ByResource<S>>),
    /// Everything: the Lease cannot be read.
    All,
}

/// The Lease of one pod of a ring, as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease<S> {
    /// The uid of the pod.
    pub pod: Box<str>,
    /// The ring that it is labelled with.
    pub ring: Box<str>,
    /// The shard of the pod. `None` if the Lease cannot be read: it counts as another shard's.
    pub shard: Option<Box<str>>,
    /// The version of the Lease.
    pub version: Box<str>,
    /// The areas that it claims.
    pub claim: Claim<S>,
}

/// A list of the ring's Leases, with the own one whichever ring it names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listing<S> {
    /// The Leases.
    pub leases: Vec<Lease<S>>,
    /// Whether the store was asked, and no cache.
    pub is_consistent: bool,
}

impl<S: ObjectSet> Claim<S> {
    /// The claim of an area.
    pub fn of(area: ByResource<S>) -> Self {
        if area.is_nothing() { Self::Nothing } else { Self::Of(Arc::new(area)) }
    }

    /// The claimed area, if there is one.
    pub fn area(&self) -> Option<&ByResource<S>> {
        match self {
            Self::Of(area) => Some(area),
            Self::Nothing | Self::All => None,
        }
    }

    /// Whether an object of the piece may be claimed: whether it is not proven that none is.
    pub(super) fn may_hold(&self, rule: &Rule, piece: &S) -> bool {
        match self {
            Self::Nothing => false,
            Self::Of(area) => area.find(rule).is_some_and(|claimed| !claimed.is_disjoint(piece)),
            Self::All => true,
        }
    }

    /// Whether every object of the piece is claimed, or the resource needs no claim.
    pub(super) fn covers(&self, rule: &Rule, piece: &S) -> bool {
        match self {
            Self::Nothing => piece.is_nothing(),
            Self::Of(area) => area.find(rule).is_none_or(|claimed| claimed.meet(piece) == *piece),
            Self::All => true,
        }
    }

    /// Whether every object of the other claim is claimed.
    pub(super) fn covers_all(&self, other: &Self) -> bool {
        let Some(area) = other.area() else { return self == other || *other == Self::Nothing };
        let rules = refined(self.area().into_iter().chain([area]));
        rules.iter().all(|rule| area.find(rule).is_none_or(|piece| self.covers(rule, piece)))
    }
}
