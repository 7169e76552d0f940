//! Exceptions from the fence, by exact names.

use std::collections::BTreeSet;

use crate::{
    policy::{GroupResource, Rule, sharding::BadRule},
    wire::{dns::is_label, request::Verb},
};

/// Foreign writes that pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::policy) struct Except {
    rules: Vec<Rule>,
    /// `None` means any.
    namespaces: Option<BTreeSet<Box<str>>>,
    /// `None` means any.
    verbs: Option<Vec<Verb>>,
}

/// Errors in an exception.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadExcept {
    #[error(transparent)]
    Rule(#[from] BadRule),
    #[error("{0} is empty: {1}")]
    Empty(&'static str, &'static str),
    #[error(
        "namespaces: {0:?} is not a namespace: give at most 63 of a-z, 0-9 and -, beginning and ending with \
         a letter or digit, or \"*\""
    )]
    Namespace(String),
    #[error(
        "verbs: {0:?} is not a verb that writes: give create, update, patch, delete or deletecollection"
    )]
    Verb(String),
}

/// The verbs that write.
const VERBS: [Verb; 5] =
    [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete, Verb::DeleteCollection];

impl Except {
    /// Reads an exception. Fails with [`BadExcept`].
    pub(in crate::policy) fn new(given: &crate::api::Except) -> Result<Self, BadExcept> {
        let empty = |field, remedy| Err(BadExcept::Empty(field, remedy));
        if given.api_groups.is_empty() {
            return empty("apiGroups", "name a group, \"\" for the core group, or \"*\"");
        }
        if given.resources.is_empty() {
            return empty(
                "resources",
                "name a resource in plural, for example \"secrets\", or \"*\"",
            );
        }
        if given.namespaces.is_empty() {
            return empty("namespaces", "name the namespaces that are written into, or \"*\"");
        }
        let mut rules = Vec::new();
        for group in &given.api_groups {
            for resource in &given.resources {
                rules.push(Rule::new(group, resource)?);
            }
        }
        let namespaces = given.namespaces.iter().map(|name| match name.as_str() {
            "*" => Ok(None),
            name if name.len() <= 63 && is_label(name) => Ok(Some(name.into())),
            name => Err(BadExcept::Namespace(name.to_owned())),
        });
        // One `*` among names means any.
        let namespaces = namespaces.collect::<Result<Vec<_>, _>>()?.into_iter().collect();
        let verbs = given.verbs.iter().filter(|verb| *verb != "*").map(|verb| Self::verb(verb));
        let verbs = verbs.collect::<Result<Vec<_>, _>>()?;
        let is_any = given.verbs.is_empty() || given.verbs.iter().any(|verb| verb == "*");
        Ok(Self { rules, namespaces, verbs: (!is_any).then_some(verbs) })
    }

    fn verb(text: &str) -> Result<Verb, BadExcept> {
        let verb = VERBS.into_iter().find(|verb| verb.as_str() == text);
        verb.ok_or_else(|| BadExcept::Verb(text.to_owned()))
    }

    /// Whether it lets everything pass.
    pub(in crate::policy) fn is_everything(&self) -> bool {
        let is_any = self.rules.contains(&Rule::everything());
        is_any && self.namespaces.is_none() && self.verbs.is_none()
    }

    /// Whether it names a foreign write.
    pub(super) fn has(&self, resource: &GroupResource, namespace: &str, verb: Verb) -> bool {
        self.rules.iter().any(|rule| rule.covers(resource))
            && self.namespaces.as_ref().is_none_or(|names| names.contains(namespace))
            && self.verbs.as_ref().is_none_or(|verbs| verbs.contains(&verb))
    }
}
