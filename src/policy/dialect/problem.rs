//! Problems of objects that users write, by field.

use std::fmt;

use crate::policy::object::ObjectRef;

/// An object with all its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The object.
    pub object: ObjectRef,
    /// The problems, in the order of the fields.
    pub problems: Vec<Problem>,
}

/// One field of an object that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
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

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.what)
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object.fmt(f)?;
        for (at, problem) in self.problems.iter().enumerate() {
            write!(f, "{} {problem}", if at == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}

/// Collects problems, so that all are reported at once.
#[derive(Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    /// Adds a problem; returns `None` in place of the field's value.
    pub(super) fn add<T>(&mut self, field: impl Into<String>, what: impl ToString) -> Option<T> {
        self.0.push(Problem { field: field.into(), what: what.to_string() });
        None
    }

    /// The number of problems so far.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The object, if it has no problems.
    pub(super) fn none_of(self, object: ObjectRef) -> Result<ObjectRef, Invalid> {
        if self.0.is_empty() {
            return Ok(object);
        }
        Err(Invalid { object, problems: self.0 })
    }
}
