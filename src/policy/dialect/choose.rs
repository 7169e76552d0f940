//! The choice of a pod's config among those of its namespace.

use std::{collections::BTreeMap, fmt};

use super::{draft::Draft, problem::Invalid};
use crate::wire::selector::Selector;

/// The config whose policy is in force, as it was when last valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    shard: Box<str>,
    pods: Selector,
}

/// The reason why no config is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotChosen {
    /// The pod's config cannot be used any more.
    Invalid(Invalid),
    /// The pod's config is deleted.
    Deleted {
        /// Its name.
        shard: Box<str>,
        /// The others that select the pod.
        waiting: Vec<Box<str>>,
    },
    /// Several select the pod.
    Several(Vec<Box<str>>),
    /// None selects the pod.
    None {
        /// The namespace of the configs.
        namespace: Box<str>,
        /// Those that cannot be used: one of them may be meant.
        invalid: Vec<Invalid>,
    },
}

impl Present {
    /// The config `shard`, for the pods that `pods` selects.
    #[must_use]
    pub fn new(shard: &str, pods: &Selector) -> Self {
        Self { shard: shard.into(), pods: pods.clone() }
    }
}

/// Chooses the one config of `namespace` that selects `labels`. If `present` selected them and is
/// now deleted or invalid, no other config replaces it: objects change owners only when a person
/// relabels the pod or edits that config.
///
/// # Errors
/// [`NotChosen`] if there is not exactly one.
pub fn choose(
    configs: impl IntoIterator<Item = Result<Draft, Invalid>>,
    labels: &BTreeMap<String, String>,
    namespace: &str,
    present: Option<&Present>,
) -> Result<Draft, NotChosen> {
    let label = |key: &str| labels.get(key).map(String::as_str);
    let present = present.filter(|present| present.pods.matches(label));
    let mut is_deleted = present.is_some();
    let mut selecting = Vec::new();
    let mut invalid = Vec::new();
    for config in configs {
        let name = config.as_ref().map_or_else(Invalid::name, Draft::shard);
        let is_present = present.is_some_and(|present| &*present.shard == name);
        is_deleted &= !is_present;
        match config {
            Ok(draft) if draft.pods().matches(label) => selecting.push(draft),
            Ok(_) => {}
            Err(why) if is_present => return Err(NotChosen::Invalid(why)),
            Err(why) => invalid.push(why),
        }
    }
    let names = || selecting.iter().map(|draft| draft.shard().into()).collect();
    match present {
        Some(Present { shard, .. }) if is_deleted => {
            return Err(NotChosen::Deleted { shard: shard.clone(), waiting: names() });
        }
        _ if selecting.len() > 1 => return Err(NotChosen::Several(names())),
        _ => {}
    }
    selecting.pop().ok_or_else(|| NotChosen::None { namespace: namespace.into(), invalid })
}

impl fmt::Display for NotChosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => write!(f, "ShardingConfig {}: {why}", why.name()),
            Self::Deleted { shard, waiting } => {
                write!(
                    f,
                    "ShardingConfig {shard} is deleted, and the pod still has the labels that it \
                     selected: create it again, or change the pod's labels"
                )?;
                if !waiting.is_empty() {
                    write!(f, "; until then {} waits", waiting.join(", "))?;
                }
                Ok(())
            }
            Self::Several(names) => write!(
                f,
                "the pod's labels are selected by more than one ShardingConfig: {}",
                names.join(", ")
            ),
            Self::None { namespace, invalid } => {
                write!(f, "no ShardingConfig in namespace {namespace} selects the pod's labels")?;
                invalid.iter().try_for_each(|why| write!(f, "; {} is invalid: {why}", why.name()))
            }
        }
    }
}

impl std::error::Error for NotChosen {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::dialect::{Configs, drafts};

    fn configs(given: &[(&str, &str)]) -> Configs {
        let spec = |label: &str| json!({"selector": {"matchLabels": {"shard": label}}});
        given.iter().map(|(name, label)| ((*name).to_owned(), spec(label))).collect()
    }

    fn choose(
        configs: &Configs,
        labels: &BTreeMap<String, String>,
        namespace: &str,
        present: Option<&Present>,
    ) -> Result<Draft, String> {
        let drafts = drafts(configs, namespace);
        super::choose(drafts, labels, namespace, present).map_err(|why| why.to_string())
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
