//! The translations of configs of Kridge, and the conditions of those configs.

use std::{collections::BTreeMap, time::Duration};

use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
};
use serde_json::json;
use tokio::time::Instant;

use super::apply::Apply;
use crate::reconcile::{
    key::{NotWritten, WorkKey},
    kridges::Translation,
    reconciler::{Reconciler, Round, Work},
    roots::{as_found, own, set_spec},
    view::ClusterView,
};
use ctrlmesh_api::{Condition, keys};
use ctrlmesh_policy::{Kind, ObjectRef};

const TRANSLATION: &str = "translation";
const STATUS: &str = "status of Kridge";
/// The time after which a condition that is not there is written again.
const AGAIN: Duration = Duration::from_secs(60);

/// Keeps both.
#[derive(Default)]
pub(super) struct Translations {
    /// The conditions that are due.
    due: BTreeMap<String, Condition>,
    /// The condition that was written last of each config, and when. The definition of another installation may
    /// drop it, and then it is written once a minute only.
    written: BTreeMap<String, (Condition, Instant)>,
}

impl Reconciler for Translations {
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)> {
        let Some(configs) = round.view.configs.as_deref() else { return Vec::new() };
        let kridges = &round.view.kridges;
        self.written.retain(|at, (_, since)| kridges.has(at) && round.now < *since + AGAIN);
        let translations = kridges.translations(configs).into_iter().map(|(at, translation)| {
            let work = round.work(async move |client| send(translation, &client).await);
            (WorkKey::new("ShardingConfig", TRANSLATION, at), work)
        });
        let mut due: Vec<_> = translations.collect();
        let last = |at: &str| self.written.get(at).map(|(condition, _)| condition);
        let conditions = kridges.conditions(configs, last, round.view.now());
        self.due.clear();
        for (at, object, condition) in conditions {
            let apply = status(&object, &condition);
            let work = round.work(async move |client| apply.send(&client).await);
            due.push((WorkKey::new("ShardingConfig", STATUS, at.clone()), work));
            self.due.insert(at, condition);
        }
        due
    }

    fn written(&mut self, key: &WorkKey, _view: &mut ClusterView, now: Instant) {
        if key.part == STATUS
            && let Some(condition) = self.due.get(&key.object)
        {
            self.written.insert(key.object.clone(), (condition.clone(), now));
        }
    }
}

fn status(of: &ObjectRef, condition: &Condition) -> Apply {
    let kind = Kind::KridgeShardingConfig.api_resource();
    let object = json!({
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": { "namespace": of.namespace, "name": of.name },
        "status": { "conditions": [condition] },
    });
    Apply { object, foreign: None }
}

async fn send(translation: Translation, client: &Client) -> Result<(), NotWritten> {
    let Translation { of, spec, is_let_in, found } = translation;
    let kind = Kind::ShardingConfig.api_resource();
    let configs: Api<DynamicObject> = Api::namespaced_with(client.clone(), &of.namespace, &kind);
    let mut config = match &found {
        Some(found) => as_found(&configs, found).await?,
        None => DynamicObject::new(&of.name, &kind),
    };
    own(&mut config, &of);
    set_spec(&mut config, &spec)?;
    if is_let_in {
        let label = format!("{}{}", keys::PREFIX, keys::IGNORE_VALIDATE);
        config.metadata.labels.get_or_insert_default().insert(label, "true".to_owned());
    }
    match found {
        Some(_) => configs.replace(&of.name, &PostParams::default(), &config).await?,
        None => configs.create(&PostParams::default(), &config).await?,
    };
    Ok(())
}
