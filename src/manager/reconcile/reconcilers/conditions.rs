//! The conditions of ShardingConfigs.

use std::collections::BTreeMap;

use super::apply::Apply;
use crate::{
    configs::name,
    reconcile::{
        conditions::{self, OfShard, SelectedPods},
        key::WorkKey,
        observed::{ChosenPod, key, namespace},
        reconciler::{Reconciler, Round, Work},
    },
};

/// Keeps the status of ShardingConfigs.
pub(super) struct Conditions;

impl Reconciler for Conditions {
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)> {
        let Round { view, chosen, rings, roots, .. } = *round;
        let Some(configs) = &view.configs else { return Vec::new() };
        let mut selected: BTreeMap<String, SelectedPods<'_>> = BTreeMap::new();
        for ChosenPod { key: at, pod, config } in chosen {
            if let Ok(config) = config {
                let object = &config.config.object;
                let generation = view.leases.generation(namespace(at), pod, object);
                let of = key(namespace(at), &object.name);
                selected.entry(of).or_default().add(name(at), pod, config, generation);
            }
        }
        let none = SelectedPods::default();
        let due = |(at, config)| {
            let pods = selected.get(at);
            let injected = view.not_injected.verdict(at, pods.is_some());
            let pods = pods.unwrap_or(&none);
            let shard = OfShard { pods, injected, namespaces: view.namespaces.as_deref() };
            let object = conditions::due(at, config, shard, rings, roots, view.now())?;
            let apply = Apply { object, foreign: None };
            let work = round.work(async move |client| apply.send(&client).await);
            Some((WorkKey::new("ShardingConfig", "status", at), work))
        };
        configs.all().filter_map(due).collect()
    }
}
