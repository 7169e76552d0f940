//! The facts in a body: the same for all encodings.

use super::{
    collect::{Asked, Collected},
    fault::Fault,
    place::{INITIAL_EVENTS_END, Node},
};
use crate::{
    object::{Object, Wanted},
    rv::ResourceVersion,
};

/// The type of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "upstream's types, by upstream's names")]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
    #[default]
    Unknown,
}

/// The facts of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The event's `type`.
    pub kind: EventKind,
    /// `object.metadata.resourceVersion`, for a Table that of the Table. Of a repeated key the last
    /// value counts, as Go decodes.
    pub resource_version: ResourceVersion,
    /// Whether this is the bookmark that ends the initial events of a WatchList
    /// (`k8s.io/initial-events-end: "true"`).
    pub initial_events_end: bool,
}

/// The metadata of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListMeta {
    /// The position from which a watch can start.
    pub resource_version: ResourceVersion,
    /// The token of the next page.
    pub continue_token: Continue,
}

impl ListMeta {
    /// Longest token that is kept, in bytes; the API server's are about 100.
    pub const MAX_CONTINUE: usize = Node::CONTINUE_TEXT;
}

/// `metadata.continue` of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Continue {
    /// The page is the last.
    #[default]
    None,
    /// More pages follow.
    Token(String),
    /// A token that cannot be read: more pages follow, but it is longer than
    /// [`ListMeta::MAX_CONTINUE`] or no UTF-8.
    Unreadable,
}

/// The facts so far in one event or list.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    wanted: Wanted,
    /// Whether what readers decode differently is refused, also where no API server sends it.
    is_strict: bool,
    odd: Option<Node>,
    kind: EventKind,
    resource_version: ResourceVersion,
    initial_events_end: bool,
    continue_token: Continue,
    /// Whether the items of the list are null.
    has_no_items: bool,
    /// The list's kind, and its group and version.
    list_kind: String,
    list_api_version: String,
    object: Collected,
    /// The text being read; only `limit` bytes of it are kept.
    text: Vec<u8>,
    limit: usize,
    /// The current protobuf annotation: whether it is [`INITIAL_EVENTS_END`], and whether its value
    /// is "true".
    annotation: (bool, bool),
}

impl Facts {
    pub(crate) fn new(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// The facts in what a client sends.
    pub(crate) fn of_write(wanted: Wanted) -> Self {
        Self { is_strict: true, ..Self::new(wanted) }
    }

    /// The place to which the name that was read leads; longer names are cut.
    pub(super) fn named(&self, from: Node) -> Node {
        from.named(&self.text, self.wanted)
    }

    /// The place to which a field number leads.
    pub(super) const fn numbered(&self, from: Node, number: u64) -> Node {
        from.numbered(number, self.wanted)
    }

    /// Begins a value other than null at this place. Facts of an earlier value of the same name are
    /// forgotten where Go's decoder replaces (`RawExtension`), and kept where it merges (all
    /// others, which are structs and maps).
    pub(super) fn begin(&mut self, node: Node) {
        match node {
            Node::Object => {
                self.forget_position();
                self.object.clear();
            }
            Node::Enveloped => {
                self.forget_position();
                if self.is_strict {
                    self.object.begin(node, &[]);
                }
            }
            Node::ObjectEnvelope | Node::Item | Node::ItemRow => self.object.clear(),
            Node::Meta
            | Node::ItemMeta
            | Node::ReviewMeta
            | Node::RowItem
            | Node::ItemOwner
            | Node::Labels
            | Node::Label
            | Node::LabelEntry
            | Node::Owners
            | Node::Owner => self.object.begin(node, &self.text),
            Node::Annotation => self.annotation = (false, false),
            _ => {}
        }
    }

    fn forget_position(&mut self) {
        self.resource_version = ResourceVersion::Unset;
        self.initial_events_end = false;
    }

    pub(crate) fn forget_object(&mut self) {
        self.object.clear();
    }

    /// Notes a null at this place.
    pub(super) fn null(&mut self, node: Node) {
        match node {
            // An empty label to some, none to others.
            Node::Label | Node::Owner => self.object.is_broken = true,
            _ if !self.is_strict => {}
            Node::Meta => self.object.is_broken = true,
            Node::Labels | Node::Owners => self.object.begin(node, &[]),
            Node::OwnerIsController => self.flag(node, false),
            _ if node.text_limit() == 0 => {}
            _ => {
                self.text.clear();
                self.end_text(node);
            }
        }
    }

    /// Whether this is a write, whose sender chooses the bytes.
    pub(super) const fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Refuses what some readers of a write at this place take for something else.
    pub(super) const fn odd(&mut self, node: Node) -> Result<(), Fault> {
        if !self.is_strict {
            return Ok(());
        }
        self.odd = Some(node);
        Err(Fault::Item)
    }

    /// The place of what was refused.
    pub(crate) const fn odd_place(&self) -> Option<Node> {
        self.odd
    }

    pub(super) fn end(&mut self, node: Node) {
        match (node, self.annotation) {
            (Node::Annotation, (true, value)) => self.initial_events_end = value,
            (Node::Meta | Node::ItemMeta | Node::ReviewMeta, _) if self.wanted.labels => {
                self.object.end_meta()
            }
            _ => {}
        }
    }

    pub(super) fn begin_name(&mut self) {
        self.text.clear();
        self.limit = Node::NAME_LIMIT;
    }

    pub(super) fn begin_text(&mut self, node: Node) {
        self.text.clear();
        self.limit = node.text_limit();
    }

    /// Appends a piece of the name or text.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let room = self.limit.saturating_sub(self.text.len());
        self.text.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    /// Removes the last character if it is U+FFFD.
    pub(super) fn unpush_replacement(&mut self) {
        if self.text.ends_with("\u{fffd}".as_bytes()) {
            self.text.truncate(self.text.len().saturating_sub(3));
        }
    }

    pub(super) fn end_text(&mut self, node: Node) {
        let text = self.text.as_slice();
        match node {
            Node::Type => {
                self.kind = match text {
                    b"ADDED" => EventKind::Added,
                    b"MODIFIED" => EventKind::Modified,
                    b"DELETED" => EventKind::Deleted,
                    b"BOOKMARK" => EventKind::Bookmark,
                    b"ERROR" => EventKind::Error,
                    _ => EventKind::Unknown,
                }
            }
            Node::ResourceVersion => {
                self.resource_version = ResourceVersion::parse(text);
                if self.wanted.version {
                    self.object.set(node, text);
                }
            }
            Node::InitialEventsEnd => self.initial_events_end = text == b"true",
            Node::AnnotationKey => self.annotation.0 = text == INITIAL_EVENTS_END,
            Node::AnnotationValue => self.annotation.1 = text == b"true",
            Node::Continue => self.continue_token = continue_token(text),
            Node::ListKind => self.list_kind = whole_text(text),
            Node::ListApiVersion => self.list_api_version = whole_text(text),
            _ => self.object.set(node, text),
        }
    }

    /// Reads the truth value at this place.
    pub(super) fn flag(&mut self, node: Node, value: bool) {
        if node == Node::OwnerIsController {
            self.object.set_controller(value);
        }
    }

    /// Notes a value of another type, not null.
    pub(super) fn misfit(&mut self, node: Node) {
        match node {
            Node::Type => self.kind = EventKind::Unknown,
            Node::ResourceVersion => {
                self.resource_version = ResourceVersion::Opaque;
                self.object.is_broken |= self.wanted.version;
            }
            Node::InitialEventsEnd => self.initial_events_end = false,
            Node::Continue => self.continue_token = Continue::Unreadable,
            Node::Meta
            | Node::ItemMeta
            | Node::ReviewMeta
            | Node::ReviewKind
            | Node::ReviewResource
            | Node::ReviewOperation
            | Node::ReviewSubresource
            | Node::ReviewKindGroup
            | Node::ReviewKindName
            | Node::ReviewResourceGroup
            | Node::ReviewResourceName
            | Node::ItemVersion
            | Node::Namespace
            | Node::Name
            | Node::Uid
            | Node::Kind
            | Node::ApiVersion
            | Node::Labels
            | Node::Label
            | Node::Owners
            | Node::Owner
            | Node::OwnerApiVersion
            | Node::OwnerKind
            | Node::OwnerName
            | Node::OwnerUid
            | Node::OwnerIsController => self.object.is_broken = true,
            _ => {}
        }
    }

    /// Notes that the items of the list are null.
    pub(super) fn no_items(&mut self) {
        self.has_no_items = true;
    }

    pub(crate) fn has_no_items(&self) -> bool {
        self.has_no_items
    }

    /// The object that was read last; `None` if its metadata is missing, no text, or ambiguous.
    pub(crate) fn object(&self) -> Option<Object<'_>> {
        self.object.read(self.wanted)
    }

    /// The texts of a review's request so far. `None` if one of them stands twice, is no text, or is
    /// too long.
    pub(crate) fn asked(&self) -> Option<Asked<'_>> {
        self.object.asked()
    }

    /// Whether that object has an owner. An empty list of owners is none, as for the garbage
    /// collector.
    pub(crate) fn has_owner(&self) -> bool {
        self.object.has_owner
    }

    /// The list's `apiVersion` and `kind`; empty if absent.
    pub(crate) fn list_type(&self) -> (&str, &str) {
        (&self.list_api_version, &self.list_kind)
    }

    pub(crate) fn take_event(&mut self) -> Event {
        let event = Event {
            kind: self.kind,
            resource_version: self.resource_version,
            // Any object may have the annotation; on a bookmark only the server can have set it.
            initial_events_end: self.initial_events_end && self.kind == EventKind::Bookmark,
        };
        self.kind = EventKind::Unknown;
        self.forget_position();
        event
    }

    pub(crate) fn take_list(&mut self) -> ListMeta {
        ListMeta {
            resource_version: std::mem::take(&mut self.resource_version),
            continue_token: std::mem::take(&mut self.continue_token),
        }
    }
}

/// The text; empty if it is cut off or no UTF-8.
fn whole_text(text: &[u8]) -> String {
    let is_whole = text.len() <= Node::OBJECT_TEXT;
    std::str::from_utf8(text).ok().filter(|_| is_whole).unwrap_or_default().to_owned()
}

fn continue_token(text: &[u8]) -> Continue {
    match std::str::from_utf8(text) {
        Ok("") => Continue::None,
        Ok(token) if token.len() <= ListMeta::MAX_CONTINUE => Continue::Token(token.to_owned()),
        _ => Continue::Unreadable,
    }
}
