//! The facts of one object, as they are found.

use super::place::Node;
use crate::object::{
    Labels, Object, Owners, Wanted,
    metadata::{LabelAt, OwnerAt, TextRange, text_at},
};

/// Most bytes that are held of an object's texts, labels and owners: about 150 of the longest
/// labels. The API server sets no limit but that of the whole object; what says more is not known.
const MAX_HELD: usize = 64 << 10;

/// The facts of an object. The buffers are used again for the next one.
#[derive(Debug, Default)]
pub(super) struct Collected {
    at: ObjectAt,
    /// All texts, one behind the other.
    text: String,
    labels: Vec<LabelAt>,
    owners: Vec<OwnerAt>,
    has_labels: bool,
    has_owners: bool,
    has_meta: bool,
    /// Whether the identifying part began: the object of a row, the message of an envelope.
    has_body: bool,
    /// Whether another object owns it.
    pub(super) has_owner: bool,
    /// Whether its metadata is ambiguous, or unreadable.
    pub(super) is_broken: bool,
}

/// The places of the object's own texts.
#[derive(Debug, Default)]
struct ObjectAt {
    namespace: TextRange,
    name: TextRange,
    uid: TextRange,
    resource_version: TextRange,
    kind: TextRange,
    api_version: TextRange,
    asked: AskedAt,
}

/// The places of the texts that only a review's request has.
#[derive(Debug, Default)]
struct AskedAt {
    operation: TextRange,
    subresource: TextRange,
    kind_group: TextRange,
    kind_name: TextRange,
    group: TextRange,
    resource: TextRange,
}

/// The texts of a review, and of its request. An absent text is empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) kind: &'a str,
    pub(crate) api_version: &'a str,
    pub(crate) uid: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) operation: &'a str,
    pub(crate) subresource: &'a str,
    /// The kind of the object, and its group.
    pub(crate) of: (&'a str, &'a str),
    /// The group and plural name of the resource.
    pub(crate) resource: (&'a str, &'a str),
}

impl Collected {
    pub(super) fn clear(&mut self) {
        self.at = ObjectAt::default();
        self.text.clear();
        self.labels.clear();
        self.owners.clear();
        (self.has_labels, self.has_owners) = (false, false);
        (self.has_meta, self.has_body) = (false, false);
        (self.has_owner, self.is_broken) = (false, false);
    }

    /// Begins a value other than null; `name` is the one that led to it. A repeated value is
    /// ambiguous: decoders merge it, or take either.
    pub(super) fn begin(&mut self, node: Node, name: &[u8]) {
        let has_begun = match node {
            Node::Meta | Node::ItemMeta | Node::ReviewMeta => &mut self.has_meta,
            // Nothing else identifies the object of a row.
            Node::RowItem | Node::Enveloped => &mut self.has_body,
            Node::Labels => &mut self.has_labels,
            Node::Owners => &mut self.has_owners,
            Node::ItemOwner => {
                self.has_owner = true;
                return;
            }
            _ => return self.begin_entry(node, name),
        };
        self.is_broken |= std::mem::replace(has_begun, true);
    }

    /// Begins a label or an owner.
    fn begin_entry(&mut self, node: Node, name: &[u8]) {
        let labels = self.labels.len().saturating_mul(size_of::<LabelAt>());
        let owners = self.owners.len().saturating_mul(size_of::<OwnerAt>());
        let held = self.text.len().saturating_add(labels).saturating_add(owners);
        self.is_broken |= held > MAX_HELD;
        match node {
            _ if self.is_broken => {}
            Node::Label => {
                self.labels.push(LabelAt::default());
                self.set(Node::LabelKey, name);
            }
            Node::LabelEntry => self.labels.push(LabelAt::default()),
            _ => {
                self.has_owner = true;
                self.owners.push(OwnerAt::default());
            }
        }
    }

    pub(super) fn end_meta(&mut self) {
        let text = self.text.as_str();
        self.labels.sort_unstable_by(|one, other| LabelAt::order(text, one, other));
        let mut keys = self.labels.windows(2);
        self.is_broken |= keys.any(|two| match two {
            [one, other] => LabelAt::order(text, one, other).is_eq(),
            _ => false,
        });
    }

    /// Ends a text of the object, or of its last label or owner.
    pub(super) fn set(&mut self, node: Node, text: &[u8]) {
        let (label, owner) = (self.labels.last_mut(), self.owners.last_mut());
        let place = match node {
            Node::Namespace => Some(&mut self.at.namespace),
            Node::Name => Some(&mut self.at.name),
            Node::Uid => Some(&mut self.at.uid),
            Node::ResourceVersion | Node::ItemVersion => Some(&mut self.at.resource_version),
            Node::Kind => Some(&mut self.at.kind),
            Node::ApiVersion => Some(&mut self.at.api_version),
            Node::LabelKey => label.map(|at| &mut at.key),
            Node::Label | Node::LabelValue => label.map(|at| &mut at.value),
            Node::OwnerApiVersion => owner.map(|at| &mut at.api_version),
            Node::OwnerKind => owner.map(|at| &mut at.kind),
            Node::ReviewOperation => Some(&mut self.at.asked.operation),
            Node::ReviewSubresource => Some(&mut self.at.asked.subresource),
            Node::ReviewKindGroup => Some(&mut self.at.asked.kind_group),
            Node::ReviewKindName => Some(&mut self.at.asked.kind_name),
            Node::ReviewResourceGroup => Some(&mut self.at.asked.group),
            Node::ReviewResourceName => Some(&mut self.at.asked.resource),
            Node::OwnerName => owner.map(|at| &mut at.name),
            _ => owner.map(|at| &mut at.uid),
        };
        match (place, std::str::from_utf8(text)) {
            (Some(place @ None), Ok(text)) if text.len() < node.text_limit() => {
                let from = self.text.len();
                self.text.push_str(text);
                *place = Some((from, self.text.len()));
            }
            _ => self.is_broken = true,
        }
    }

    /// Sets whether the last owner is the controller.
    pub(super) fn set_controller(&mut self, value: bool) {
        let last = self.owners.last_mut();
        self.is_broken |= last.is_none_or(|at| at.is_controller.replace(value).is_some());
    }

    /// The texts of a review so far; `None` if they are ambiguous.
    pub(super) fn asked(&self) -> Option<Asked<'_>> {
        if self.is_broken {
            return None;
        }
        let text = |at| text_at(&self.text, at);
        let ObjectAt { asked, .. } = &self.at;
        Some(Asked {
            kind: text(self.at.kind),
            api_version: text(self.at.api_version),
            uid: text(self.at.uid),
            namespace: text(self.at.namespace),
            name: text(self.at.name),
            operation: text(asked.operation),
            subresource: text(asked.subresource),
            of: (text(asked.kind_name), text(asked.kind_group)),
            resource: (text(asked.group), text(asked.resource)),
        })
    }

    /// The object; `None` if it is ambiguous or has no metadata.
    pub(super) fn read(&self, wanted: Wanted) -> Option<Object<'_>> {
        if self.is_broken || !self.has_meta {
            return None;
        }
        let text = |at| text_at(&self.text, at);
        Some(Object {
            namespace: text(self.at.namespace),
            name: text(self.at.name),
            uid: text(self.at.uid),
            kind: text(self.at.kind),
            api_version: text(self.at.api_version),
            resource_version: text(self.at.resource_version),
            labels: wanted.labels.then(|| Labels::read(&self.text, &self.labels)),
            owners: wanted.owners.then(|| Owners::read(&self.text, &self.owners)),
        })
    }
}
