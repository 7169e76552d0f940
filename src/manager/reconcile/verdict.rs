//! The verdict about a condition, and the objects that its message names.

/// The condition of a config: its pods are ready, or the configs that are made of it are written.
pub(super) const READY: &str = "Ready";

/// The verdict about one condition of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is `True`.
    Yes(&'static str, String),
    /// It is `False`.
    No(&'static str, String),
    /// It is `Unknown`: more cannot be known.
    Undecided(&'static str, String),
    /// It says nothing about this config.
    None,
    /// It is not known yet: it stays as it is.
    Unknown,
}

/// Some objects, named by the first of them so that a message changes no more often than it must.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Missed<'a> {
    /// The first of them by name.
    first: Option<&'a str>,
    are_several: bool,
}

impl<'a> Missed<'a> {
    pub(super) fn add(&mut self, name: &'a str) {
        self.are_several = self.first.is_some_and(|first| self.are_several || first != name);
        self.first = Some(self.first.map_or(name, |first| first.min(name)));
    }

    /// Their name. `None` if there are none.
    pub(super) fn named(&self, noun: &str) -> Option<String> {
        let others = if self.are_several { " and others" } else { "" };
        self.first.map(|first| format!("{noun} {first}{others}"))
    }
}
