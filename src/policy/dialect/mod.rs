//! The objects that users write, in each of their APIs, made drafts of policies.
//!
//! Hides the fields and the rules of each API. What it makes of them is the same for all, and the
//! choice among several knows no API.

mod choose;
mod document;
mod draft;
mod kusion;
mod problem;

use std::collections::BTreeMap;

pub use self::{
    choose::{NotChosen, Present, choose},
    document::{BadDocument, from_documents, names},
    draft::Draft,
    kusion::{compile, draft},
    problem::{Invalid, Problem},
};

/// The specs of a namespace's ShardingConfigs by name, as the API server holds them.
pub type Configs = BTreeMap<String, serde_json::Value>;

/// The drafts of all configs, for a pod of `namespace`.
pub fn drafts<'c>(
    configs: &'c Configs,
    namespace: &'c str,
) -> impl Iterator<Item = Result<Draft, Invalid>> + 'c {
    configs.iter().map(move |(name, spec)| draft(name, namespace, spec))
}
