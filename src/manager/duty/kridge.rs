//! Configs of Kridge, each with its translation: the config of ours with its name, by which the shard's
//! pods go.
//!
//! Hides when a translation is written, and what is said of it. Does not know what a spec means
//! (`policy::translated`). Where the cluster has no such configs, nothing is done.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    runtime::watcher::{Config, watcher},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    conditions::condition,
    found::key_of,
    roots::{as_found, own, set_spec},
    subject::{NotWritten, Subject},
    verdict::{READY, Verdict},
};
use crate::configs::{ConfigFacts, Configs};
use ctrlmesh_api::{Condition, KridgeStatus, ShardingConfigSpec, keys};
use ctrlmesh_base::cluster::{OwnAccess, PAGE, Reflector, Update};
use ctrlmesh_policy::{Draft, Kind, ObjectRef, draft, object_of, translated};

/// The time after which a condition that is not there is written anew.
const ANEW: Duration = Duration::from_secs(60);

/// A config of Kridge.
#[derive(Clone, Debug, PartialEq)]
struct KridgeFacts {
    object: ObjectRef,
    /// The spec of its translation. Fails with what is wrong.
    spec: Result<Box<ShardingConfigSpec>, String>,
    is_let_in: bool,
    is_going: bool,
    /// Its condition.
    ready: Option<Condition>,
}

/// The configs of Kridge, as the API server has them.
pub(super) struct Kridges {
    reflector: Reflector<DynamicObject, KridgeFacts>,
    /// The condition that was written last of each, and when: a definition of somebody else's may drop
    /// it, and then it is written anew now and then only.
    written: BTreeMap<String, (Condition, Instant)>,
}

/// The write of a translation.
pub(super) struct Translation {
    of: ObjectRef,
    spec: Box<ShardingConfigSpec>,
    is_let_in: bool,
    /// The translation as it was found. `None` if it was not there.
    found: Option<ObjectRef>,
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
        Self { reflector, written: BTreeMap::new() }
    }

    /// Takes the next event. Dropping it loses nothing.
    pub(super) async fn next(&mut self) -> Update {
        self.reflector.next().await
    }

    fn all(&self) -> impl Iterator<Item = (&String, &KridgeFacts)> {
        self.reflector.known().into_iter().flatten().filter(|(_, config)| !config.is_going)
    }

    /// The translations to write.
    pub(super) fn due(&self, configs: &Configs) -> Vec<(Subject, Translation)> {
        let due = |(at, kridge): (&String, &KridgeFacts)| {
            let (_, translation) = kridge.step(configs.at(at));
            Some((Subject::Translation(at.clone()), translation?))
        };
        self.all().filter_map(due).collect()
    }

    /// The conditions to write.
    pub(super) fn conditions_due(
        &mut self,
        configs: &Configs,
        now: Timestamp,
    ) -> Vec<(Subject, Value)> {
        let mut due = Vec::new();
        for (at, kridge) in self.all() {
            let (status, because) = match kridge.step(configs.at(at)).0 {
                Verdict::Yes(reason, message) => ("True", (reason, message)),
                Verdict::No(reason, message) => ("False", (reason, message)),
                Verdict::None | Verdict::Unknown | Verdict::Undecided(..) => continue,
            };
            let written = self.written.get(at).filter(|(_, since)| since.elapsed() < ANEW);
            let present = kridge.ready.as_ref().or_else(|| written.map(|(one, _)| one));
            let generation = kridge.object.generation;
            let wanted = condition(READY, status, because, generation, present, now);
            if present != Some(&wanted) {
                due.push((at.clone(), kridge.object.clone(), wanted));
            }
        }
        let written =
            due.iter().map(|(at, _, wanted)| (at.clone(), (wanted.clone(), Instant::now())));
        self.written.extend(written);
        let known = self.reflector.known();
        self.written.retain(|at, _| known.is_some_and(|known| known.contains_key(at)));
        let kind = Kind::KridgeShardingConfig.api_resource();
        let write = |(at, object, wanted): (String, ObjectRef, Condition)| {
            let object = json!({
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "metadata": { "namespace": object.namespace, "name": object.name },
                "status": { "conditions": [wanted] },
            });
            (Subject::ConditionOfKridge(at), object)
        };
        due.into_iter().map(write).collect()
    }
}

impl Translation {
    pub(super) async fn send(self, client: &Client) -> Result<(), NotWritten> {
        let Self { of, spec, is_let_in, found } = self;
        let kind = Kind::ShardingConfig.api_resource();
        let configs: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &of.namespace, &kind);
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
}
