//! The policy in the cluster: a watch of the namespace's ShardingConfigs, under the pod's own
//! ServiceAccount.

use std::{collections::BTreeMap, sync::Arc};

use kube::{
    Api, Client,
    api::DynamicObject,
    runtime::watcher::{self, watcher},
};

use super::{
    active::{PolicyStore, SourceState},
    labels::{OwnLabels, OwnPod},
    namespaces::Resolver,
};
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update, WatchError, describe};
use ctrlmesh_policy::{Checked, Kind, PodConfig, ShardingDraft, choose, draft};

/// The names by which failures of these sources are reported.
const SOURCE: &str = "shardingconfigs";
const OWN_POD: &str = "pods";

/// Follows the ShardingConfigs of the pod's namespace for as long as it is polled. It puts in force the config
/// that selects the pod. A pod with a Lease takes its turn in its ring.
pub(crate) async fn follow_cluster(
    client: Client,
    pod: OwnPod,
    policy_store: Arc<PolicyStore>,
    has_lease: bool,
) {
    let access = OwnAccess::Client(client);
    let namespace = pod.namespace.clone();
    let mut configs = follow_configs(access.clone(), namespace.clone());
    let mut labels = OwnLabels::new(access.clone(), pod);
    let mut resolver = Resolver::new(Arc::clone(&policy_store), access, has_lease);
    loop {
        tokio::select! {
            step = configs.next() => match step {
                Update::Listing => continue,
                Update::Failed(error) => {
                    policy_store.note(SOURCE, SourceState::Lost(described(&error)));
                    continue;
                }
                Update::Whole { .. } => policy_store.note(SOURCE, SourceState::Current),
            },
            () = resolver.keep_up() => continue,
            changed = labels.changed() => {
                let problem = match changed {
                    Err(error) => Some(SourceState::Lost(describe(&error, "pods", ""))),
                    Ok(()) => labels.other_shard().map(SourceState::Rejected),
                };
                policy_store.note(OWN_POD, problem.unwrap_or(SourceState::Current));
            }
        }
        let Some(configs) = configs.known() else { continue };
        match decide(configs, labels.get(), &namespace, policy_store.config().as_ref()) {
            Ok(draft) => {
                labels.wait_for_shard(false);
                resolver.take(draft, configs.values());
            }
            Err(problem) => {
                labels.wait_for_shard(policy_store.config().is_none());
                policy_store.reject(problem);
                resolver.beside(configs.values());
            }
        }
    }
}

/// The watch parses no spec, so that a malformed object leaves the others in place.
fn follow_configs(access: OwnAccess, namespace: String) -> Reflector<DynamicObject, Checked> {
    let watch = move |client: Client| {
        let kind = Kind::ShardingConfig.api_resource();
        let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind);
        watcher(api, watcher::Config::default())
    };
    let checked = |object: DynamicObject| {
        let draft = draft(Kind::ShardingConfig, &object);
        (object.metadata.name.unwrap_or_default(), draft)
    };
    Reflector::new(access, watch, checked)
}

fn decide(
    configs: &BTreeMap<String, Checked>,
    labels: Result<BTreeMap<String, String>, String>,
    namespace: &str,
    present: Option<&PodConfig>,
) -> Result<ShardingDraft, String> {
    let labels = labels.map_err(|what| format!("--pod-labels: {what}"))?;
    let chosen = choose(configs.values(), &labels, namespace, present);
    chosen.cloned().map_err(|why| why.to_string())
}

/// Describes a failure of the watch in words that lead to the remedy.
fn described(error: &WatchError) -> String {
    let plural = Kind::ShardingConfig.api_resource().plural;
    if error.is_unknown() {
        return format!("the cluster has no {plural}: apply the CRD (ctrlmesh crds)");
    }
    describe(error, &plural, "")
}
