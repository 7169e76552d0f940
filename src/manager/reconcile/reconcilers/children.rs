//! The children of roots.

use tokio::time::Instant;

use crate::reconcile::{
    key::WorkKey,
    reconciler::{Reconciler, Round, Work},
    view::ClusterView,
};

const PART: &str = "children";

/// Keeps the children of roots.
pub(super) struct Children;

impl Reconciler for Children {
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)> {
        let due = round.roots.due().into_iter();
        due.map(|(root, writes)| {
            let work = round.work(async move |client| writes.send(&client).await);
            (WorkKey::new("ShardingConfig", PART, root), work)
        })
        .collect()
    }

    fn written(&mut self, key: &WorkKey, view: &mut ClusterView, _now: Instant) {
        if key.part == PART {
            view.moved(key.object.clone());
        }
    }
}
