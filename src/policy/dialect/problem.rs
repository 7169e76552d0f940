//! Problems of objects that users write, by field.

use crate::policy::object::ObjectRef;

/// An object with all its problems.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {}", joined(problems, "; "))]
pub struct Invalid {
    /// The object.
    pub object: ObjectRef,
    /// The problems, in the order of the fields.
    pub problems: Vec<Problem>,
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
        Self { object, problems: vec![problem] }
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
        Err(Invalid { object, problems: self.0 })
    }
}
