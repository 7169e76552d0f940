//! Problems of objects that users write, by field.

use std::fmt;

/// An object with all its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    name: Box<str>,
    problems: Vec<Problem>,
}

/// One field of an object that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    field: String,
    what: String,
}

impl Invalid {
    /// An object with one problem.
    pub(super) fn one(name: &str, field: &str, what: impl ToString) -> Self {
        let problem = Problem { field: field.to_owned(), what: what.to_string() };
        Self { name: name.into(), problems: vec![problem] }
    }

    /// The name of the object.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The problems, in the order of the fields.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.what)
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            if at > 0 {
                f.write_str("; ")?;
            }
            problem.fmt(f)?;
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

    /// # Errors
    /// [`Invalid`] if there are problems of the object `name`.
    pub(super) fn none_of(self, name: &str) -> Result<(), Invalid> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(Invalid { name: name.into(), problems: self.0 })
    }
}
