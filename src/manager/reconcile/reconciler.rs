//! A reconciler: one kind of object that the leader keeps in its desired state.

use futures_util::{FutureExt, future::BoxFuture};
use kube::Client;
use tokio::time::Instant;

use super::{
    conditions::Rings,
    key::{NotWritten, WorkKey},
    observed::ChosenPod,
    roots::Roots,
    view::ClusterView,
};
use crate::{
    shared::{OwnObjects, Shared},
    trust::Trusted,
};

/// A write. It sends nothing until it is polled.
pub(super) type Work = BoxFuture<'static, Result<(), NotWritten>>;

/// The facts of a round.
pub(super) struct Round<'r> {
    pub(super) client: &'r Client,
    pub(super) shared: &'r Shared,
    pub(super) view: &'r ClusterView,
    pub(super) own: &'r OwnObjects,
    /// The authorities in use. `None` until there are any.
    pub(super) trusted: Option<&'r Trusted>,
    pub(super) chosen: &'r [ChosenPod<'r>],
    pub(super) rings: &'r Rings<'r>,
    pub(super) roots: &'r Roots<'r>,
    pub(super) now: Instant,
}

impl Round<'_> {
    /// A write by our own client.
    pub(super) fn work<W>(&self, write: impl FnOnce(Client) -> W) -> Work
    where
        W: Future<Output = Result<(), NotWritten>> + Send + 'static,
    {
        write(self.client.clone()).boxed()
    }
}

/// Compares what there is with what there should be.
pub(super) trait Reconciler: Send {
    /// The writes that are due, whether or not they are backed off or under way.
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)>;

    /// Notes that a write succeeded. It may be another reconciler's.
    fn written(&mut self, _key: &WorkKey, _view: &mut ClusterView, _now: Instant) {}

    /// The time of its next round, no later than `latest`.
    fn next(&self, latest: Instant) -> Instant {
        latest
    }
}
