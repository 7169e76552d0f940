//! The Leases of pods that are gone.

use crate::reconcile::{
    key::WorkKey,
    reconciler::{Reconciler, Round, Work},
};

/// Deletes them.
pub(super) struct GoneLeases;

impl Reconciler for GoneLeases {
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)> {
        let due = round.view.leases.gone(round.now).into_iter();
        due.map(|(at, removal)| {
            let work = round.work(async move |client| removal.send(&client).await);
            (WorkKey::new("Lease", "", at), work)
        })
        .collect()
    }
}
