//! What the requests of the pod's controller show of it, for its Lease and for `/readyz`.

mod elections;
mod foreign;
mod observed;
mod related;

pub(crate) use self::{
    elections::Elections,
    foreign::ForeignWrites,
    observed::{KnownRequests, Observed},
    related::RelatedResources,
};

/// What the requests of the pod's controller show of it.
#[derive(Debug, Default)]
pub(crate) struct Controller {
    /// Its elections.
    pub(crate) elections: Elections,
    /// Its writes into namespaces of other shards.
    pub(crate) foreign_writes: ForeignWrites,
    /// The resources that belong to limited objects, and that no limit names.
    pub(crate) related: RelatedResources,
    /// The resources that it has named.
    pub(crate) observed: Observed,
}
