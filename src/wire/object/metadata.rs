//! An object's facts.

use std::{cmp::Ordering, collections::BTreeMap};

/// The facts that an object states of itself. Texts that it does not have are empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Object<'a> {
    /// `metadata.namespace`; empty if cluster-scoped.
    pub namespace: &'a str,
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`; empty if the server sets none.
    pub uid: &'a str,
    /// `kind`; empty for the items of typed lists.
    pub kind: &'a str,
    /// `apiVersion`; empty for the items of typed lists.
    pub api_version: &'a str,
    /// `metadata.resourceVersion`, as it is written; empty if it is not [`Wanted`].
    pub resource_version: &'a str,
    /// `metadata.labels`. `None` if they are not known.
    pub labels: Option<Labels<'a>>,
    /// `metadata.ownerReferences`. `None` if they are not known.
    pub owners: Option<Owners<'a>>,
}

/// The facts that are read only on request; the others identify an object and never change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The resource version.
    pub version: bool,
    /// The labels.
    pub labels: bool,
    /// The owners.
    pub owners: bool,
}

/// The labels of an object, in the order of their keys.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a>(From<'a>);

#[derive(Debug, Clone, Copy)]
enum From<'a> {
    Read { text: &'a str, at: &'a [LabelAt] },
    Map(&'a BTreeMap<String, String>),
}

/// The owners of an object, in its order.
#[derive(Debug, Clone, Copy)]
pub struct Owners<'a> {
    text: &'a str,
    at: &'a [OwnerAt],
}

/// An owner of an object. Texts that it does not have are empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'a> {
    /// `apiVersion`.
    pub api_version: &'a str,
    /// `kind`.
    pub kind: &'a str,
    /// `name`.
    pub name: &'a str,
    /// `uid`.
    pub uid: &'a str,
    /// `controller`.
    pub is_controller: bool,
}

/// The place of a text; `None` if it is absent.
pub(super) type TextRange = Option<(usize, usize)>;

/// The places of a label's texts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LabelAt {
    pub(super) key: TextRange,
    pub(super) value: TextRange,
}

/// The places of an owner's texts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OwnerAt {
    pub(super) api_version: TextRange,
    pub(super) kind: TextRange,
    pub(super) name: TextRange,
    pub(super) uid: TextRange,
    pub(super) is_controller: Option<bool>,
}

impl<'a> Labels<'a> {
    /// The labels of an object that is decoded already.
    pub fn of(map: &'a BTreeMap<String, String>) -> Self {
        Self(From::Map(map))
    }

    pub(super) fn read(text: &'a str, at: &'a [LabelAt]) -> Self {
        Self(From::Read { text, at })
    }

    /// The value of a label; `None` if there is no such label.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        match self.0 {
            From::Map(map) => map.get(key).map(String::as_str),
            From::Read { text: all, at } => {
                let found = at.binary_search_by(|at| text_at(all, at.key).cmp(key)).ok()?;
                at.get(found).map(|at| text_at(all, at.value))
            }
        }
    }

    /// Labels as pairs of key and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let (all, at, map) = match self.0 {
            From::Read { text, at } => (text, at, None),
            From::Map(map) => ("", [].as_slice(), Some(map)),
        };
        let read = at.iter().map(move |at| (text_at(all, at.key), text_at(all, at.value)));
        read.chain(map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())))
    }
}

impl LabelAt {
    /// The order of the keys in `all`.
    pub(super) fn order(all: &str, one: &Self, other: &Self) -> Ordering {
        text_at(all, one.key).cmp(text_at(all, other.key))
    }
}

impl<'a> Owners<'a> {
    pub(super) fn read(text: &'a str, at: &'a [OwnerAt]) -> Self {
        Self { text, at }
    }

    /// The owners, each once.
    pub fn iter(&self) -> impl Iterator<Item = Owner<'a>> + use<'a> {
        let Self { text: all, at } = *self;
        at.iter().map(move |at| Owner {
            api_version: text_at(all, at.api_version),
            kind: text_at(all, at.kind),
            name: text_at(all, at.name),
            uid: text_at(all, at.uid),
            is_controller: at.is_controller.unwrap_or(false),
        })
    }
}

/// The text at a place; empty if it is absent.
pub(super) fn text_at(all: &str, span: TextRange) -> &str {
    span.and_then(|(from, to)| all.get(from..to)).unwrap_or_default()
}
