//! The note on containers that elect by a lock that the ShardingConfig does not name.
//!
//! Hides the flags by which controllers are told. A controller that is notified otherwise is found by its
//! requests.

use serde_json::Value;

use crate::pod::ParsedPod;
use ctrlmesh_policy::ShardingDraft;

/// The flags for the namespace of the lock: those of controller-runtime's and client-go's examples, and
/// of Kubernetes' own components (`ComponentConfig`).
const NAMESPACE: [&str; 2] = ["leader-election-namespace", "leader-elect-resource-namespace"];
/// The flags for its name.
const NAME: [&str; 2] = ["leader-election-id", "leader-elect-resource-name"];

/// The notes, a sentence each.
pub(crate) fn notes(parsed: &ParsedPod, config: &ShardingDraft) -> Vec<String> {
    let of = parsed.all_containers().filter_map(|container| {
        let words = || {
            ["command", "args"].into_iter().flat_map(|key| {
                let words = container.fields.get(key).and_then(Value::as_array);
                words.into_iter().flatten().filter_map(Value::as_str)
            })
        };
        let [namespace, name] = [NAMESPACE, NAME].map(|flags| value(words(), flags));
        let own = &*config.config.object.namespace;
        if (namespace, name) == (None, None)
            || config.has_lock(namespace.unwrap_or(own), name)
        {
            return None;
        }
        let what = match name {
            Some(name) => format!("the lock {}/{name}", namespace.unwrap_or(own)),
            None => format!("a lock of the namespace {}", namespace.unwrap_or(own)),
        };
        Some(format!(
            "{}: by its arguments, container {} elects by {what}, which spec.controller does not name: \
             without it all shards have one leader; add it to spec.controller.locks",
            config.config.object, container.name
        ))
    });
    of.collect()
}

/// The value of the first of these flags. `None` if there is none, or if it is known when the pod runs.
fn value<'w>(words: impl Iterator<Item = &'w str>, flags: [&str; 2]) -> Option<&'w str> {
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, words.peek().copied()),
        };
        if flags.contains(&name) {
            return value.filter(|value| !value.is_empty() && !value.contains("$("));
        }
    }
    None
}
