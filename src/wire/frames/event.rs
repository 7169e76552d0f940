//! Watch events made from the items of a list.
//!
//! Hides how an item is encoded as an event: items of typed lists do not contain their kind,
//! objects of events do. The object itself is the same bytes.

use crate::{
    media::Encoding,
    object::walk::{CborHead, EventKind},
    status::write::{cbor_event, cbor_head, cbor_text, enveloped, framed, json as json_text},
};

/// The kind of an object, and its group and version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeMeta {
    /// `apiVersion`.
    pub api_version: Box<str>,
    /// `kind`.
    pub kind: Box<str>,
}

impl TypeMeta {
    /// The kind of a list's items. `None` if the list does not show it: a custom resource may name
    /// its list anything, and a Table is not a list of objects.
    pub fn of_items(list_api_version: &str, list_kind: &str) -> Option<Self> {
        let kind = list_kind.strip_suffix("List").filter(|kind| !kind.is_empty())?;
        let is_known = !list_api_version.is_empty();
        is_known.then(|| Self { api_version: list_api_version.into(), kind: kind.into() })
    }
}

/// An object of a list.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// The object's bytes.
    pub bytes: &'a [u8],
    /// Whether it contains `kind` and `apiVersion`.
    pub has_type: bool,
}

/// The event, framed as in a stream of `encoding`. `None` for YAML, for other events than ADDED and
/// DELETED, and if the object or its kind is missing.
pub fn object_event(
    encoding: Encoding,
    kind: EventKind,
    type_meta: Option<&TypeMeta>,
    object: Listed<'_>,
) -> Option<Vec<u8>> {
    let name = match kind {
        EventKind::Added => "ADDED",
        EventKind::Deleted => "DELETED",
        _ => return None,
    };
    let type_meta = if object.has_type { None } else { Some(type_meta?) };
    let mut out = Vec::with_capacity(object.bytes.len().saturating_add(128));
    match encoding {
        Encoding::Json => json(name, type_meta, object.bytes, &mut out)?,
        Encoding::Cbor => cbor(name, type_meta, object.bytes, &mut out)?,
        Encoding::Protobuf => {
            let TypeMeta { api_version, kind } = type_meta?;
            framed(name, &mut out, |event| {
                enveloped(api_version, kind, event, |raw| raw.extend_from_slice(object.bytes));
            });
        }
        Encoding::Yaml => return None,
    }
    Some(out)
}

fn json(name: &str, type_meta: Option<&TypeMeta>, object: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let fields = object.strip_prefix(b"{")?;
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\",\"object\":{");
    if let Some(TypeMeta { api_version, kind }) = type_meta {
        out.extend_from_slice(b"\"kind\":");
        json_text(kind, out);
        out.extend_from_slice(b",\"apiVersion\":");
        json_text(api_version, out);
        if fields.trim_ascii_start() != b"}" {
            out.push(b',');
        }
    }
    out.extend_from_slice(fields);
    out.extend_from_slice(b"}\n");
    Some(())
}

/// The head of a map of indefinite length.
const OPEN_MAP: u8 = 0xbf;
/// Major type 5: a map.
const MAP: u8 = 5;

fn cbor(name: &str, type_meta: Option<&TypeMeta>, object: &[u8], out: &mut Vec<u8>) -> Option<()> {
    cbor_event(name, out);
    let Some(TypeMeta { api_version, kind }) = type_meta else {
        out.extend_from_slice(object);
        return Some(());
    };
    let head = CborHead::read(object).ok()??;
    match (head.major, head.argument) {
        (MAP, None) => out.push(OPEN_MAP),
        (MAP, Some(count)) => cbor_head(MAP, usize::try_from(count).ok()?.checked_add(2)?, out),
        _ => return None,
    }
    for text in ["kind", kind, "apiVersion", api_version] {
        cbor_text(text, out);
    }
    out.extend_from_slice(object.get(head.length..)?);
    Some(())
}
