//! The resources of a whole pod (`spec.resources`, KEP-2837), which must cover those of all its
//! containers.
//!
//! Ours are added to each amount that the pod has there. An annotation says what was added, so that it
//! can be taken back before the next injection.

mod quantity;

use std::collections::BTreeMap;

use serde_json::Value;

pub(super) use self::quantity::Quantity;
use super::{
    names::{INIT, PROXY},
    pod::{Container, ParsedPod},
};
use ctrlmesh_api::keys;

/// What was added: amounts by list (`requests`, `limits`) and resource.
type Added = BTreeMap<String, BTreeMap<String, String>>;

/// Adds our containers' resources to those of the pod. Returns a remark if there was anything to add.
pub(super) fn add(parsed: &mut ParsedPod) -> Option<String> {
    parsed.spec.get("resources")?;
    let ours = |name: &str| parsed.all_containers().find(|container| container.name == name);
    let (init, proxy) = (ours(INIT).cloned(), ours(PROXY).cloned());
    let lists = parsed.spec.get_mut("resources")?.as_object_mut()?;
    let mut added = Added::new();
    for list in ["requests", "limits"] {
        let amounts = lists.get_mut(list).and_then(Value::as_object_mut);
        for (resource, amount) in amounts.into_iter().flatten() {
            let Some(pods) = quantity(amount) else { continue };
            let of = |container: &Option<Container>| {
                container.as_ref().map_or_else(Quantity::default, |one| own(one, list, resource))
            };
            // The init container ends before the pod's own begin.
            let sum = (pods + of(&proxy)).max(of(&init));
            let more = sum.without(pods).filter(|more| !more.is_zero());
            if let Some(more) = more {
                *amount = sum.to_string().into();
                added
                    .entry(list.to_owned())
                    .or_default()
                    .insert(resource.clone(), more.to_string());
            }
        }
    }
    if added.is_empty() {
        return None;
    }
    let text = serde_json::to_string(&added).ok()?;
    parsed.annotations.insert(keys::ADDED_RESOURCES.to_owned(), text);
    let all = added.iter().flat_map(|(list, amounts)| {
        amounts.iter().map(move |(resource, more)| format!("{list}.{resource} by {more}"))
    });
    let all: Vec<_> = all.collect();
    Some(format!(
        "spec.resources covers the injected containers, too: it was raised in {}",
        all.join(", ")
    ))
}

/// Takes back what an earlier injection added.
pub(super) fn take_back(parsed: &mut ParsedPod) {
    let Some(text) = parsed.annotations.remove(keys::ADDED_RESOURCES) else { return };
    let added: Added = serde_json::from_str(&text).unwrap_or_default();
    for (list, amounts) in added {
        for (resource, more) in amounts {
            let lists = parsed.spec.get_mut("resources");
            let amount = lists.and_then(|lists| lists.get_mut(&list)?.get_mut(&resource));
            let Some(amount) = amount else { continue };
            let less = quantity(amount).zip(Quantity::parse(&more));
            if let Some(less) = less.and_then(|(sum, more)| sum.without(more)) {
                *amount = less.to_string().into();
            }
        }
    }
}

/// The amount of one of our containers. One without a limit still has its request, below which no
/// limit may be.
fn own(container: &Container, list: &str, resource: &str) -> Quantity {
    let resources = container.fields.get("resources");
    let of = |list| quantity(resources?.get(list)?.get(resource)?);
    of(list).or_else(|| of("requests")).unwrap_or_default()
}

fn quantity(amount: &Value) -> Option<Quantity> {
    match amount {
        Value::String(text) => Quantity::parse(text),
        Value::Number(number) => Quantity::parse(&number.to_string()),
        _ => None,
    }
}
