//! A summary of the scope of a shard, for the columns OWNS and RESOURCES.
//!
//! Hides how much is said of many resources and of long boundaries. Knows no shard.

use std::{fmt::Write, sync::Arc};

use crate::sharding::{Boundary, ByResource, HashOf, HashRule, Scope};

/// The lengths of the words, in bytes: columns that leave room for others.
const LONGEST_OBJECTS: usize = 40;
const LONGEST_RESOURCES: usize = 96;
/// The digits of a hash that are said: more than tell shards apart.
const DIGITS: usize = "0x".len() + 8;

/// The objects that a shard has, in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnsInWords {
    /// The names, labels or hashes of the objects: at most 40 bytes.
    pub objects: String,
    /// The resources that are limited: at most 96 bytes.
    pub resources: String,
}

/// What a shard has of the resources that it limits.
pub fn said(area: &ByResource<Arc<Scope>>) -> OwnsInWords {
    let mut scopes: Vec<String> = Vec::new();
    let mut resources = Vec::new();
    for (rule, scope) in area.pieces() {
        let text = scope.map(|scope| in_short(scope)).filter(|text| !text.is_empty());
        let text = text.unwrap_or_else(|| "everything".to_owned());
        if !scopes.contains(&text) {
            scopes.push(text);
        }
        resources.push(rule.to_string());
    }
    if scopes.is_empty() {
        scopes.push("everything".to_owned());
    }
    OwnsInWords {
        objects: cut(scopes.join("; "), LONGEST_OBJECTS),
        resources: cut(resources.join(","), LONGEST_RESOURCES),
    }
}

fn cut(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        text.truncate(text.floor_char_boundary(longest - "…".len()));
        text.push('…');
    }
    text
}

/// A scope in short: `team=blue`, `a,b`, `0x00000000-0x80000000`, `labels tier=gold`.
fn in_short(scope: &Scope) -> String {
    if scope.is_nothing() {
        return "nothing".to_owned();
    }
    let mut parts: Vec<String> = Vec::new();
    parts.extend(Some(scope.text().to_owned()).filter(|text| !text.is_empty()));
    for boundary in scope.boundaries() {
        parts.extend(conditions(boundary));
    }
    parts.join(", ")
}

fn conditions(boundary: &Boundary) -> Vec<String> {
    let Boundary { names, pattern, selected, computed, hash, has_cluster_scoped } = boundary;
    let names = names.as_ref().map(|names| match names.is_empty() {
        true => "no namespace".to_owned(),
        false => names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(","),
    });
    let pattern = pattern.as_ref().map(|pattern| format!("~ {:?}", pattern.as_str()));
    let selected = selected.as_ref().map(|selected| format!("labels {}", selected.selector()));
    let computed = computed.as_ref().map(ToString::to_string);
    let is_by_namespace = boundary.is_by_namespace();
    let outside = (is_by_namespace && *has_cluster_scoped).then(|| "cluster-scoped".to_owned());
    let hash = hash.as_ref().map(ranges);
    [names, pattern, selected, computed, hash, outside].into_iter().flatten().collect()
}

/// The ranges of a rule: `0x00000000-0x80000000`, `uid 0x80000000-`.
fn ranges(rule: &HashRule) -> String {
    let mut text = String::new();
    if rule.of() == HashOf::Uid {
        text.push_str("uid ");
    }
    for (at, (from, to)) in rule.texts().iter().enumerate() {
        let gap = if at == 0 { "" } else { "," };
        let [from, to] = [from, to].map(|hash| hash.get(..DIGITS).unwrap_or_default());
        // Writing into a string does not fail.
        let _ = write!(text, "{gap}{from}-{to}");
    }
    text
}
