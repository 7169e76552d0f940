//! The objects of a shard in a few words, for a column of a table.
//!
//! Hides how much is said of many resources and of long boundaries. Knows no shard.

use std::sync::Arc;

use crate::policy::sharding::{Area, Scope};

/// The length of the words, in bytes: a column that leaves room for others.
const LONGEST: usize = 96;

/// The objects that a shard has of the resources that it limits: resources with one scope together, cut
/// where it is too long.
pub fn said(area: &Area<Arc<Scope>>) -> String {
    let mut by_scope: Vec<(String, Vec<String>)> = Vec::new();
    for (rule, scope) in area.pieces() {
        let scope = scope.map(ToString::to_string).filter(|text| !text.is_empty());
        let scope = scope.unwrap_or_else(|| "everything".to_owned());
        match by_scope.iter_mut().find(|(of, _)| *of == scope) {
            Some((_, rules)) => rules.push(rule.to_string()),
            None => by_scope.push((scope, vec![rule.to_string()])),
        }
    }
    let parts = by_scope.iter().map(|(scope, rules)| format!("{}: {scope}", rules.join(",")));
    let mut text = parts.collect::<Vec<_>>().join("; ");
    if text.is_empty() {
        text.push_str("everything");
    }
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST - "…".len()));
        text.push('…');
    }
    text
}
