//! Pods of the Deployments that roots name, and the label by which they have a shard.
//!
//! Hides how a copy is notified from a pod of a template. Knows no shard: none is given at admission, since two
//! replicas that choose at once would leave shards without a pod.

use serde_json::Value;

use crate::workload::controller;
use ctrlmesh_api::keys;
use ctrlmesh_inject::NotInjected;

/// Takes the label of a shard off a pod that was copied; returns a note about it. Fails if its template
/// carries the label: all of its pods would be of one shard.
pub(super) fn take_label_off(pod: &mut Value) -> Result<Option<String>, NotInjected> {
    let is_of_template = controller(pod).is_some() && pod.pointer("/metadata/name").is_none();
    let labels = pod.pointer_mut("/metadata/labels").and_then(Value::as_object_mut);
    let Some(labels) = labels.filter(|labels| labels.contains_key(keys::SHARD)) else {
        return Ok(None);
    };
    if is_of_template {
        return Err(NotInjected::ShardLabel);
    }
    labels.remove(keys::SHARD);
    Ok(Some(format!("the label {} was taken off: the manager gives each pod its own", keys::SHARD)))
}
