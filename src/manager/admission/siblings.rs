//! Admission of ShardingConfigs: none comes in that owns what another shard of its ring owns.
//!
//! Hides which configs are compared, and how it is said what they have in common. Who asks says no by
//! siblings only as a consistent list has them. What comes in by two requests at once is found later,
//! by the conditions of the configs.

use kube::api::DynamicObject;

use super::wire::{BadReview, CONFIGS, Response, Review};
use crate::{
    api::keys,
    manager::configs::Configs,
    policy::{Draft, Kind, NamespaceLabels, draft, object_of, ownership::Comparison, ring::Wanted},
};

/// Most warnings.
const MOST_NAMED: usize = 5;

/// The answer to a review of a ShardingConfig.
#[derive(Clone, Debug)]
pub struct Config {
    /// The AdmissionReview to send, as JSON.
    pub body: Vec<u8>,
    /// The config, for people: namespace and name.
    pub config: String,
    /// The reason why it is refused. `None` if it is not.
    pub refused: Option<String>,
    /// Whether a sibling is the reason.
    pub is_by_sibling: bool,
    /// Whether the user is warned.
    pub is_warned: bool,
}

/// Answers a review of a ShardingConfig that is created or updated, beside those that there are, with
/// the namespaces of today. Fails with [`BadReview`] if the body is none.
pub fn review_config(
    body: &[u8],
    configs: &Configs,
    known: &NamespaceLabels,
) -> Result<Config, BadReview> {
    let Review { uid, namespace, object, old } = Review::parse(body, &CONFIGS)?;
    let is_same = !old.is_null() && object.get("spec") == old.get("spec");
    let is_going = object.pointer("/metadata/deletionTimestamp").is_some();
    let mut config: DynamicObject = serde_json::from_value(object)?;
    config.metadata.namespace = Some(namespace.clone());
    let named = format!("{namespace}/{}", config.metadata.name.as_deref().unwrap_or_default());
    let judged = match is_same || is_going {
        true => Ok(Vec::new()),
        false => judge(&config, configs, known),
    };
    let is_warned = judged.as_ref().is_ok_and(|warnings| !warnings.is_empty());
    let is_by_sibling = matches!(judged, Err(Refused::BySibling(_)));
    let (response, refused) = match judged {
        Ok(warnings) => (Response::warned(uid, warnings), None),
        Err(Refused::ByItself(why) | Refused::BySibling(why)) => {
            (Response::refused(uid, &why), Some(why))
        }
    };
    Ok(Config { body: response.into_body(), config: named, refused, is_by_sibling, is_warned })
}

/// The reason why a config is refused.
enum Refused {
    /// It cannot be used.
    ByItself(String),
    /// Another owns what it owns.
    BySibling(String),
}

/// The warnings about a config. Fails with the reason why it is refused.
fn judge(
    config: &DynamicObject,
    configs: &Configs,
    known: &NamespaceLabels,
) -> Result<Vec<String>, Refused> {
    let own = match draft(Kind::ShardingConfig, config) {
        Ok(Draft::Sharding(own)) => own,
        Ok(Draft::Root(root)) => {
            return Ok(root.warnings.iter().map(ToString::to_string).collect());
        }
        Err(why) => return Err(Refused::ByItself(why.to_string())),
    };
    let mut warnings: Vec<_> = own.warnings.iter().map(ToString::to_string).collect();
    let Ok(Some(mine)) = Wanted::of(&own, Some(known)) else { return Ok(warnings) };
    for config in configs.facts_of(&own.config.object.namespace) {
        let Ok(Some(theirs)) = config.wanted(Some(known)) else { continue };
        if theirs.ring != mine.ring || theirs.shard == mine.shard {
            continue;
        }
        let compared = Comparison::of([&mine.area, &theirs.area], Some(known));
        let name = object_of(&config.checked);
        if let Some((rule, witness)) = compared.common.first() {
            return Err(Refused::BySibling(format!(
                "spec.limits: {name} of the same ring owns some of the same {rule}, such as \
                 {witness}: take them out of it first, or overlap on purpose with the label {}{}",
                keys::PREFIX,
                keys::IGNORE_VALIDATE
            )));
        }
        let undecided = compared.undecided.iter().take(MOST_NAMED);
        warnings.extend(undecided.map(|(rule, why)| {
            format!("{name} of the same ring may own some of the same {rule}: {why}")
        }));
        let limited_once = compared.limited_once.iter().take(MOST_NAMED);
        warnings.extend(
            limited_once
                .map(|rule| format!("of this and {name} of the same ring only one limits {rule}")),
        );
    }
    warnings.truncate(MOST_NAMED);
    Ok(warnings)
}
