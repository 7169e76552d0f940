//! What a plain decoder makes of a whole body, and what a filter must then do with it: one model
//! for the encodings that have names.

use std::fmt;

use ctrlmesh::wire::{
    ResourceVersion,
    frames::{Continue, EventKind, ListMeta, Verdict},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::splits::Seen;

/// Deeper than anything that matters stands.
const DEPTH: usize = 12;
/// Longest text of an object that is read.
const MAX_TEXT: usize = 512;

/// A value with the bytes that it was read from.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) raw: &'a [u8],
    pub(crate) value: Value<'a>,
}

#[derive(Debug)]
pub(crate) enum Value<'a> {
    Null,
    Number,
    Text(Vec<u8>),
    Array(Vec<Node<'a>>),
    Map(Vec<Field<'a>>),
    Other,
}

/// One entry of a map, where names may stand twice.
#[derive(Debug)]
pub(crate) struct Field<'a> {
    /// Nothing if it is no text.
    pub(crate) name: Option<Vec<u8>>,
    /// In CBOR a tag stands before the name.
    pub(crate) is_tagged: bool,
    pub(crate) value: Node<'a>,
}

/// The filter must refuse the body.
#[derive(Debug)]
pub(crate) struct Refused;

struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Entries(all))
            }
        }

        deserializer.deserialize_map(All)
    }
}

/// `None` for text that is no JSON to `serde_json`.
pub(crate) fn json(text: &[u8]) -> Option<Node<'_>> {
    json_node(serde_json::from_slice(text).ok()?, DEPTH)
}

/// The documents of a stream.
pub(crate) fn jsons(text: &[u8]) -> Option<Vec<Node<'_>>> {
    let all = serde_json::Deserializer::from_slice(text).into_iter::<&RawValue>();
    all.map(|raw| json_node(raw.ok()?, DEPTH)).collect()
}

fn json_node(raw: &RawValue, depth: usize) -> Option<Node<'_>> {
    let text = raw.get();
    let value = match text.bytes().next()? {
        _ if depth == 0 => Value::Other,
        b'{' => {
            let Entries(all) = serde_json::from_str(text).ok()?;
            let field = |(name, raw): (String, _)| {
                let value = json_node(raw, depth - 1)?;
                Some(Field { name: Some(name.into_bytes()), is_tagged: false, value })
            };
            Value::Map(all.into_iter().map(field).collect::<Option<_>>()?)
        }
        b'[' => {
            let all: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Value::Array(
                all.into_iter().map(|raw| json_node(raw, depth - 1)).collect::<Option<_>>()?,
            )
        }
        b'"' => Value::Text(serde_json::from_str::<String>(text).ok()?.into_bytes()),
        b'n' => Value::Null,
        b'-' | b'0'..=b'9' => Value::Number,
        _ => Value::Other,
    };
    Some(Node { raw: text.as_bytes(), value })
}

impl<'a> Node<'a> {
    pub(crate) fn fields(&self) -> &[Field<'a>] {
        if let Value::Map(fields) = &self.value { fields } else { &[] }
    }

    /// In CBOR a tag stands before it; no JSON begins like one.
    pub(crate) fn is_tagged(&self) -> bool {
        matches!(self.raw.first(), Some(0xc0..=0xdf))
    }

    pub(crate) fn is_map(&self) -> bool {
        matches!(self.value, Value::Map(_))
    }

    /// All values of a name but null, which says nothing.
    fn named(&self, name: &str) -> impl Iterator<Item = &Node<'a>> {
        let is_one = move |field: &&Field<'a>| {
            field.name.as_deref() == Some(name.as_bytes())
                && !matches!(field.value.value, Value::Null)
        };
        self.fields().iter().filter(is_one).map(|field| &field.value)
    }

    /// The one text of this name; empty if there is none.
    fn text(&self, name: &str) -> Result<String, Refused> {
        let mut all = self.named(name);
        match (all.next().map(|node| &node.value), all.next()) {
            (None, _) => Ok(String::new()),
            (Some(Value::Text(text)), None) if text.len() <= MAX_TEXT => {
                String::from_utf8(text.clone()).map_err(|_| Refused)
            }
            _ => Err(Refused),
        }
    }

    /// What an object says of itself. What a row stands for does not say what it is.
    pub(crate) fn object(&self, says_kind: bool) -> Result<Seen, Refused> {
        let mut metas = self.named("metadata");
        let (Some(meta), None) = (metas.next(), metas.next()) else { return Err(Refused) };
        if !meta.is_map() {
            return Err(Refused);
        }
        let of_kind = |name| if says_kind { self.text(name) } else { Ok(String::new()) };
        Ok(Seen {
            namespace: meta.text("namespace")?,
            name: meta.text("name")?,
            uid: meta.text("uid")?,
            kind: of_kind("kind")?,
            api_version: of_kind("apiVersion")?,
        })
    }

    /// The object that a row stands for.
    pub(crate) fn row(&self) -> Result<Seen, Refused> {
        let mut objects = self.named("object");
        match (objects.next(), objects.next()) {
            (Some(object), None) => object.object(false),
            _ => Err(Refused),
        }
    }
}

/// The objects of a list in their order, and its metadata if that stands once.
pub(crate) fn list(root: &Node<'_>) -> Result<(Vec<Seen>, Option<ListMeta>), Refused> {
    let (mut seen, mut is_list) = (Vec::new(), false);
    if !root.is_map() {
        return Err(Refused);
    }
    for Field { name, value, .. } in root.fields() {
        let are_rows = name.as_deref() == Some(b"rows");
        if !are_rows && name.as_deref() != Some(b"items") {
            continue;
        }
        is_list = true;
        match &value.value {
            Value::Null => {}
            Value::Array(items) => {
                for item in items {
                    let one = if are_rows { item.row()? } else { item.object(true)? };
                    if one.verdict() == Verdict::Unknown {
                        return Err(Refused);
                    }
                    seen.push(one);
                }
            }
            _ => return Err(Refused),
        }
    }
    let mut metas = root.named("metadata");
    let meta = match (metas.next(), metas.next()) {
        (Some(meta), None) if meta.is_map() => Some(ListMeta {
            resource_version: version(meta, ResourceVersion::Unset),
            continue_token: token(meta),
        }),
        _ => None,
    };
    if is_list { Ok((seen, meta)) } else { Err(Refused) }
}

/// Of a repeated name the last value counts.
fn version(meta: &Node<'_>, before: ResourceVersion) -> ResourceVersion {
    meta.named("resourceVersion").fold(before, |_, node| match &node.value {
        Value::Text(text) => ResourceVersion::parse(text),
        _ => ResourceVersion::Opaque,
    })
}

fn token(meta: &Node<'_>) -> Continue {
    match meta.named("continue").last().map(|node| &node.value) {
        None => Continue::None,
        Some(Value::Text(text)) => match std::str::from_utf8(text) {
            Ok("") => Continue::None,
            Ok(token) if token.len() <= ListMeta::MAX_CONTINUE => Continue::Token(token.to_owned()),
            _ => Continue::Unreadable,
        },
        Some(_) => Continue::Unreadable,
    }
}

/// A filtered list lacks the dropped items and its count. All else is the same bytes.
pub(crate) fn check_list(before: &Node<'_>, after: &Node<'_>) {
    let (old, new) = (before.fields(), after.fields());
    assert_eq!(old.len(), new.len(), "fields of the list");
    for (old, new) in old.iter().zip(new) {
        assert_eq!(old.name, new.name);
        match (old.name.as_deref(), &old.value.value, &new.value.value) {
            (Some(b"items" | b"rows"), Value::Array(all), Value::Array(left)) => {
                let are_rows = old.name.as_deref() == Some(b"rows");
                let keeps = |node: &&Node<'_>| {
                    let seen = if are_rows { node.row() } else { node.object(true) };
                    seen.expect("readable").verdict() == Verdict::Keep
                };
                let kept: Vec<_> = all.iter().filter(keeps).map(|node| node.raw).collect();
                let left: Vec<_> = left.iter().map(|node| node.raw).collect();
                assert_eq!(left, kept, "items");
            }
            (Some(b"metadata"), Value::Map(old), Value::Map(new)) => {
                assert_eq!(old.len(), new.len(), "fields of the metadata");
                for (old, new) in old.iter().zip(new) {
                    assert_eq!(old.name, new.name);
                    match (old.name.as_deref(), &old.value.value, &new.value.value) {
                        (Some(b"remainingItemCount"), Value::Number, Value::Null) => {}
                        (Some(b"remainingItemCount"), Value::Number, _) => panic!("a count"),
                        _ => assert_eq!(old.value.raw, new.value.raw),
                    }
                }
            }
            _ => assert_eq!(old.value.raw, new.value.raw),
        }
    }
}

/// What an event tells.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) kind: EventKind,
    pub(crate) version: ResourceVersion,
    pub(crate) object: Result<Seen, Refused>,
}

pub(crate) fn event_kind(text: &[u8]) -> EventKind {
    match text {
        b"ADDED" => EventKind::Added,
        b"MODIFIED" => EventKind::Modified,
        b"DELETED" => EventKind::Deleted,
        b"BOOKMARK" => EventKind::Bookmark,
        b"ERROR" => EventKind::Error,
        _ => EventKind::Unknown,
    }
}

/// Of a repeated name the last value counts.
pub(crate) fn event(root: &Node<'_>) -> Told {
    let kind = root.named("type").last().map_or(EventKind::Unknown, |node| match &node.value {
        Value::Text(text) => event_kind(text),
        _ => EventKind::Unknown,
    });
    let object = root.named("object").last();
    let metas = object.into_iter().flat_map(|object| object.named("metadata"));
    Told {
        kind,
        version: metas.fold(ResourceVersion::Unset, |before, meta| version(meta, before)),
        object: object.map_or(Err(Refused), |object| object.object(true)),
    }
}

/// The rows of a Table's event.
pub(crate) fn rows<'n, 'a>(root: &'n Node<'a>) -> impl Iterator<Item = &'n Node<'a>> {
    let all = root.named("object").flat_map(|object| object.named("rows"));
    all.flat_map(|rows| if let Value::Array(rows) = &rows.value { rows.as_slice() } else { &[] })
}
