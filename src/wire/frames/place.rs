//! The places in a body, and the names that lead there: the same for all encodings.

use crate::wire::rv::ResourceVersion;

/// A place in a body. From each, known names lead to others, and all other names to [`Node::Skip`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    /// A value that does not matter.
    Skip,
    /// A watch event.
    Event,
    /// Protobuf: the `RawExtension` of an event.
    Extension,
    /// Protobuf: magic and `runtime.Unknown` around the object of an event.
    EventEnvelope,
    /// Protobuf: magic and `runtime.Unknown` around a list.
    ListEnvelope,
    /// Protobuf: magic and `runtime.Unknown` around a list whose items are parsed.
    ItemsEnvelope,
    /// Protobuf: the kind in an envelope.
    TypeMeta,
    /// The object of an event.
    Object,
    /// The object of an event in an envelope, which contains its kind.
    Enveloped,
    /// `ObjectMeta`, or the `ListMeta` of a Table.
    Meta,
    Annotations,
    /// Protobuf: one entry of a map.
    Annotation,
    /// The rows of a Table.
    Rows,
    Row,
    /// The object of a row.
    RowObject,
    RowMeta,
    /// A list of which only its own metadata is parsed.
    List,
    /// A list whose items are parsed.
    ItemList,
    ListMeta,
    /// The items of a list.
    Items,
    Item,
    /// The owner references of an item; only their presence matters.
    ItemOwners,
    /// Protobuf: the kind in the envelope of a list.
    ListTypeMeta,
    /// `ObjectMeta` of an item.
    ItemMeta,
    /// The rows of a Table that is a list.
    ItemRows,
    ItemRow,
    /// The object of a row, in a Table that is a list.
    RowItem,

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
    /// Text, of an object.
    Namespace,
    /// Text, of an object.
    Name,
    /// Text, of an object.
    Uid,
    /// Text, of an object.
    Kind,
    /// Text, of an object.
    ApiVersion,
    /// Text, of a list.
    ListKind,
    /// Text, of a list.
    ListApiVersion,
    /// A number: the items on further pages.
    Remaining,
}

/// The expected type of the value at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Map,
    Array,
    Text,
    Number,
    Skip,
}

/// The annotation of the bookmark that ends the initial events of a WatchList (KEP-3157).
pub(super) const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

impl Node {
    /// The longest known name, and one byte more.
    pub(super) const NAME_LIMIT: usize = INITIAL_EVENTS_END.len() + 1;

    /// The longest text of an object that is read: more than any name, namespace or uid may have.
    pub(super) const OBJECT_TEXT: usize = 512;

    /// Longest token of a next page that is kept, in bytes; the API server's are about 100.
    pub(super) const CONTINUE_TEXT: usize = 4096;

    /// The place to which a name leads in JSON and CBOR.
    pub(super) fn named(self, name: &[u8]) -> Self {
        match (self, name) {
            (Self::Event, b"type") => Self::Type,
            (Self::Event, b"object") => Self::Object,
            (Self::Object, b"metadata") => Self::Meta,
            (Self::Object, b"rows") => Self::Rows,
            (Self::Object, b"kind") => Self::Kind,
            (Self::Object, b"apiVersion") => Self::ApiVersion,
            (Self::Meta | Self::ListMeta, b"resourceVersion") => Self::ResourceVersion,
            (Self::Meta | Self::RowMeta, b"annotations") => Self::Annotations,
            (Self::Meta | Self::ItemMeta, b"namespace") => Self::Namespace,
            (Self::Meta | Self::ItemMeta, b"name") => Self::Name,
            (Self::Meta | Self::ItemMeta, b"uid") => Self::Uid,
            (Self::Annotations, INITIAL_EVENTS_END) => Self::InitialEventsEnd,
            (Self::Row, b"object") => Self::RowObject,
            (Self::RowObject, b"metadata") => Self::RowMeta,
            (Self::List | Self::ItemList, b"metadata") => Self::ListMeta,
            (Self::ItemList, b"items") => Self::Items,
            (Self::ItemList, b"rows") => Self::ItemRows,
            (Self::ItemList, b"kind") => Self::ListKind,
            (Self::ItemList, b"apiVersion") => Self::ListApiVersion,
            (Self::Item, b"kind") => Self::Kind,
            (Self::Item, b"apiVersion") => Self::ApiVersion,
            (Self::ItemMeta, b"ownerReferences") => Self::ItemOwners,
            (Self::ItemRow, b"object") => Self::RowItem,
            (Self::Item | Self::RowItem, b"metadata") => Self::ItemMeta,
            (Self::ListMeta, b"continue") => Self::Continue,
            (Self::ListMeta, b"remainingItemCount") => Self::Remaining,
            _ => Self::Skip,
        }
    }

    /// The place to which a field number leads in protobuf (`generated.proto` of `apimachinery`).
    /// Every kind has its metadata in field 1, every list its items in field 2.
    pub(super) const fn numbered(self, number: u64) -> Self {
        match (self, number) {
            (Self::Event, 1) => Self::Type,
            (Self::Event, 2) => Self::Extension,
            (Self::Extension, 1) => Self::EventEnvelope,
            (Self::EventEnvelope, 1) => Self::TypeMeta,
            (Self::EventEnvelope, 2) => Self::Enveloped,
            (Self::TypeMeta, 1) => Self::ApiVersion,
            (Self::TypeMeta, 2) => Self::Kind,
            (Self::Enveloped, 1) => Self::Meta,
            (Self::Meta, 6) | (Self::ListMeta, 2) => Self::ResourceVersion,
            (Self::Meta | Self::ItemMeta, 1) => Self::Name,
            (Self::Meta | Self::ItemMeta, 3) => Self::Namespace,
            (Self::Meta | Self::ItemMeta, 5) => Self::Uid,
            (Self::Meta, 12) => Self::Annotation,
            (Self::Annotation, 1) => Self::AnnotationKey,
            (Self::Annotation, 2) => Self::AnnotationValue,
            (Self::ListEnvelope, 2) => Self::List,
            (Self::ItemsEnvelope, 1) => Self::ListTypeMeta,
            (Self::ItemsEnvelope, 2) => Self::ItemList,
            (Self::ListTypeMeta, 1) => Self::ListApiVersion,
            (Self::ListTypeMeta, 2) => Self::ListKind,
            (Self::ItemMeta, 13) => Self::ItemOwners,
            (Self::List | Self::ItemList, 1) => Self::ListMeta,
            (Self::ItemList, 2) => Self::Item,
            (Self::Item, 1) => Self::ItemMeta,
            (Self::ListMeta, 3) => Self::Continue,
            (Self::ListMeta, 4) => Self::Remaining,
            _ => Self::Skip,
        }
    }

    /// The place of an array's items.
    pub(super) const fn item(self) -> Self {
        match self {
            Self::Rows => Self::Row,
            Self::Items => Self::Item,
            Self::ItemRows => Self::ItemRow,
            _ => Self::Skip,
        }
    }

    /// Whether this is an array that is parsed item by item.
    pub(super) const fn is_items(self) -> bool {
        matches!(self, Self::Items | Self::ItemRows)
    }

    /// Whether this is one item of such an array.
    pub(super) const fn is_item(self) -> bool {
        matches!(self, Self::Item | Self::ItemRow)
    }

    pub(super) const fn shape(self) -> Shape {
        match self {
            Self::Skip | Self::ItemOwners => Shape::Skip,
            Self::Rows | Self::Items | Self::ItemRows => Shape::Array,
            Self::Remaining => Shape::Number,
            Self::Type
            | Self::ResourceVersion
            | Self::InitialEventsEnd
            | Self::AnnotationKey
            | Self::AnnotationValue
            | Self::Continue
            | Self::Namespace
            | Self::Name
            | Self::Uid
            | Self::Kind
            | Self::ApiVersion
            | Self::ListKind
            | Self::ListApiVersion => Shape::Text,
            _ => Shape::Map,
        }
    }

    /// Most bytes of its text that are read: one more than the longest valid one.
    pub(super) const fn text_limit(self) -> usize {
        match self {
            Self::Type => 16,
            Self::ResourceVersion => ResourceVersion::MAX_DIGITS + 1,
            Self::InitialEventsEnd | Self::AnnotationValue => 8,
            Self::AnnotationKey => Self::NAME_LIMIT,
            Self::Continue => Self::CONTINUE_TEXT + 1,
            Self::Namespace
            | Self::Name
            | Self::Uid
            | Self::Kind
            | Self::ApiVersion
            | Self::ListKind
            | Self::ListApiVersion => Self::OBJECT_TEXT + 1,
            _ => 0,
        }
    }
}
