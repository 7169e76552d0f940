//! The policy in the cluster: a watch of the namespace's ShardingConfigs, under the pod's own
//! ServiceAccount.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject},
    runtime::watcher::{self, watcher},
};
use tokio::time::interval;

use super::{
    in_force::{Feed, Source},
    labels,
    namespaces::Resolver,
};
use crate::{
    api::ShardingConfig,
    cluster::{Access, Followed, Step, Trouble, describe},
    policy::{Configs, Draft, Present, choose, drafts},
};

/// Interval between reads of the pod's labels.
const LOOK: Duration = Duration::from_secs(1);
/// The name by which failures of this source are reported.
const SOURCE: &str = "shardingconfigs";

/// Follows the ShardingConfigs of `namespace` for as long as it is polled, and puts in force the
/// one that selects the labels in `pod_labels`.
pub(in crate::proxy) async fn follow_cluster(
    client: Client,
    namespace: String,
    pod_labels: PathBuf,
    feed: Arc<Feed>,
) {
    let access = Access::Client(client);
    let mut configs = follow_configs(access.clone(), namespace.clone());
    let mut resolver = Resolver::new(Arc::clone(&feed), access);
    let mut looks = interval(LOOK);
    let mut labels = Err("not read yet".to_owned());
    loop {
        tokio::select! {
            step = configs.next() => match step {
                Step::Listing => continue,
                Step::Failed(trouble) => {
                    feed.note_source(SOURCE, Source::Lost(described(&trouble)));
                    continue;
                }
                Step::Whole { .. } => feed.note_source(SOURCE, Source::Current),
            },
            () = resolver.keep_up() => continue,
            _ = looks.tick() => {
                let now = labels::read(&pod_labels);
                if now == labels {
                    continue;
                }
                labels = now;
            }
        }
        let Some(configs) = configs.known() else { continue };
        match decide(configs, &labels, &namespace, feed.config().as_ref()) {
            Ok(draft) => resolver.take(draft),
            Err(problem) => feed.reject(problem),
        }
    }
}

/// Objects are not parsed here, so that a malformed one leaves the others in place.
fn follow_configs(access: Access, namespace: String) -> Followed<DynamicObject, serde_json::Value> {
    let watch = move |client: Client| {
        let kind = ApiResource::erase::<ShardingConfig>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind);
        watcher(api, watcher::Config::default())
    };
    let spec = |mut object: DynamicObject| {
        let spec = object.data.get_mut("spec").map(serde_json::Value::take);
        (object.metadata.name.unwrap_or_default(), spec.unwrap_or_default())
    };
    Followed::new(access, watch, spec)
}

fn decide(
    configs: &Configs,
    labels: &Result<BTreeMap<String, String>, String>,
    namespace: &str,
    present: Option<&Present>,
) -> Result<Draft, String> {
    let labels = labels.as_ref().map_err(|what| format!("--pod-labels: {what}"))?;
    choose(drafts(configs, namespace), labels, namespace, present).map_err(|why| why.to_string())
}

/// Describes a failure of the watch in words that lead to the remedy.
fn described(trouble: &Trouble) -> String {
    let plural = ShardingConfig::plural(&());
    match trouble {
        Trouble::Watch(
            watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status)),
        ) if status.code == 404 => {
            format!("the cluster has no {plural}: apply the CRD (ctrlmesh crds)")
        }
        trouble => describe(trouble, &plural, ""),
    }
}
