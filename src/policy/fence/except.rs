//! Exceptions from the fence, by exact names.

use crate::{
    GroupResource,
    sharding::{BadNamed, Named},
};
use ctrlmesh_wire::request::Verb;

/// Foreign writes that pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Except {
    named: Named,
    /// `None` means any.
    verbs: Option<Vec<Verb>>,
}

/// Errors in an exception.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadExcept {
    #[error(transparent)]
    Named(#[from] BadNamed),
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
    pub(crate) fn new(given: &ctrlmesh_api::Except) -> Result<Self, BadExcept> {
        let named = Named::new(&given.api_groups, &given.resources, &given.namespaces)?;
        let verbs = given.verbs.iter().filter(|verb| *verb != "*").map(|verb| Self::verb(verb));
        let verbs = verbs.collect::<Result<Vec<_>, _>>()?;
        let is_any = given.verbs.is_empty() || given.verbs.iter().any(|verb| verb == "*");
        Ok(Self { named, verbs: (!is_any).then_some(verbs) })
    }

    fn verb(text: &str) -> Result<Verb, BadExcept> {
        let verb = VERBS.into_iter().find(|verb| verb.as_str() == text);
        verb.ok_or_else(|| BadExcept::Verb(text.to_owned()))
    }

    /// Whether it lets everything pass.
    pub(crate) fn is_everything(&self) -> bool {
        self.named.is_everything() && self.verbs.is_none()
    }

    /// Whether it names a foreign write; `""` stands for no namespace.
    pub(super) fn has(&self, resource: &GroupResource, namespace: &str, verb: Verb) -> bool {
        self.named.has(resource, namespace)
            && self.verbs.as_ref().is_none_or(|verbs| verbs.contains(&verb))
    }
}
