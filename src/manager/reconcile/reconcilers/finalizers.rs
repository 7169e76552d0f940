//! Finalizers of ShardingConfigs that no controller removes.

use crate::reconcile::{
    key::WorkKey,
    reconciler::{Reconciler, Round, Work},
    roots::Release,
};
use ctrlmesh_policy::object_of;

/// Removes them.
pub(super) struct Finalizers;

impl Reconciler for Finalizers {
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)> {
        let all = round.view.configs.iter().flat_map(|configs| configs.all());
        all.filter(|(_, config)| config.is_protected)
            .map(|(at, config)| {
                let release = Release(object_of(&config.checked).clone());
                let work = round.work(async move |client| release.send(&client).await);
                (WorkKey::new("ShardingConfig", "finalizers", at), work)
            })
            .collect()
    }
}
