//! Which of a namespace's ShardingConfigs is the pod's.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Draft, compile};
use crate::api::ShardingConfigSpec;

/// The specs of a namespace's ShardingConfigs by name, as the API server holds them.
pub type Configs = BTreeMap<String, serde_json::Value>;

/// Chooses the one config that selects `labels`. `present` is the shard whose policy is in force:
/// while its config cannot be read, no other takes its place.
///
/// # Errors
/// A sentence for the operator, when there is not exactly one.
pub fn choose(
    configs: &Configs,
    labels: &BTreeMap<String, String>,
    namespace: &str,
    present: Option<&str>,
) -> Result<Draft, String> {
    let mut selecting = Vec::new();
    let mut broken = Vec::new();
    for (name, spec) in configs {
        match draft(name, namespace, spec) {
            Ok(draft) if draft.pods().matches(|key| labels.get(key).map(String::as_str)) => {
                selecting.push(draft);
            }
            Ok(_) => {}
            Err(what) => broken.push((name.as_str(), what)),
        }
    }
    if let Some((name, what)) = broken.iter().find(|(name, _)| Some(*name) == present) {
        return Err(format!("ShardingConfig {name}: {what}"));
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

/// Checks the config `name` as the API server holds it, for a pod of `namespace`.
///
/// # Errors
/// A sentence for the operator.
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
        let error = choose(&configs, &labels(), "ns", Some("mine")).unwrap_err();
        assert!(error.contains("mine") && error.contains("spec.selector"), "{error}");
        assert_eq!(choose(&configs, &labels(), "ns", None).unwrap().shard(), "other");
    }
}
