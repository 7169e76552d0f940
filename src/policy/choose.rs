//! The choice of the pod's ShardingConfig among those of its namespace.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Draft, compile};
use crate::{api::ShardingConfigSpec, wire::selector::Selector};

/// The specs of a namespace's ShardingConfigs by name, as the API server holds them.
pub type Configs = BTreeMap<String, serde_json::Value>;

/// The config whose policy is in force, as it was when last valid.
#[derive(Clone, Debug)]
pub struct Present {
    shard: Box<str>,
    pods: Selector,
}

impl Present {
    /// The config `shard`, for the pods that `pods` selects.
    #[must_use]
    pub fn new(shard: &str, pods: &Selector) -> Self {
        Self { shard: shard.into(), pods: pods.clone() }
    }

    /// The name of the ShardingConfig.
    #[must_use]
    pub fn shard(&self) -> &str {
        &self.shard
    }
}

/// Chooses the one config that selects `labels`. If `present` selected them and is now deleted or
/// invalid, no other config replaces it: objects change owners only when a person relabels the pod
/// or edits that config.
///
/// # Errors
/// A message for the administrator if there is not exactly one.
pub fn choose(
    configs: &Configs,
    labels: &BTreeMap<String, String>,
    namespace: &str,
    present: Option<&Present>,
) -> Result<Draft, String> {
    let label = |key: &str| labels.get(key).map(String::as_str);
    let mut selecting = Vec::new();
    let mut broken = Vec::new();
    for (name, spec) in configs {
        match draft(name, namespace, spec) {
            Ok(draft) if draft.pods().matches(label) => {
                selecting.push(draft);
            }
            Ok(_) => {}
            Err(what) => broken.push((name.as_str(), what)),
        }
    }
    if let Some(Present { shard, .. }) = present.filter(|present| present.pods.matches(label)) {
        if let Some((name, what)) = broken.iter().find(|(name, _)| *name == &**shard) {
            return Err(format!("ShardingConfig {name}: {what}"));
        }
        if !configs.contains_key(&**shard) {
            return Err(is_deleted(shard, &selecting));
        }
    }
    if selecting.len() > 1 {
        let names: Vec<_> = selecting.iter().map(Draft::shard).collect();
        return Err(format!(
            "the pod's labels are selected by more than one ShardingConfig: {}",
            names.join(", ")
        ));
    }
    selecting.pop().ok_or_else(|| {
        let mut why =
            format!("no ShardingConfig in namespace {namespace} selects the pod's labels");
        for (name, what) in broken {
            why.push_str(&format!("; {name} is invalid: {what}"));
        }
        why
    })
}

fn is_deleted(shard: &str, waiting: &[Draft]) -> String {
    let mut why = format!(
        "ShardingConfig {shard} is deleted, and the pod still has the labels that it selected: \
         create it again, or change the pod's labels"
    );
    let waiting: Vec<_> = waiting.iter().map(Draft::shard).collect();
    if !waiting.is_empty() {
        why.push_str(&format!("; until then {} waits", waiting.join(", ")));
    }
    why
}

/// Checks the config `name` as the API server holds it, for a pod of `namespace`.
///
/// # Errors
/// A message for the administrator.
pub fn draft(name: &str, namespace: &str, spec: &serde_json::Value) -> Result<Draft, String> {
    let spec = ShardingConfigSpec::deserialize(spec).map_err(|error| format!("spec: {error}"))?;
    compile(name, namespace, &spec).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configs(given: &[(&str, &str)]) -> Configs {
        let spec = |label: &str| json!({"selector": {"matchLabels": {"shard": label}}});
        given.iter().map(|(name, label)| ((*name).to_owned(), spec(label))).collect()
    }

    fn present(name: &str) -> Present {
        Present::new(name, &"shard=a".parse().unwrap())
    }

    fn labels() -> BTreeMap<String, String> {
        [("app", "op"), ("shard", "a")].map(|(key, value)| (key.into(), value.into())).into()
    }

    #[test]
    fn the_one_that_selects_the_pod_is_chosen() {
        let configs = configs(&[("one", "a"), ("two", "b")]);
        assert_eq!(choose(&configs, &labels(), "ns", None).unwrap().shard(), "one");
    }

    #[test]
    fn two_that_select_the_pod_are_none() {
        let error = choose(&configs(&[("one", "a"), ("two", "a")]), &labels(), "ns", None);
        assert!(error.unwrap_err().contains("one, two"));
    }

    #[test]
    fn none_names_the_invalid_ones() {
        let mut configs = configs(&[("two", "b")]);
        configs.insert("three".into(), json!({"selector": {"matchLabel": {}}}));
        let error = choose(&configs, &labels(), "ns", None).unwrap_err();
        assert!(error.contains("three is invalid") && error.contains("matchLabel"), "{error}");
    }

    #[test]
    fn nobody_takes_the_place_of_a_config_that_broke() {
        let mut configs = configs(&[("other", "a")]);
        configs.insert("mine".into(), json!({"selector": {}}));
        let error = choose(&configs, &labels(), "ns", Some(&present("mine"))).unwrap_err();
        assert!(error.contains("mine") && error.contains("spec.selector"), "{error}");
        assert_eq!(choose(&configs, &labels(), "ns", None).unwrap().shard(), "other");
    }

    #[test]
    fn nobody_takes_the_place_of_a_config_that_is_deleted() {
        for (others, waits) in [(&[("other", "a")][..], "until then other waits"), (&[], "")] {
            let error = choose(&configs(others), &labels(), "ns", Some(&present("mine")));
            let error = error.unwrap_err();
            assert!(error.contains("ShardingConfig mine is deleted"), "{error}");
            assert!(error.ends_with(if waits.is_empty() { "labels" } else { waits }), "{error}");
        }
        let both = configs(&[("other", "a"), ("third", "a")]);
        let error = choose(&both, &labels(), "ns", Some(&present("mine"))).unwrap_err();
        assert!(error.ends_with("until then other, third waits"), "{error}");
    }

    #[test]
    fn a_person_lets_another_take_the_place() {
        let mut changed = labels();
        changed.insert("other".into(), "label".into());
        let others = configs(&[("other", "a"), ("third", "b")]);
        let mine = present("mine");
        let chosen =
            |configs: &Configs, labels: &BTreeMap<_, _>| choose(configs, labels, "ns", Some(&mine));
        chosen(&others, &changed).expect_err("it would select these labels too");
        changed.insert("shard".into(), "b".into());
        assert_eq!(chosen(&others, &changed).unwrap().shard(), "third", "of the pod");
        let mut broken = others;
        broken.insert("mine".into(), json!({"selector": {}}));
        assert_eq!(chosen(&broken, &changed).unwrap().shard(), "third", "of the pod");
        let moved = configs(&[("mine", "c"), ("other", "a")]);
        assert_eq!(chosen(&moved, &labels()).unwrap().shard(), "other", "of the config");
    }
}
