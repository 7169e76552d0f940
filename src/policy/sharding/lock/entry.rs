//! One lock of a controller: the objects that it can be, and the shard's own that replaces each.

use std::fmt;

use ctrlmesh_wire::dns::{is_label, is_subdomain};

/// Most locks of a controller.
pub(super) const MAX_LOCKS: usize = 32;
/// Characters in Kubernetes' longest object name.
const MAX_NAME: usize = 253;
/// Characters in Kubernetes' longest name of a namespace.
const MAX_NAMESPACE: usize = 63;
/// The characters between the name of a lock and its shard.
const BEFORE_SHARD: &str = "---";

/// A lock as a config names it: an object's name, or the beginning of names, in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockName {
    /// The name, or what all names begin with.
    name: Box<str>,
    is_prefix: bool,
    namespace: Box<str>,
}

/// A lock of the controller, and the names of the shard's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) asked: LockName,
    /// The ending of the shard's names of its Leases: with the namespace, if that is another one.
    suffix: Box<str>,
    /// The ending of its names in the namespace of the lock itself.
    suffix_there: Box<str>,
}

/// Errors in the names of locks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadLock {
    #[error(
        "{0:?} is not an object name: give lower case letters, digits, '-' and '.', such as \"my-operator\""
    )]
    Name(String),
    #[error("{0:?} selects every object: give the beginning of the locks' names before the '*'")]
    Everything(String),
    #[error(
        "{0:?} is not the name of a namespace: give at most 63 lower case letters, digits and '-'"
    )]
    Namespace(String),
    #[error("{0:?} is {1} characters long: shorten it, an object name has at most 253")]
    TooLong(String, usize),
    #[error("{0} and {1} may give one object, {2:?}: leave one out, or rename one of the locks")]
    Same(LockName, LockName, String),
    #[error("{0} locks: name at most {MAX_LOCKS}")]
    TooMany(usize),
}

impl LockName {
    /// The lock `name` in `namespace`; with `*` at its end, all locks whose names begin so.
    pub fn new(name: &str, namespace: &str) -> Result<Self, BadLock> {
        if !is_label(namespace) || namespace.len() > MAX_NAMESPACE {
            return Err(BadLock::Namespace(namespace.to_owned()));
        }
        Self::beside_the_pods(name, namespace)
    }

    /// The same in the namespace of the shard's pods, which is what it is.
    pub fn beside_the_pods(name: &str, namespace: &str) -> Result<Self, BadLock> {
        let (stem, is_prefix) = match name.strip_suffix('*') {
            Some(stem) => (stem, true),
            None => (name, false),
        };
        // What follows the beginning may be anything, so a letter stands for it.
        let sample = if is_prefix { format!("{stem}a") } else { stem.to_owned() };
        match () {
            () if is_prefix && stem.is_empty() => Err(BadLock::Everything(name.to_owned())),
            () if !is_subdomain(&sample) => Err(BadLock::Name(name.to_owned())),
            () => Ok(Self { name: stem.into(), is_prefix, namespace: namespace.into() }),
        }
    }

    /// The name, without the `*` of a beginning.
    pub fn stem(&self) -> &str {
        &self.name
    }

    /// Whether it is the beginning of names.
    pub const fn is_prefix(&self) -> bool {
        self.is_prefix
    }

    /// The namespace of the lock.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Whether the controller may call the lock so. A name of another shard's lock is none.
    pub fn matches(&self, name: &str) -> bool {
        match self.is_prefix {
            true => name.starts_with(&*self.name) && !name.contains(BEFORE_SHARD),
            false => name == &*self.name,
        }
    }
}

/// The lock as configs write it.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_prefix { "*" } else { "" };
        write!(f, "{}/{}{star}", self.namespace, self.name)
    }
}

impl Lock {
    pub(super) fn new(asked: LockName, shard: &str, own: &str) -> Result<Self, BadLock> {
        let there = format!("{BEFORE_SHARD}{shard}");
        let is_own = *asked.namespace == *own;
        let suffix = if is_own { there.clone() } else { format!(".{}{there}", asked.namespace) };
        let longest = format!("{}{suffix}", asked.name);
        if longest.len() > MAX_NAME {
            let length = longest.len();
            return Err(BadLock::TooLong(longest, length));
        }
        Ok(Self { asked, suffix: suffix.into(), suffix_there: there.into() })
    }

    /// The shard's name of the lock that the controller calls `name`. The name itself if it is the
    /// shard's already, as clients use the name of an answer. `None` if it is another object.
    pub(super) fn renamed(&self, name: &str, is_there: bool) -> Option<String> {
        let suffix = if is_there { &*self.suffix_there } else { &*self.suffix };
        match name.strip_suffix(suffix) {
            Some(stem) if self.asked.matches(stem) => Some(name.to_owned()),
            _ => self.asked.matches(name).then(|| format!("{name}{suffix}")),
        }
    }

    /// A name that this lock and another may both have.
    pub(super) fn meets(&self, other: &Self) -> Option<String> {
        match (self.asked.is_prefix, other.asked.is_prefix) {
            (false, false) => Some(self.first()).filter(|first| *first == other.first()),
            (false, true) => other.has(self.first()),
            (true, false) => self.has(other.first()),
            // Anything may stand between the beginning and the ending.
            (true, true) => {
                let both = |one: &str, other: &str, is_in: fn(&str, &str) -> bool| match () {
                    () if is_in(one, other) => Some(one.to_owned()),
                    () if is_in(other, one) => Some(other.to_owned()),
                    () => None,
                };
                let beginning = both(&self.asked.name, &other.asked.name, |a, b| a.starts_with(b))?;
                Some(beginning + &both(&self.suffix, &other.suffix, |a, b| a.ends_with(b))?)
            }
        }
    }

    /// The shard's name of the lock, or the shortest with its beginning.
    pub(super) fn first(&self) -> String {
        format!("{}{}", self.asked.name, self.suffix)
    }

    /// The shard's name of the lock, with `*` for what follows a beginning.
    pub(super) fn own_name(&self) -> String {
        let star = if self.asked.is_prefix { "*" } else { "" };
        format!("{}{star}{}", self.asked.name, self.suffix)
    }

    /// The name, if this lock may have it.
    fn has(&self, name: String) -> Option<String> {
        self.renamed(&name, false).filter(|renamed| *renamed == name)
    }
}
