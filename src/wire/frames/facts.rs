//! What is looked for in a body, where it stands, and what was found: the same for all encodings.

use super::watch::Event;
use crate::wire::rv::ResourceVersion;

/// A place in a body. From each, names lead to others, and all other names to [`Node::Skip`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    /// Nothing in here matters.
    Skip,
    /// A watch event.
    Event,
    /// Protobuf: the `RawExtension` of an event.
    Extension,
    /// Protobuf: magic and `runtime.Unknown` around the object of an event.
    EventEnvelope,
    /// Protobuf: magic and `runtime.Unknown` around a list.
    ListEnvelope,
    /// The object of an event.
    Object,
    /// `ObjectMeta`, or the `ListMeta` of a Table.
    Meta,
    Annotations,
    /// Protobuf: one entry of a map.
    Annotation,
    /// The rows of a Table.
    Rows,
    Row,
    /// The object that a row stands for.
    RowObject,
    RowMeta,
    /// A list.
    List,
    ListMeta,

    /// Text: the type of an event.
    Type,
    /// Text.
    ResourceVersion,
    /// Text: the value of `k8s.io/initial-events-end`.
    InitialEventsEnd,
    /// Protobuf, text: the name of an annotation.
    AnnotationKey,
    /// Protobuf, text: its value.
    AnnotationValue,
    /// Text.
    Continue,
}

/// What a place holds if it is what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Map,
    Array,
    Text,
    Skip,
}

const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

impl Node {
    /// Longest name that leads anywhere, and one byte more.
    pub(super) const NAME_LIMIT: usize = INITIAL_EVENTS_END.len() + 1;

    /// Where a name leads in JSON and CBOR.
    pub(super) fn named(self, name: &[u8]) -> Self {
        match (self, name) {
            (Self::Event, b"type") => Self::Type,
            (Self::Event, b"object") => Self::Object,
            (Self::Object, b"metadata") => Self::Meta,
            (Self::Object, b"rows") => Self::Rows,
            (Self::Meta, b"resourceVersion") => Self::ResourceVersion,
            (Self::Meta | Self::RowMeta, b"annotations") => Self::Annotations,
            (Self::Annotations, INITIAL_EVENTS_END) => Self::InitialEventsEnd,
            (Self::Row, b"object") => Self::RowObject,
            (Self::RowObject, b"metadata") => Self::RowMeta,
            (Self::List, b"metadata") => Self::ListMeta,
            (Self::ListMeta, b"resourceVersion") => Self::ResourceVersion,
            (Self::ListMeta, b"continue") => Self::Continue,
            _ => Self::Skip,
        }
    }

    /// Where a field number leads in protobuf (`generated.proto` of `apimachinery`). Every kind has
    /// its metadata in field 1.
    pub(super) const fn numbered(self, number: u64) -> Self {
        match (self, number) {
            (Self::Event, 1) => Self::Type,
            (Self::Event, 2) => Self::Extension,
            (Self::Extension, 1) => Self::EventEnvelope,
            (Self::EventEnvelope, 2) => Self::Object,
            (Self::Object, 1) => Self::Meta,
            (Self::Meta, 6) | (Self::ListMeta, 2) => Self::ResourceVersion,
            (Self::Meta, 12) => Self::Annotation,
            (Self::Annotation, 1) => Self::AnnotationKey,
            (Self::Annotation, 2) => Self::AnnotationValue,
            (Self::ListEnvelope, 2) => Self::List,
            (Self::List, 1) => Self::ListMeta,
            (Self::ListMeta, 3) => Self::Continue,
            _ => Self::Skip,
        }
    }

    /// Where the items of an array are.
    pub(super) const fn item(self) -> Self {
        match self {
            Self::Rows => Self::Row,
            _ => Self::Skip,
        }
    }

    pub(super) const fn shape(self) -> Shape {
        match self {
            Self::Skip => Shape::Skip,
            Self::Rows => Shape::Array,
            Self::Type
            | Self::ResourceVersion
            | Self::InitialEventsEnd
            | Self::AnnotationKey
            | Self::AnnotationValue
            | Self::Continue => Shape::Text,
            _ => Shape::Map,
        }
    }

    /// Bytes of its text that matter: one more than the longest that means something.
    const fn text_limit(self) -> usize {
        match self {
            Self::Type => 16,
            Self::ResourceVersion => ResourceVersion::MAX_DIGITS + 1,
            Self::InitialEventsEnd | Self::AnnotationValue => 8,
            Self::AnnotationKey => Self::NAME_LIMIT,
            Self::Continue => ListMeta::MAX_CONTINUE + 1,
            _ => 0,
        }
    }
}

/// The type of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "upstream's types, by upstream's names")]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
    /// Anything else, also none.
    #[default]
    Unknown,
}

/// The metadata of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListMeta {
    /// The position that a watch can go on from.
    pub resource_version: ResourceVersion,
    /// The token of the next page.
    pub continue_token: Continue,
}

impl ListMeta {
    /// Longest token that is kept, in bytes; upstream's are about 100.
    pub const MAX_CONTINUE: usize = 4096;
}

/// `metadata.continue` of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Continue {
    /// This is the last page.
    #[default]
    None,
    /// There are more.
    Token(String),
    /// There are more, but the token is longer than [`ListMeta::MAX_CONTINUE`] or no UTF-8.
    Unreadable,
}

/// What was found so far in one event or list.
#[derive(Debug, Default)]
pub(super) struct Facts {
    kind: EventKind,
    resource_version: ResourceVersion,
    initial_events_end: bool,
    continue_token: Continue,
    /// The text that is being read; its limit is the longest that means something.
    text: Vec<u8>,
    limit: usize,
    /// Protobuf: the current annotation is the one, its value is "true".
    annotation: (bool, bool),
}

impl Facts {
    /// A value other than null begins at this place. What an earlier one of the same name said is
    /// forgotten where Go's decoder replaces (`RawExtension`), and kept where it merges (all
    /// others, which are structs and maps).
    pub(super) fn begin(&mut self, node: Node) {
        match node {
            Node::Object => {
                self.resource_version = ResourceVersion::Unset;
                self.initial_events_end = false;
            }
            Node::Annotation => self.annotation = (false, false),
            _ => {}
        }
    }

    /// The map or array at this place has ended.
    pub(super) fn end(&mut self, node: Node) {
        if let (Node::Annotation, (true, value)) = (node, self.annotation) {
            self.initial_events_end = value;
        }
    }

    /// A name begins.
    pub(super) fn begin_name(&mut self) {
        self.text.clear();
        self.limit = Node::NAME_LIMIT;
    }

    /// The text of this place begins.
    pub(super) fn begin_text(&mut self, node: Node) {
        self.text.clear();
        self.limit = node.text_limit();
    }

    /// A piece of the name or text.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let room = self.limit.saturating_sub(self.text.len());
        self.text.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    /// Takes back the last character, which was U+FFFD.
    pub(super) fn unpush_replacement(&mut self) {
        if self.text.ends_with("\u{fffd}".as_bytes()) {
            self.text.truncate(self.text.len().saturating_sub(3));
        }
    }

    /// The name that was read; longer ones are cut.
    pub(super) fn name(&self) -> &[u8] {
        &self.text
    }

    /// The text of this place is complete.
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
            Node::ResourceVersion => self.resource_version = ResourceVersion::parse(text),
            Node::InitialEventsEnd => self.initial_events_end = text == b"true",
            Node::AnnotationKey => self.annotation.0 = text == INITIAL_EVENTS_END,
            Node::AnnotationValue => self.annotation.1 = text == b"true",
            Node::Continue => self.continue_token = continue_token(text),
            _ => {}
        }
    }

    /// Something else than text, and not null, stands where text should be.
    pub(super) fn no_text(&mut self, node: Node) {
        match node {
            Node::Type => self.kind = EventKind::Unknown,
            Node::ResourceVersion => self.resource_version = ResourceVersion::Opaque,
            Node::InitialEventsEnd => self.initial_events_end = false,
            Node::Continue => self.continue_token = Continue::Unreadable,
            _ => {}
        }
    }

    pub(super) fn take_event(&mut self) -> Event {
        let event = Event {
            kind: self.kind,
            resource_version: self.resource_version,
            // Any object may have the annotation; on a bookmark only the server can have put it.
            initial_events_end: self.initial_events_end && self.kind == EventKind::Bookmark,
        };
        self.kind = EventKind::Unknown;
        self.resource_version = ResourceVersion::Unset;
        self.initial_events_end = false;
        event
    }

    pub(super) fn take_list(&mut self) -> ListMeta {
        ListMeta {
            resource_version: std::mem::take(&mut self.resource_version),
            continue_token: std::mem::take(&mut self.continue_token),
        }
    }
}

fn continue_token(text: &[u8]) -> Continue {
    match std::str::from_utf8(text) {
        Ok("") => Continue::None,
        Ok(token) if token.len() <= ListMeta::MAX_CONTINUE => Continue::Token(token.to_owned()),
        _ => Continue::Unreadable,
    }
}
