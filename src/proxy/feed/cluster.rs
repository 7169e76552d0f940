//! The policy in the cluster: a watch of the namespace's ShardingConfigs, under the pod's own
//! ServiceAccount.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use kube::{
    Api, Client,
    api::DynamicObject,
    runtime::watcher::{self, watcher},
};
use tokio::time::interval;

use super::{
    in_force::{Feed, SourceState},
    labels,
    namespaces::Resolver,
};
use crate::{
    cluster::{Followed, OwnAccess, Trouble, Update, describe},
    policy::{Checked, Kind, PodConfig, ShardingDraft, choose, draft},
};

/// Interval between reads of the pod's labels.
const LOOK: Duration = Duration::from_secs(1);
/// The name by which failures of this source are reported.
const SOURCE: &str = "shardingconfigs";

/// Follows the ShardingConfigs of `namespace` for as long as it is polled, and puts in force the
/// one that selects the labels in `pod_labels`. A pod with a Lease takes its turn in its ring.
pub(in crate::proxy) async fn follow_cluster(
    client: Client,
    namespace: String,
    pod_labels: PathBuf,
    feed: Arc<Feed>,
    has_lease: bool,
) {
    let access = OwnAccess::Client(client);
    let mut configs = follow_configs(access.clone(), namespace.clone());
    let mut resolver = Resolver::new(Arc::clone(&feed), access, has_lease);
    let mut looks = interval(LOOK);
    let mut labels = Err("not read yet".to_owned());
    loop {
        tokio::select! {
            step = configs.next() => match step {
                Update::Listing => continue,
                Update::Failed(trouble) => {
                    feed.note(SOURCE, SourceState::Lost(described(&trouble)));
                    continue;
                }
                Update::Whole { .. } => feed.note(SOURCE, SourceState::Current),
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
            Ok(draft) => resolver.take(draft, configs.values()),
            Err(problem) => {
                feed.reject(problem);
                resolver.beside(configs.values());
            }
        }
    }
}

/// The watch parses no spec, so that a malformed object leaves the others in place.
fn follow_configs(access: OwnAccess, namespace: String) -> Followed<DynamicObject, Checked> {
    let watch = move |client: Client| {
        let kind = Kind::ShardingConfig.api_resource();
        let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind);
        watcher(api, watcher::Config::default())
    };
    let checked = |object: DynamicObject| {
        let draft = draft(Kind::ShardingConfig, &object);
        (object.metadata.name.unwrap_or_default(), draft)
    };
    Followed::new(access, watch, checked)
}

fn decide(
    configs: &BTreeMap<String, Checked>,
    labels: &Result<BTreeMap<String, String>, String>,
    namespace: &str,
    present: Option<&PodConfig>,
) -> Result<ShardingDraft, String> {
    let labels = labels.as_ref().map_err(|what| format!("--pod-labels: {what}"))?;
    let chosen = choose(configs.values(), labels, namespace, present);
    chosen.cloned().map_err(|why| why.to_string())
}

/// Describes a failure of the watch in words that lead to the remedy.
fn described(trouble: &Trouble) -> String {
    let plural = Kind::ShardingConfig.api_resource().plural;
    if trouble.is_unknown() {
        return format!("the cluster has no {plural}: apply the CRD (ctrlmesh crds)");
    }
    describe(trouble, &plural, "")
}
