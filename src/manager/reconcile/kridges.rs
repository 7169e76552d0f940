//! Configs of Kridge, each with its translation: the config of ours with its name, by which the shard's
//! pods go.
//!
//! Hides when a translation is written, and the text of it. Does not know what a spec means
//! (`policy::translated`). Where the cluster has no such configs, nothing is done.

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::DynamicObject,
    runtime::watcher::{Config, watcher},
};
use serde::Deserialize;

use super::{
    conditions::condition,
    observed::key_of,
    verdict::{READY, Verdict},
};
use crate::configs::{ConfigFacts, Configs};
use ctrlmesh_api::{Condition, KridgeStatus, ShardingConfigSpec, keys};
use ctrlmesh_base::cluster::{OwnAccess, PAGE, Reflector, Update};
use ctrlmesh_policy::{Draft, Kind, ObjectRef, draft, object_of, translated};

/// A config of Kridge.
#[derive(Clone, Debug, PartialEq)]
struct KridgeFacts {
    object: ObjectRef,
    /// The spec of its translation. Fails with the fault.
    spec: Result<Box<ShardingConfigSpec>, String>,
    is_let_in: bool,
    is_going: bool,
    /// Its condition.
    ready: Option<Condition>,
}

/// The configs of Kridge, as the API server has them.
pub(super) struct Kridges {
    reflector: Reflector<DynamicObject, KridgeFacts>,
}

/// The write of a translation.
pub(super) struct Translation {
    pub(super) of: ObjectRef,
    pub(super) spec: Box<ShardingConfigSpec>,
    pub(super) is_let_in: bool,
    /// The translation as it was found. `None` if it was not there.
    pub(super) found: Option<ObjectRef>,
}

impl KridgeFacts {
    fn of(config: &DynamicObject) -> Self {
        let meta = &config.metadata;
        let checked = draft(Kind::KridgeShardingConfig, config);
        let spec = match &checked {
            Ok(Draft::Sharding(_) | Draft::Root(_)) => translated(&config.data["spec"]),
            Err(invalid) => Err(invalid.to_string()),
        };
        let status = config.data.get("status").map(KridgeStatus::deserialize);
        let status = status.and_then(Result::ok).unwrap_or_default();
        Self {
            object: ObjectRef::new(Kind::KridgeShardingConfig, meta),
            spec: spec.map(Box::new),
            is_let_in: meta
                .labels
                .as_ref()
                .is_some_and(|labels| keys::find(labels, keys::IGNORE_VALIDATE).is_some()),
            is_going: meta.deletion_timestamp.is_some(),
            ready: status.conditions.into_iter().find(|condition| condition.r#type == READY),
        }
    }

    /// The verdict about its translation, and the write that is due.
    fn step(&self, found: Option<&ConfigFacts>) -> (Verdict, Option<Translation>) {
        let spec = match &self.spec {
            Ok(spec) => spec,
            Err(why) => return (Verdict::No("Invalid", why.clone()), None),
        };
        let of = |found: Option<&ConfigFacts>| Translation {
            of: self.object.clone(),
            spec: spec.clone(),
            is_let_in: self.is_let_in,
            found: found.map(|config| object_of(&config.checked).clone()),
        };
        let progressing =
            || Verdict::No("Progressing", "its translation is being written".to_owned());
        let Some(config) = found else { return (progressing(), Some(of(None))) };
        let uid = self.object.uid.as_deref();
        match config.translation.as_ref().filter(|one| uid == Some(&one.of)) {
            None => (Verdict::No("Foreign", foreign(&self.object)), None),
            Some(one) if one.spec.as_ref() == Some(spec) => {
                (Verdict::Yes("Translated", String::new()), None)
            }
            Some(_) if config.is_going => (progressing(), None),
            Some(_) => (progressing(), Some(of(Some(config)))),
        }
    }
}

fn foreign(config: &ObjectRef) -> String {
    format!(
        "ShardingConfig {}/{} of ctrlmesh.kusionstack.io has this name and is not its translation, so \
         nothing is written: delete it, or give one of them another name",
        config.namespace, config.name
    )
}

impl Kridges {
    pub(super) fn follow(access: OwnAccess) -> Self {
        let watch = |client: Client| {
            let kind = Kind::KridgeShardingConfig.api_resource();
            let config = Config::default().page_size(PAGE);
            watcher(Api::<DynamicObject>::all_with(client, &kind), config)
        };
        let reflector = Reflector::new(access, watch, |config: DynamicObject| {
            (key_of(&config), KridgeFacts::of(&config))
        });
        Self { reflector }
    }

    /// Takes the next event. Dropping it loses nothing.
    pub(super) async fn next(&mut self) -> Update {
        self.reflector.next().await
    }

    fn all(&self) -> impl Iterator<Item = (&String, &KridgeFacts)> {
        self.reflector.known().into_iter().flatten().filter(|(_, config)| !config.is_going)
    }

    /// The translations to write, each by the key of its config.
    pub(super) fn translations(&self, configs: &Configs) -> Vec<(String, Translation)> {
        let due = |(at, kridge): (&String, &KridgeFacts)| {
            let (_, translation) = kridge.step(configs.at(at));
            Some((at.clone(), translation?))
        };
        self.all().filter_map(due).collect()
    }

    /// The conditions to write, each with the key of its config and the config. `last` says which was written
    /// last.
    pub(super) fn conditions<'c>(
        &self,
        configs: &Configs,
        last: impl Fn(&str) -> Option<&'c Condition>,
        now: Timestamp,
    ) -> Vec<(String, ObjectRef, Condition)> {
        let due = |(at, kridge): (&String, &KridgeFacts)| {
            let (status, because) = match kridge.step(configs.at(at)).0 {
                Verdict::Yes(reason, message) => ("True", (reason, message)),
                Verdict::No(reason, message) => ("False", (reason, message)),
                Verdict::None | Verdict::Unknown | Verdict::Undecided(..) => return None,
            };
            let present = kridge.ready.as_ref().or_else(|| last(at));
            let generation = kridge.object.generation;
            let wanted = condition(READY, status, because, generation, present, now);
            (present != Some(&wanted)).then(|| (at.clone(), kridge.object.clone(), wanted))
        };
        self.all().filter_map(due).collect()
    }

    /// Whether there is a config with this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.reflector.known().is_some_and(|known| known.contains_key(key))
    }
}
