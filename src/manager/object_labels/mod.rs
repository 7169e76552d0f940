//! The labels of KusionStack on the objects of kinds that its ConfigMap names: for people and their tools.
//! Nothing of ours reads them.
//!
//! Hides which kinds there are, how their objects are followed, and how fast they are written. Words: an
//! object is *stamped* if it has the labels of its namespace.

mod kind;
mod kinds;
mod pace;

use std::{collections::BTreeMap, future::pending, time::Duration};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::watcher::{Config, watcher},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use self::{
    kind::Stamper,
    kinds::{Group, Kinds, Stamped},
    pace::Pace,
};
use super::shared::Shared;
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update, describe};

/// The interval at which the API server is asked for the kinds: definitions come and go.
const LOOK: Duration = Duration::from_secs(60);

/// The subjects of problems.
const CONFIG: &str = "the ConfigMap of stamped kinds";
const KINDS: &str = "stamped kinds";

/// Stamps for as long as it is polled. A pass over all objects begins again with each term.
pub(super) async fn stamp(shared: &Shared, client: &Client) {
    let (kinds, wanted) = watch::channel(Vec::new());
    tokio::join!(find(shared, client, kinds), keep(shared, client, wanted));
}

/// Shows the kinds that the ConfigMap names, as far as the API server serves them.
async fn find(shared: &Shared, client: &Client, kinds: watch::Sender<Vec<Stamped>>) {
    let mut maps = config_map(shared, client);
    let mut named = Kinds::default();
    let mut served: BTreeMap<Group, Vec<Stamped>> = BTreeMap::new();
    let mut next = Instant::now();
    loop {
        let due = async {
            match named.is_empty() {
                true => pending().await,
                false => sleep_until(next).await,
            }
        };
        tokio::select! {
            update = maps.next() => match update {
                Update::Listing => continue,
                Update::Failed(error) => {
                    shared.note(CONFIG, Some(describe(&error, "configmaps", "")));
                    continue;
                }
                Update::Whole { .. } => {
                    let map = maps.known().and_then(|known| known.values().next());
                    match map.map_or_else(|| Ok(Kinds::default()), Kinds::of) {
                        Ok(other) => {
                            shared.note(CONFIG, None);
                            named = other;
                        }
                        Err(why) => {
                            shared.note(CONFIG, Some(why.to_string()));
                            continue;
                        }
                    }
                }
            },
            () = due => {}
        }
        let problems = named.look(client, &mut served).await;
        shared.note(KINDS, problems);
        next = Instant::now() + LOOK;
        let all: Vec<_> = served.values().flatten().cloned().collect();
        kinds.send_if_modified(|known| {
            let is_other = *known != all;
            *known = all;
            is_other
        });
    }
}

type Data = BTreeMap<String, String>;

fn config_map(shared: &Shared, client: &Client) -> Reflector<ConfigMap, Data> {
    let objects = &shared.config.objects;
    let config = Config::default().fields(&format!("metadata.name={}", objects.stamped));
    let namespace = objects.namespace.clone();
    let watch = move |client: Client| {
        watcher(Api::<ConfigMap>::namespaced(client, &namespace), config.clone())
    };
    Reflector::new(OwnAccess::Client(client.clone()), watch, |map: ConfigMap| {
        (map.metadata.name.unwrap_or_default(), map.data.unwrap_or_default())
    })
}

/// Keeps the objects of these kinds stamped.
async fn keep(shared: &Shared, client: &Client, mut wanted: watch::Receiver<Vec<Stamped>>) {
    let pace = Pace::new(shared.config.stamp_rate);
    loop {
        let kinds = wanted.borrow_and_update().clone();
        let stampers = kinds.into_iter().map(|kind| Stamper::new(client, shared, &pace, kind));
        let stampers: Vec<_> = stampers.collect();
        let work = async {
            join_all(stampers.iter().map(Stamper::keep)).await;
            pending::<()>().await;
        };
        tokio::select! {
            () = work => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}
