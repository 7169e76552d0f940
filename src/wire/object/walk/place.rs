//! The places in a body, and the names that lead there: the same for all encodings.

use crate::object::Wanted;

/// A place in a body. From each, known names lead to others, and all other names to [`Node::Skip`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    /// A value that does not matter.
    Skip,
    Event,
    /// The `RawExtension` of a protobuf event.
    Extension,
    /// The protobuf envelope of an object: magic and `runtime.Unknown`.
    ObjectEnvelope,
    /// The protobuf envelope of a list.
    ListEnvelope,
    /// The protobuf envelope of a list whose items are parsed.
    ItemsEnvelope,
    /// The kind in a protobuf envelope.
    TypeMeta,
    /// The object of an event, or one that stands alone.
    Object,
    /// The object in an envelope, which contains its kind.
    Enveloped,
    /// `ObjectMeta`, or the `ListMeta` of a Table.
    Meta,
    Annotations,
    /// One entry of a protobuf map of annotations.
    Annotation,
    Rows,
    Row,
    RowObject,
    RowMeta,
    /// A list of which only its own metadata is parsed.
    List,
    /// A list whose items are parsed.
    ItemList,
    ListMeta,
    Items,
    Item,
    /// The owner references of an item, of which only the number matters.
    ItemOwners,
    ItemOwner,
    Labels,
    /// One entry of the labels, in protobuf.
    LabelEntry,
    Owners,
    Owner,
    /// The kind in the protobuf envelope of a list.
    ListTypeMeta,
    ItemMeta,
    /// The rows of a Table that is a list.
    ItemRows,
    ItemRow,
    /// The object of a row, in a Table that is a list.
    RowItem,
    /// The protobuf envelope of an object that is written.
    WrittenEnvelope,
    /// An object that is written: only its name and namespace matter.
    Written,
    WrittenMeta,
    WrittenName,
    WrittenNamespace,
    Operation,
    Op,
    OpPath,
    OpValue,
    /// The protobuf envelope of `DeleteOptions`.
    OptionsEnvelope,
    /// A field of that envelope next to them.
    BesideOptions,
    Options,
    /// A known option, in protobuf.
    KnownOption,
    UnknownOption,
    /// A document that may be an AdmissionReview.
    Review,
    ReviewRequest,
    /// The kind of the object that a review is about.
    ReviewKind,
    /// The resource that a review is about.
    ReviewResource,
    /// The object of a review, as it would become.
    ReviewObject,
    /// The object of a review, as it is stored.
    ReviewOldObject,
    ReviewMeta,

    // Texts.
    Type,
    ResourceVersion,
    /// The value of `k8s.io/initial-events-end`.
    InitialEventsEnd,
    /// Protobuf: the name of an annotation.
    AnnotationKey,
    /// Protobuf.
    AnnotationValue,
    Continue,
    Namespace,
    Name,
    Uid,
    Kind,
    ApiVersion,
    ListKind,
    ListApiVersion,
    ItemVersion,
    Label,
    /// Protobuf.
    LabelKey,
    /// Protobuf.
    LabelValue,
    OwnerApiVersion,
    OwnerKind,
    OwnerName,
    OwnerUid,
    ReviewOperation,
    ReviewSubresource,
    ReviewKindGroup,
    ReviewKindName,
    ReviewResourceGroup,
    ReviewResourceName,

    /// A truth value.
    OwnerIsController,
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
    Flag,
    /// A value whose place alone matters.
    Any,
    Skip,
}

/// The use of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextOf {
    /// The name of the next value.
    Name,
    Place(Node),
    Nothing,
}

/// The annotation of the bookmark that ends the initial events of a WatchList (KEP-3157).
pub(super) const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

impl Node {
    /// The longest key of a label: a DNS name, a slash, and a name.
    const LABEL_KEY: usize = 253 + 1 + 63;

    /// The longest value of a label.
    const LABEL_VALUE: usize = 63;

    /// The longest name that is read, and one byte more. No known name is longer.
    pub(super) const NAME_LIMIT: usize = Self::LABEL_KEY + 1;

    /// The longest text of an object that is read: more than any name, namespace or uid may have.
    pub(super) const OBJECT_TEXT: usize = 512;

    /// Longest token of a next page that is kept, in bytes; the API server's are about 100.
    pub(super) const CONTINUE_TEXT: usize = 4096;

    /// The place to which a name leads in JSON and CBOR.
    pub(super) fn named(self, name: &[u8], wanted: Wanted) -> Self {
        match (self, name) {
            (Self::Event, b"type") => Self::Type,
            (Self::Event, b"object") => Self::Object,
            (Self::Object, b"metadata") => Self::Meta,
            (Self::Object, b"rows") => Self::Rows,
            (Self::Object, b"kind") => Self::Kind,
            (Self::Object, b"apiVersion") => Self::ApiVersion,
            (Self::Meta | Self::ListMeta, b"resourceVersion") => Self::ResourceVersion,
            (Self::Meta | Self::RowMeta, b"annotations") => Self::Annotations,
            (
                Self::Meta | Self::ItemMeta | Self::ReviewMeta | Self::ReviewRequest,
                b"namespace",
            ) => Self::Namespace,
            (Self::Meta | Self::ItemMeta | Self::ReviewMeta | Self::ReviewRequest, b"name") => {
                Self::Name
            }
            (Self::Meta | Self::ItemMeta | Self::ReviewMeta | Self::ReviewRequest, b"uid") => {
                Self::Uid
            }
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
            (Self::ItemMeta, b"resourceVersion") if wanted.version => Self::ItemVersion,
            (Self::Meta | Self::ItemMeta | Self::ReviewMeta, b"labels") if wanted.labels => {
                Self::Labels
            }
            (Self::Labels, _) => Self::Label,
            (Self::Meta | Self::ItemMeta, b"ownerReferences") if wanted.owners => Self::Owners,
            (Self::ItemMeta, b"ownerReferences") => Self::ItemOwners,
            (Self::Owner, b"apiVersion") => Self::OwnerApiVersion,
            (Self::Owner, b"kind") => Self::OwnerKind,
            (Self::Owner, b"name") => Self::OwnerName,
            (Self::Owner, b"uid") => Self::OwnerUid,
            (Self::Owner, b"controller") => Self::OwnerIsController,
            (Self::ItemRow, b"object") => Self::RowItem,
            (Self::Item | Self::RowItem, b"metadata") => Self::ItemMeta,
            (Self::ListMeta, b"continue") => Self::Continue,
            (Self::ListMeta, b"remainingItemCount") => Self::Remaining,
            (Self::Written, b"metadata") => Self::WrittenMeta,
            (Self::WrittenMeta, b"name") => Self::WrittenName,
            (Self::WrittenMeta, b"namespace") => Self::WrittenNamespace,
            (Self::Operation, b"op") => Self::Op,
            (Self::Operation, b"path") => Self::OpPath,
            (Self::Operation, b"value") => Self::OpValue,
            _ => self.named_in_review(name),
        }
    }

    /// The place of the names of a review that nothing else has (`admission.k8s.io`, v1 and
    /// v1beta1).
    fn named_in_review(self, name: &[u8]) -> Self {
        match (self, name) {
            (Self::Review, b"kind") => Self::Kind,
            (Self::Review, b"apiVersion") => Self::ApiVersion,
            (Self::Review, b"request") => Self::ReviewRequest,
            (Self::ReviewRequest, b"kind") => Self::ReviewKind,
            (Self::ReviewRequest, b"resource") => Self::ReviewResource,
            (Self::ReviewRequest, b"subResource") => Self::ReviewSubresource,
            (Self::ReviewRequest, b"operation") => Self::ReviewOperation,
            (Self::ReviewRequest, b"object") => Self::ReviewObject,
            (Self::ReviewRequest, b"oldObject") => Self::ReviewOldObject,
            (Self::ReviewKind, b"group") => Self::ReviewKindGroup,
            (Self::ReviewKind, b"kind") => Self::ReviewKindName,
            (Self::ReviewResource, b"group") => Self::ReviewResourceGroup,
            (Self::ReviewResource, b"resource") => Self::ReviewResourceName,
            (Self::ReviewObject | Self::ReviewOldObject, b"metadata") => Self::ReviewMeta,
            _ => Self::Skip,
        }
    }

    /// The place to which a field number leads in protobuf (`generated.proto` of `apimachinery`).
    /// Every kind has its metadata in field 1, every list its items in field 2.
    pub(super) const fn numbered(self, number: u64, wanted: Wanted) -> Self {
        match (self, number) {
            (Self::Event, 1) => Self::Type,
            (Self::Event, 2) => Self::Extension,
            (Self::Extension, 1) => Self::ObjectEnvelope,
            (Self::ObjectEnvelope, 1) => Self::TypeMeta,
            (Self::ObjectEnvelope, 2) => Self::Enveloped,
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
            (Self::ItemMeta, 6) if wanted.version => Self::ItemVersion,
            (Self::Meta | Self::ItemMeta, 11) if wanted.labels => Self::LabelEntry,
            (Self::LabelEntry, 1) => Self::LabelKey,
            (Self::LabelEntry, 2) => Self::LabelValue,
            (Self::Meta | Self::ItemMeta, 13) if wanted.owners => Self::Owner,
            (Self::ItemMeta, 13) => Self::ItemOwner,
            (Self::Owner, 1) => Self::OwnerKind,
            (Self::Owner, 3) => Self::OwnerName,
            (Self::Owner, 4) => Self::OwnerUid,
            (Self::Owner, 5) => Self::OwnerApiVersion,
            (Self::Owner, 6) => Self::OwnerIsController,
            (Self::List | Self::ItemList, 1) => Self::ListMeta,
            (Self::ItemList, 2) => Self::Item,
            (Self::Item, 1) => Self::ItemMeta,
            (Self::ListMeta, 3) => Self::Continue,
            (Self::ListMeta, 4) => Self::Remaining,
            (Self::WrittenEnvelope, 2) => Self::Written,
            (Self::Written, 1) => Self::WrittenMeta,
            (Self::WrittenMeta, 1) => Self::WrittenName,
            (Self::WrittenMeta, 3) => Self::WrittenNamespace,
            (Self::OptionsEnvelope, 1 | 3 | 4) => Self::BesideOptions,
            (Self::OptionsEnvelope, 2) => Self::Options,
            (Self::Options, 1..=6) => Self::KnownOption,
            (Self::Options, _) => Self::UnknownOption,
            _ => Self::Skip,
        }
    }

    /// The place of an array's items.
    pub(super) const fn item(self) -> Self {
        match self {
            Self::Rows => Self::Row,
            Self::Items => Self::Item,
            Self::ItemRows => Self::ItemRow,
            Self::Owners => Self::Owner,
            Self::ItemOwners => Self::ItemOwner,
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

    /// Whether this is a part of a review, whose begin and end are reported to the caller.
    pub(super) const fn is_review_part(self) -> bool {
        matches!(
            self,
            Self::ReviewRequest
                | Self::ReviewKind
                | Self::ReviewResource
                | Self::ReviewObject
                | Self::ReviewOldObject
        )
    }

    /// Whether the place of its value is reported to the caller, whatever type it has.
    pub(super) const fn is_marked(self) -> bool {
        self.is_review_part()
            || matches!(self, Self::Written | Self::WrittenMeta | Self::Options)
            || matches!(self.shape(), Shape::Any)
    }

    pub(super) const fn shape(self) -> Shape {
        match self {
            Self::Skip | Self::ItemOwner => Shape::Skip,
            Self::Rows | Self::Items | Self::ItemRows | Self::Owners | Self::ItemOwners => {
                Shape::Array
            }
            Self::Remaining => Shape::Number,
            Self::OwnerIsController => Shape::Flag,
            Self::WrittenName
            | Self::WrittenNamespace
            | Self::Op
            | Self::OpPath
            | Self::OpValue
            | Self::BesideOptions
            | Self::KnownOption
            | Self::UnknownOption => Shape::Any,
            _ if self.text_limit() > 0 => Shape::Text,
            _ => Shape::Map,
        }
    }

    /// Most bytes of its text that are read: one more than the longest valid one. 0 if
    /// the place is not a text.
    pub(super) const fn text_limit(self) -> usize {
        match self {
            Self::Type => 16,
            Self::InitialEventsEnd | Self::AnnotationValue => 8,
            Self::AnnotationKey | Self::LabelKey => Self::NAME_LIMIT,
            Self::Label | Self::LabelValue => Self::LABEL_VALUE + 1,
            Self::Continue => Self::CONTINUE_TEXT + 1,
            Self::Namespace
            | Self::Name
            | Self::Uid
            | Self::ResourceVersion
            | Self::ItemVersion
            | Self::Kind
            | Self::ApiVersion
            | Self::ListKind
            | Self::ListApiVersion
            | Self::OwnerApiVersion
            | Self::OwnerKind
            | Self::OwnerName
            | Self::OwnerUid
            | Self::ReviewOperation
            | Self::ReviewSubresource
            | Self::ReviewKindGroup
            | Self::ReviewKindName
            | Self::ReviewResourceGroup
            | Self::ReviewResourceName => Self::OBJECT_TEXT + 1,
            _ => 0,
        }
    }
}
