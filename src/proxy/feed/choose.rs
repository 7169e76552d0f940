//! Which of a namespace's ShardingConfigs is the pod's.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    api::ShardingConfigSpec,
    policy::{self, Policy},
};

/// The configs of the namespace, as the API server holds them.
pub(super) type Configs = BTreeMap<String, serde_json::Value>;

/// Chooses the one config that selects `labels`. `present` is the shard whose policy is in force:
/// while its config cannot be read, no other takes its place.
///
/// # Errors
/// A sentence for the operator, when there is not exactly one.
pub(super) fn choose(
    configs: &Configs,
    labels: &BTreeMap<String, String>,
    namespace: &str,
    present: Option<&str>,
) -> Result<Policy, String> {
    let mut selecting = Vec::new();
    let mut broken = Vec::new();
    for (name, spec) in configs {
        match read(name, namespace, spec) {
            Ok(policy) if policy.pods().matches(|key| labels.get(key).map(String::as_str)) => {
                selecting.push(policy);
            }
            Ok(_) => {}
            Err(what) => broken.push((name.as_str(), what)),
        }
    }
    if let Some((name, what)) = broken.iter().find(|(name, _)| Some(*name) == present) {
        return Err(format!("ShardingConfig {name}: {what}"));
    }
    if selecting.len() > 1 {
        let names: Vec<_> = selecting.iter().map(Policy::shard).collect();
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

fn read(name: &str, namespace: &str, spec: &serde_json::Value) -> Result<Policy, String> {
    let spec = ShardingConfigSpec::deserialize(spec).map_err(|error| format!("spec: {error}"))?;
    policy::compile(name, namespace, &spec).map_err(|error| error.to_string())
}

/// Reads the labels as a downwardAPI volume writes them: one `key="value"` a line, the value
/// quoted as Go quotes it, which for what a label may hold is as JSON does.
pub(super) fn parse_labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let bad = || format!("{line:?} is not KEY=\"VALUE\"");
            let (key, value) = line.split_once('=').ok_or_else(bad)?;
            let value = serde_json::from_str(value).map_err(|_| bad())?;
            Ok((key.to_owned(), value))
        })
        .collect()
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
        parse_labels("app=\"op\"\nshard=\"a\"\n").unwrap()
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

    #[test]
    fn labels_are_read_as_the_kubelet_writes_them() {
        let labels = parse_labels("a.io/b=\"c\"\nempty=\"\"\n").unwrap();
        assert_eq!(labels["a.io/b"], "c");
        assert_eq!(labels["empty"], "");
        assert!(parse_labels("a").is_err() && parse_labels("a=b").is_err());
    }
}
