//! The choice of a pod's config among those of its namespace.
//!
//! Hides how the configs are found that may select a pod. Does not know what a config says else.

use std::collections::BTreeMap;

use super::{
    draft::{Checked, Draft, ShardingDraft, object_of},
    problem::{Invalid, joined},
};
use crate::{
    object::{Kind, ObjectRef},
    parts::PodConfig,
};
use ctrlmesh_wire::selector::Op;

/// The reason why no config is chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum NotChosen {
    #[error(transparent)]
    Invalid(Invalid),
    #[error(
        "{config} is deleted, and the pod still has the labels that it selected: create it again, \
         or change the pod's labels{}",
        until_then(waiting)
    )]
    Deleted { config: ObjectRef, waiting: Vec<ObjectRef> },
    #[error(
        "the pod's labels are selected by {}: exactly one config must select them",
        joined(.0, ", ")
    )]
    Several(Vec<ObjectRef>),
    #[error(
        "no {} in namespace {namespace} selects the pod's labels{}",
        Kind::ShardingConfig,
        invalid.iter().map(|why| format!("; invalid: {why}")).collect::<String>()
    )]
    None { namespace: Box<str>, invalid: Vec<Invalid> },
}

impl NotChosen {
    /// The advice to the person who reads it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Several(_) => {
                "change the selectors so that one of these configs alone selects the pods"
            }
            Self::Invalid(_) | Self::Deleted { .. } | Self::None { .. } => {
                "write a ShardingConfig whose selector matches the pods' labels, or change the labels"
            }
        }
    }
}

/// The checked configs of a namespace, for the choice of many pods: a pod meets only those that may
/// select it.
pub struct Choices<'c> {
    /// The configs that ask for one of some values of a label, by each of these. A config is listed by
    /// one label.
    by_label: BTreeMap<(&'c str, &'c str), Vec<Choice<'c>>>,
    /// The others.
    others: Vec<Choice<'c>>,
    invalid: Vec<&'c Invalid>,
}

/// A config, with its place among all.
type Choice<'c> = (usize, &'c ShardingDraft);

impl<'c> Choices<'c> {
    /// The choices among these.
    pub fn of(checked: impl IntoIterator<Item = &'c Checked>) -> Self {
        let mut choices =
            Self { by_label: BTreeMap::new(), others: Vec::new(), invalid: Vec::new() };
        for (at, checked) in checked.into_iter().enumerate() {
            match checked {
                Ok(Draft::Sharding(draft)) => choices.add((at, draft)),
                Ok(Draft::Root(_)) => {}
                Err(why) => choices.invalid.push(why),
            }
        }
        choices
    }

    fn add(&mut self, choice: Choice<'c>) {
        let mut requirements = choice.1.config.pods.requirements().iter();
        match requirements.find(|requirement| requirement.op() == Op::In) {
            Some(listed) => {
                for value in listed.values() {
                    self.by_label.entry((listed.key(), value)).or_default().push(choice);
                }
            }
            None => self.others.push(choice),
        }
    }

    /// The config of a pod that has none yet, by its labels. Fails as [`choose`].
    pub fn choose(
        &self,
        labels: &BTreeMap<String, String>,
        namespace: &str,
    ) -> Result<&'c ShardingDraft, NotChosen> {
        let label = |key: &str| labels.get(key).map(String::as_str);
        let listed =
            labels.iter().filter_map(|(key, value)| self.by_label.get(&(&**key, &**value)));
        let may_select = listed.flatten().chain(&self.others);
        let selects = |choice: &&Choice<'_>| choice.1.config.pods.matches(label);
        let mut selecting: Vec<Choice<'_>> = may_select.filter(selects).copied().collect();
        if selecting.len() > 1 {
            selecting.sort_unstable_by_key(|(at, _)| *at);
            let names = selecting.iter().map(|(_, draft)| draft.config.object.clone());
            return Err(NotChosen::Several(names.collect()));
        }
        let chosen = selecting.pop().map(|(_, draft)| draft);
        chosen.ok_or_else(|| NotChosen::None {
            namespace: namespace.into(),
            invalid: self.invalid.iter().map(|why| (*why).clone()).collect(),
        })
    }
}

/// Chooses the one config among the checked objects of `namespace` that selects `labels`. If
/// `present` selected them and is now deleted or invalid, no other config replaces it: objects
/// change owners only when a person relabels the pod or edits that config. Fails with [`NotChosen`]
/// if there is not exactly one.
pub fn choose<'c>(
    checked: impl IntoIterator<Item = &'c Checked>,
    labels: &BTreeMap<String, String>,
    namespace: &str,
    present: Option<&PodConfig>,
) -> Result<&'c ShardingDraft, NotChosen> {
    let label = |key: &str| labels.get(key).map(String::as_str);
    let present = present.filter(|present| present.pods.matches(label));
    let mut is_deleted = present.is_some();
    let mut selecting = Vec::new();
    let mut invalid = Vec::new();
    for checked in checked {
        let is_present = present.is_some_and(|present| present.object.is_same(object_of(checked)));
        is_deleted &= !is_present;
        match checked {
            Ok(Draft::Sharding(draft)) if draft.config.pods.matches(label) => {
                selecting.push(draft);
            }
            Ok(Draft::Sharding(_) | Draft::Root(_)) => {}
            Err(why) if is_present => return Err(NotChosen::Invalid(why.clone())),
            Err(why) => invalid.push(why.clone()),
        }
    }
    let names = || selecting.iter().map(|draft| draft.config.object.clone()).collect();
    match present {
        Some(PodConfig { object, .. }) if is_deleted => {
            return Err(NotChosen::Deleted { config: object.clone(), waiting: names() });
        }
        _ if selecting.len() > 1 => return Err(NotChosen::Several(names())),
        _ => {}
    }
    selecting.pop().ok_or_else(|| NotChosen::None { namespace: namespace.into(), invalid })
}

fn until_then(waiting: &[ObjectRef]) -> String {
    match waiting {
        [] => String::new(),
        _ => format!("; until then {} waits", joined(waiting, ", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::dialect::draft;

    type Configs = Vec<Checked>;

    fn config(name: &str, selector: Value) -> Checked {
        let object = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": "u", "generation": 7},
            "spec": {"selector": selector},
        });
        draft(Kind::ShardingConfig, &serde_json::from_value(object).unwrap())
    }

    fn configs(given: &[(&str, &str)]) -> Configs {
        let selector = |label: &str| json!({"matchLabels": {"shard": label}});
        given.iter().map(|(name, label)| config(name, selector(label))).collect()
    }

    fn choose(
        configs: &Configs,
        labels: &BTreeMap<String, String>,
        present: Option<&PodConfig>,
    ) -> Result<String, String> {
        super::choose(configs, labels, "ns", present)
            .map(|draft| draft.config.object.name.to_string())
            .map_err(|why| why.to_string())
    }

    fn present(name: &str) -> PodConfig {
        let object = object_of(&config(name, json!({}))).clone();
        // The config was created again since.
        let object = ObjectRef { uid: None, generation: None, ..object };
        PodConfig { object, pods: "shard=a".parse().unwrap() }
    }

    fn labels() -> BTreeMap<String, String> {
        [("app", "op"), ("shard", "a")].map(|(key, value)| (key.into(), value.into())).into()
    }

    /// A requirement of a selector, as JSON.
    fn expression() -> impl Strategy<Value = Value> {
        let values = prop::collection::btree_set("[a-c]", 1..3);
        ("[x-z]", 0..4_usize, values).prop_map(|(key, op, values)| {
            let values = if op < 2 { values } else { BTreeSet::new() };
            let op = ["In", "NotIn", "Exists", "DoesNotExist"][op];
            json!({ "key": key, "operator": op, "values": values })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn the_choice_for_many_pods_is_that_for_each(
            selectors in prop::collection::vec(prop::collection::vec(expression(), 0..3), 0..6),
            invalid in 0..9_usize,
            pods in prop::collection::vec(prop::collection::btree_map("[x-z]", "[a-c]", 0..4), 1..6),
        ) {
            let all = selectors.iter().map(|all| json!({ "matchExpressions": all }));
            let mut all: Configs =
                all.enumerate().map(|(at, one)| config(&format!("c{at}"), one)).collect();
            if let Some(one) = all.get_mut(invalid) {
                *one = config("bad", json!({"matchLabel": {}}));
            }
            let choices = Choices::of(&all);
            for labels in &pods {
                let alone = super::choose(&all, labels, "ns", None);
                prop_assert_eq!(choices.choose(labels, "ns"), alone);
            }
        }
    }

    #[test]
    fn the_one_that_selects_the_pod_is_chosen() {
        let configs = configs(&[("one", "a"), ("two", "b")]);
        assert_eq!(choose(&configs, &labels(), None).unwrap(), "one");
    }

    #[test]
    fn two_that_select_the_pod_are_none() {
        let error = choose(&configs(&[("one", "a"), ("two", "a")]), &labels(), None);
        assert!(error.unwrap_err().contains("ShardingConfig ns/one, ShardingConfig ns/two"));
    }

    #[test]
    fn none_names_the_invalid_ones() {
        let mut configs = configs(&[("two", "b")]);
        configs.push(config("three", json!({"matchLabel": {}})));
        let error = choose(&configs, &labels(), None).unwrap_err();
        assert!(
            error.contains("; invalid: ShardingConfig ns/three: spec: unknown field `matchLabel`"),
            "{error}"
        );
    }

    #[test]
    fn nobody_takes_the_place_of_a_config_that_broke() {
        let mut configs = configs(&[("other", "a")]);
        configs.push(config("mine", json!({})));
        let error = choose(&configs, &labels(), Some(&present("mine"))).unwrap_err();
        assert!(error.starts_with("ShardingConfig ns/mine: spec.selector: "), "{error}");
        assert_eq!(choose(&configs, &labels(), None).unwrap(), "other");
    }

    #[test]
    fn nobody_takes_the_place_of_a_config_that_is_deleted() {
        for (others, waits) in
            [(&[("other", "a")][..], "until then ShardingConfig ns/other waits"), (&[], "")]
        {
            let error = choose(&configs(others), &labels(), Some(&present("mine")));
            let error = error.unwrap_err();
            assert!(error.contains("ShardingConfig ns/mine is deleted"), "{error}");
            assert!(error.ends_with(if waits.is_empty() { "labels" } else { waits }), "{error}");
        }
        let both = configs(&[("other", "a"), ("third", "a")]);
        let error = choose(&both, &labels(), Some(&present("mine"))).unwrap_err();
        assert!(
            error.ends_with("ShardingConfig ns/other, ShardingConfig ns/third waits"),
            "{error}"
        );
    }

    #[test]
    fn a_person_lets_another_take_the_place() {
        let mut changed = labels();
        changed.insert("other".into(), "label".into());
        let others = configs(&[("other", "a"), ("third", "b")]);
        let mine = present("mine");
        let chosen =
            |configs: &Configs, labels: &BTreeMap<_, _>| choose(configs, labels, Some(&mine));
        chosen(&others, &changed).expect_err("it would select these labels too");
        changed.insert("shard".into(), "b".into());
        assert_eq!(chosen(&others, &changed).unwrap(), "third", "of the pod");
        let mut broken = others;
        broken.push(config("mine", json!({})));
        assert_eq!(chosen(&broken, &changed).unwrap(), "third", "of the pod");
        let moved = configs(&[("mine", "c"), ("other", "a")]);
        assert_eq!(chosen(&moved, &labels()).unwrap(), "other", "of the config");
    }
}
