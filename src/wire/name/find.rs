//! The way to the name and namespace of an object, found by the walker of its encoding.

use std::ops::Range;

use super::kind::{BodyKind, NameError};
use crate::{
    media::Encoding,
    object::{
        Wanted,
        walk::{CborHead, Facts, Fault, Node},
        walk_one,
    },
    protobuf::number,
};

/// What a text is to its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// `metadata.name`.
    Name,
    /// `metadata.namespace`.
    Namespace,
}

/// A decoded name or namespace and where it stands.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) field: Field,
    pub(super) text: String,
    /// The text's bytes: quotes, head or length included.
    pub(super) at: Range<usize>,
    /// The lengths of the protobuf messages around it, the outermost first.
    pub(super) around: Vec<Range<usize>>,
}

/// The values on the way to a name or namespace: each place, and the first token of its value.
#[derive(Debug)]
pub(super) struct Places<'b> {
    kind: BodyKind,
    body: &'b [u8],
    places: Vec<(Node, Range<usize>)>,
    /// The offset behind the value that was walked.
    pub(super) end: usize,
}

/// A value: its first token, and its type.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) token: Range<usize>,
    pub(super) is: Type,
}

/// The types that matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Null,
    Map,
    Text,
    Other,
}

impl Field {
    const ALL: [Self; 2] = [Self::Name, Self::Namespace];

    const fn node(self) -> Node {
        match self {
            Self::Name => Node::WrittenName,
            Self::Namespace => Node::WrittenNamespace,
        }
    }

    /// The field's path, for errors.
    pub(super) const fn path(self) -> &'static str {
        field(self.node())
    }
}

impl<'b> Places<'b> {
    /// Walks the value that begins at `from`. What stands there more than once is refused: Go takes
    /// the last of several values, or merges them.
    pub(super) fn walk(
        kind: BodyKind,
        root: Node,
        body: &'b [u8],
        from: usize,
    ) -> Result<Self, NameError> {
        let encoding = match kind {
            BodyKind::Protobuf => Encoding::Protobuf,
            BodyKind::Cbor => Encoding::Cbor,
            BodyKind::Json | BodyKind::JsonPatch | BodyKind::Yaml => Encoding::Json,
        };
        let (mut places, mut repeated) = (Vec::<(Node, Range<usize>)>::new(), None);
        let mut facts = Facts::of_write(Wanted::default());
        let bytes = body.get(from..).unwrap_or_default();
        let end = walk_one(encoding, root, bytes, &mut facts, &mut |node, token| {
            if places.iter().any(|(place, _)| *place == node) {
                repeated = repeated.or(Some(node));
            } else {
                places.push((node, from + token.start..from + token.end));
            }
        });
        match (repeated, end) {
            (Some(node), _) => Err(NameError::Repeated(field(node))),
            (None, Ok(end)) => Ok(Self { kind, body, places, end: from + end }),
            (None, Err(Fault::NotAnObject)) => Err(wrong_type(kind, root)),
            (None, Err(Fault::TooDeep)) => Err(NameError::TooDeep),
            (None, Err(Fault::Item)) => {
                Err(NameError::Indirect(field(facts.odd_place().unwrap_or(root))))
            }
            (None, Err(_)) => Err(NameError::Malformed(kind)),
        }
    }

    pub(super) fn place(&self, node: Node) -> Option<Value> {
        let (_, token) = self.places.iter().find(|(place, _)| *place == node)?;
        let first = self.body.get(token.start).copied().unwrap_or_default();
        let is = match (self.kind, first, first >> 5) {
            (BodyKind::Protobuf, ..) if is_text(node) => Type::Text,
            (BodyKind::Protobuf, ..) | (BodyKind::Cbor, _, 5) => Type::Map,
            (BodyKind::Cbor, 0xf6, _) => Type::Null,
            (BodyKind::Cbor, _, 2 | 3) => Type::Text,
            (BodyKind::Cbor, ..) => Type::Other,
            (_, b'n', _) => Type::Null,
            (_, b'{', _) => Type::Map,
            (_, b'"', _) => Type::Text,
            _ => Type::Other,
        };
        Some(Value { token: token.clone(), is })
    }

    /// The name and namespace in the object, or in its metadata, in the order of the body. One that is
    /// null is not there.
    pub(super) fn names(&self) -> Result<Vec<Found>, NameError> {
        if let Some(Value { is: Type::Text | Type::Other, .. }) = self.place(Node::WrittenMeta) {
            return Err(wrong_type(self.kind, Node::WrittenMeta));
        }
        let found = Field::ALL.into_iter().filter_map(|field| match self.place(field.node()) {
            None | Some(Value { is: Type::Null, .. }) => None,
            Some(value) => Some(self.named(field, value)),
        });
        let mut found = found.collect::<Result<Vec<_>, _>>()?;
        found.sort_by_key(|found| found.at.start);
        Ok(found)
    }

    /// The name or namespace that a value is.
    pub(super) fn named(&self, field: Field, value: Value) -> Result<Found, NameError> {
        let (text, at) = self.text(value, field.node())?;
        let lengths = self.places.iter().filter(|(node, _)| !is_text(*node));
        let lengths = lengths.filter(|_| self.kind == BodyKind::Protobuf);
        let around = lengths.map(|(_, length)| length.clone()).collect();
        Ok(Found { field, text, at, around })
    }

    /// The text that a value is, and its bytes. Errors call it by the path of `node`.
    pub(super) fn text(
        &self,
        Value { token, is }: Value,
        node: Node,
    ) -> Result<(String, Range<usize>), NameError> {
        if is != Type::Text {
            return Err(wrong_type(self.kind, node));
        }
        let behind = self.body.get(token.start..).unwrap_or_default();
        let text = match self.kind {
            BodyKind::Protobuf => protobuf_text(behind, token.len()),
            BodyKind::Cbor => cbor_text(behind),
            _ => {
                let mut texts = serde_json::Deserializer::from_slice(behind).into_iter();
                texts.next().and_then(Result::ok).map(|text| (text, texts.byte_offset()))
            }
        };
        let (text, length) = text.ok_or(NameError::Malformed(self.kind))?;
        Ok((text, token.start..token.start + length))
    }
}

fn is_text(node: Node) -> bool {
    Field::ALL.iter().any(|field| field.node() == node)
}

/// The text behind its length, which has `token` bytes, and the bytes of both.
fn protobuf_text(bytes: &[u8], token: usize) -> Option<(String, usize)> {
    let (length, behind) = bytes.split_at_checked(token)?;
    let text = behind.get(..usize::try_from(number(length)).ok()?)?;
    Some((str::from_utf8(text).ok()?.to_owned(), token + text.len()))
}

/// The text in one piece or in several up to a break, and its number of bytes.
fn cbor_text(bytes: &[u8]) -> Option<(String, usize)> {
    let (mut text, mut at, mut in_pieces) = (Vec::new(), 0, false);
    loop {
        let head = CborHead::read(bytes.get(at..)?).ok()??;
        at += head.length;
        if let Some(length) = head.argument {
            let piece = bytes.get(at..)?.get(..usize::try_from(length).ok()?)?;
            text.extend_from_slice(piece);
            at += piece.len();
        }
        if head.argument.is_none() == in_pieces {
            return Some((String::from_utf8(text).ok()?, at));
        }
        in_pieces = true;
    }
}

const fn wrong_type(kind: BodyKind, node: Node) -> NameError {
    let expected = match (node, kind) {
        (Node::WrittenName | Node::WrittenNamespace | Node::Op | Node::OpPath, _) => "a string",
        (_, BodyKind::Cbor) => "a map",
        _ => "an object",
    };
    NameError::WrongType { field: field(node), expected }
}

/// The path of a place, for errors.
const fn field(node: Node) -> &'static str {
    match node {
        Node::WrittenMeta => "metadata",
        Node::WrittenName => "metadata.name",
        Node::WrittenNamespace => "metadata.namespace",
        Node::Operation => "an operation",
        Node::Op => "op",
        Node::OpPath => "path",
        Node::OpValue => "value",
        _ => "the whole",
    }
}
