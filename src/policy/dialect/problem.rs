//! Problems of objects that users write, by field.

use serde::Deserialize;

use crate::object::ObjectRef;
use ctrlmesh_api::Controller;

/// An object with all its problems.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {}", joined(problems, "; "))]
pub struct Invalid {
    /// The object.
    pub object: ObjectRef,
    /// The problems, in the order of the fields.
    pub problems: Vec<Problem>,
    /// The controller that it is about, as far as it can be read.
    pub(crate) server: Box<Server>,
}

/// The controller that a config is about: its shards are the configs of its namespace with the same
/// lock, or without one, that have a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Server {
    /// The name of the first lock, and `None` within if there is none. `None` if it cannot be read.
    pub(crate) lock: Option<Option<Box<str>>>,
    pub(crate) has_webhook: bool,
}

impl Server {
    /// Reads a spec that has problems elsewhere.
    pub(super) fn read(spec: &serde_json::Value) -> Self {
        let is_there = |value: &&serde_json::Value| !value.is_null();
        let lock = match spec.get("controller").filter(is_there).map(Controller::deserialize) {
            None => Some(None),
            Some(controller) => {
                controller.ok().and_then(|controller| Some(Some(controller.first_lock()?.into())))
            }
        };
        Self { lock, has_webhook: spec.get("webhook").filter(is_there).is_some() }
    }

    /// Whether both may be shards of one controller that has a webhook.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        let is_same = match (&self.lock, &other.lock) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        is_same && self.has_webhook && other.has_webhook
    }
}

/// One field of an object that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct Problem {
    /// The path of the field.
    pub field: String,
    /// The value, and what would be right.
    pub what: String,
}

impl Invalid {
    /// An object with one problem.
    pub(super) fn one(object: ObjectRef, field: &str, what: impl ToString) -> Self {
        let problem = Problem { field: field.to_owned(), what: what.to_string() };
        Self { object, problems: vec![problem], server: Box::default() }
    }
}

/// The texts of these values in one line.
pub(super) fn joined(values: &[impl ToString], between: &str) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

/// Collects problems, so that all are reported at once.
#[derive(Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn add(&mut self, field: impl Into<String>, what: impl ToString) {
        self.0.push(Problem { field: field.into(), what: what.to_string() });
    }

    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        self.0.extend(problems);
    }

    /// The field's value; `None` adds the error as a problem.
    pub(super) fn ok<T>(
        &mut self,
        field: impl Into<String>,
        parsed: Result<T, impl ToString>,
    ) -> Option<T> {
        parsed.map_err(|what| self.add(field, what)).ok()
    }

    /// The object, if it has no problems.
    pub(super) fn none_of(self, object: ObjectRef) -> Result<ObjectRef, Invalid> {
        if self.0.is_empty() {
            return Ok(object);
        }
        Err(Invalid { object, problems: self.0, server: Box::default() })
    }
}
