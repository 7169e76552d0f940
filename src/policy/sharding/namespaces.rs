//! The labels of namespaces, from which boundaries by label are drawn.
//!
//! Hides how a selector becomes a set of names, once for a policy. Knows nothing of where the
//! labels come from.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use sha2::{Digest, Sha256};

use ctrlmesh_wire::selector::Selector;

/// The labels of all namespaces at one time, by the namespace's name.
pub type NamespaceLabels = BTreeMap<String, LabelSet>;

/// The labels of a namespace. Small, and cheap to clone: there may be ten thousand, each in several
/// snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSet(Arc<[(Box<str>, Box<str>)]>);

impl LabelSet {
    /// The value of a label. `None` if there is no such label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| &**value)
    }
}

impl FromIterator<(String, String)> for LabelSet {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(labels: I) -> Self {
        labels.into_iter().collect::<BTreeMap<_, _>>().into()
    }
}

impl From<&LabelSet> for BTreeMap<String, String> {
    fn from(labels: &LabelSet) -> Self {
        labels.0.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }
}

impl From<BTreeMap<String, String>> for LabelSet {
    fn from(labels: BTreeMap<String, String>) -> Self {
        Self(labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

/// Namespaces selected by label: their names at the time when the policy was made. A namespace that
/// was not known then is not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    selector: Selector,
    names: Arc<BTreeSet<Box<str>>>,
    digest: [u8; 32],
}

/// Resolves each selector once, however many rules use it.
#[derive(Default)]
pub(crate) struct Resolved(HashMap<Selector, Selected>);

impl Selected {
    fn new(selector: &Selector, known: &NamespaceLabels) -> Self {
        let is_selected = |labels: &LabelSet| selector.matches(|key| labels.get(key));
        let names: BTreeSet<Box<str>> = known
            .iter()
            .filter(|(_, labels)| is_selected(labels))
            .map(|(name, _)| name.as_str().into())
            .collect();
        Self::drawn(selector.clone(), names)
    }

    /// The namespaces that the selector has selected.
    pub(crate) fn drawn(selector: Selector, names: BTreeSet<Box<str>>) -> Self {
        let mut digest = Sha256::new();
        for name in &names {
            digest.update(name.as_bytes());
            // No name has this byte.
            digest.update([0]);
        }
        let digest = digest.finalize().into();
        Self { selector, names: Arc::new(names), digest }
    }

    /// The namespaces in both.
    pub(super) fn and(&self, other: &Self) -> Self {
        let names = self.names.intersection(&other.names).cloned().collect();
        Self::drawn(self.selector.and(&other.selector), names)
    }

    /// Namespaces of these names, as if selected by label.
    #[cfg(test)]
    pub(crate) fn of(names: &[&str]) -> Self {
        let label = || BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let known = names.iter().map(|name| ((*name).to_owned(), label().into())).collect();
        Self::new(&"k=v".parse().unwrap_or_default(), &known)
    }

    /// The selector as it was written.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// The names of the namespaces.
    pub fn names(&self) -> &BTreeSet<Box<str>> {
        &self.names
    }

    /// A digest of the names.
    pub(super) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl Resolved {
    pub(crate) fn get(&mut self, selector: &Selector, known: &NamespaceLabels) -> Selected {
        if let Some(selected) = self.0.get(selector) {
            return selected.clone();
        }
        let selected = Selected::new(selector, known);
        self.0.insert(selector.clone(), selected.clone());
        selected
    }
}
