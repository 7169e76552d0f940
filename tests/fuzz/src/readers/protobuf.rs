//! Protobuf, read as a whole: fields of messages, and what a filter must make of a list and of an
//! event.

use ctrlmesh::wire::{
    ResourceVersion,
    frames::{EventKind, MAGIC, Verdict},
};

use super::tree::{Refused, Told, event_kind};
use crate::splits::Seen;

/// Longest text of an object that is read.
const MAX_TEXT: usize = 512;

/// One field, and where it stands in what it was read from.
pub(crate) struct Field<'a> {
    pub(crate) number: u64,
    pub(crate) wire: u64,
    /// Bytes before its tag, before its payload, and before what follows.
    start: usize,
    payload: usize,
    end: usize,
    pub(crate) tag_length: usize,
    pub(crate) bytes: &'a [u8],
}

/// All fields of a message; `None` if the bytes are no message.
pub(crate) fn fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < message.len() {
        let start = at;
        let tag = varint(message, &mut at)?;
        let (number, wire) = (tag >> 3, tag & 7);
        if number == 0 || number >= 1 << 29 {
            return None;
        }
        let tag_length = at - start;
        let mut payload = at;
        let length = match wire {
            0 => {
                varint(message, &mut at)?;
                (at - payload) as u64
            }
            1 => 8,
            2 => {
                let length = varint(message, &mut at)?;
                payload = at;
                length
            }
            5 => 4,
            _ => return None,
        };
        let end = payload.checked_add(usize::try_from(length).ok()?)?;
        let bytes = message.get(payload..end)?;
        all.push(Field { number, wire, start, payload, end, tag_length, bytes });
        at = end;
    }
    Some(all)
}

/// A message in which `new` stands instead of the text at the end of the way. The way leads through
/// fields that must stand once. `None` if it leads nowhere.
pub(crate) fn replaced(
    message: &[u8],
    way: &[u64],
    new: impl FnOnce(&[u8]) -> Result<Vec<u8>, Refused>,
) -> Result<Option<Vec<u8>>, Refused> {
    let Some((number, way)) = way.split_first() else { return new(message).map(Some) };
    let all = fields(message).ok_or(Refused)?;
    let mut fields = all.iter().filter(|field| field.number == *number);
    let field = match (fields.next(), fields.next()) {
        (None, _) => return Ok(None),
        (Some(field), None) if field.wire == 2 => field,
        _ => return Err(Refused),
    };
    let Some(inner) = replaced(field.bytes, way, new)? else { return Ok(None) };
    let mut out = message[..field.start + field.tag_length].to_vec();
    let mut length = inner.len();
    while length > 0x7f {
        out.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).expect("seven bits"));
    out.extend(inner);
    out.extend(&message[field.end..]);
    Ok(Some(out))
}

pub(crate) fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0_u128;
    for shift in (0..70).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u128::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return u64::try_from(value).ok();
        }
    }
    None
}

impl<'a> Field<'a> {
    /// The message or text in it, if this is its number.
    fn at(&self, number: u64) -> Option<&'a [u8]> {
        (self.number == number && self.wire == 2).then_some(self.bytes)
    }
}

/// The fields of `ObjectMeta`. `None` if the bytes are no message.
fn meta(message: &[u8]) -> Option<Result<Seen, Refused>> {
    let all = fields(message)?;
    let one = |number| {
        let mut texts = all.iter().filter_map(|field| field.at(number));
        match (texts.next(), texts.next()) {
            (None, _) => Ok(String::new()),
            (Some(text), None) if text.len() <= MAX_TEXT => {
                String::from_utf8(text.to_vec()).map_err(|_| Refused)
            }
            _ => Err(Refused),
        }
    };
    let seen = || Ok(Seen { name: one(1)?, namespace: one(3)?, uid: one(5)?, ..Seen::default() });
    Some(seen())
}

/// What an object says of itself, by its metadata, which stand once.
fn object(metas: &[&[u8]]) -> Option<Result<Seen, Refused>> {
    // All are read, also where it is clear that they are too many.
    let mut all: Vec<_> = metas.iter().map(|message| meta(message)).collect::<Option<_>>()?;
    Some(if all.len() == 1 { all.swap_remove(0) } else { Err(Refused) })
}

/// A list, and the expected filtered body.
pub(crate) struct List {
    pub(crate) seen: Vec<Seen>,
    pub(crate) expected: Vec<u8>,
}

/// A list, or whatever else a body is.
pub(crate) enum Body {
    /// No message.
    Malformed,
    /// A message that has no list, or more than one.
    Other,
    Refused,
    List(List),
}

pub(crate) fn list(body: &[u8]) -> Body {
    let Some(envelope) = body.strip_prefix(MAGIC).and_then(fields) else { return Body::Malformed };
    // The kind of the list is read.
    if envelope.iter().filter_map(|field| field.at(1)).any(|kind| fields(kind).is_none()) {
        return Body::Malformed;
    }
    let mut raws = envelope.iter().filter(|field| field.at(2).is_some());
    match (raws.next(), raws.next()) {
        (Some(raw), None) => match list_in(body, raw) {
            None => Body::Malformed,
            Some(Err(Refused)) => Body::Refused,
            Some(Ok(list)) => Body::List(list),
        },
        _ => Body::Other,
    }
}

fn list_in(body: &[u8], raw: &Field<'_>) -> Option<Result<List, Refused>> {
    let base = MAGIC.len() + raw.payload;
    let mut list = List { seen: Vec::new(), expected: body.to_vec() };
    let mut is_refused = false;
    for field in fields(raw.bytes)? {
        if let Some(item) = field.at(2) {
            let fields = fields(item)?;
            let metas: Vec<_> = fields.iter().filter_map(|field| field.at(1)).collect();
            let one = object(&metas)?;
            match one {
                // No API server writes a tag in more bytes than it needs.
                Ok(seen) if field.tag_length == 1 && seen.verdict() != Verdict::Unknown => {
                    if seen.verdict() == Verdict::Drop {
                        *list.expected.get_mut(base + field.start)? = 15 << 3 | 2;
                        list.expected.get_mut(base + field.payload..base + field.end)?.fill(0);
                    }
                    list.seen.push(seen);
                }
                _ => is_refused = true,
            }
        } else if let Some(meta) = field.at(1) {
            for inner in fields(meta)? {
                if inner.number == 4 && inner.wire == 0 {
                    is_refused |= inner.tag_length > 1;
                    *list.expected.get_mut(base + field.payload + inner.start)? = 15 << 3;
                }
            }
        }
    }
    Some(if is_refused { Err(Refused) } else { Ok(list) })
}

/// An event with the bytes of its frame.
pub(crate) struct Frame<'a> {
    pub(crate) raw: &'a [u8],
    /// Nothing if it is no message.
    pub(crate) told: Option<Told>,
}

/// The events of a stream; `None` if it ends within one.
pub(crate) fn stream(mut body: &[u8]) -> Option<Vec<Frame<'_>>> {
    let mut all = Vec::new();
    while let Some((length, rest)) = body.split_first_chunk() {
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let told = event(rest.get(..length)?);
        let (raw, rest) = body.split_at_checked(4 + length)?;
        all.push(Frame { raw, told });
        body = rest;
    }
    body.is_empty().then_some(all)
}

/// Where something stands twice, the last one counts, but for what an object says of itself.
fn event(message: &[u8]) -> Option<Told> {
    let mut told =
        Told { kind: EventKind::Unknown, version: ResourceVersion::Unset, object: Err(Refused) };
    for field in fields(message)? {
        if let Some(kind) = field.at(1) {
            told.kind = event_kind(kind);
        }
        for field in field.at(2).map_or(Some(Vec::new()), fields)? {
            if let Some(envelope) = field.at(1) {
                told.object = enveloped(envelope, &mut told.version)?;
            }
        }
    }
    Some(told)
}

fn enveloped(envelope: &[u8], version: &mut ResourceVersion) -> Option<Result<Seen, Refused>> {
    let all = fields(envelope.strip_prefix(MAGIC)?)?;
    let (mut metas, mut kinds) = (Vec::new(), (Vec::new(), Vec::new()));
    for field in all {
        for inner in field.at(1).map_or(Some(Vec::new()), fields)? {
            kinds.0.extend(inner.at(1));
            kinds.1.extend(inner.at(2));
        }
        let Some(object) = field.at(2) else { continue };
        *version = ResourceVersion::Unset;
        for inner in fields(object)? {
            let Some(meta) = inner.at(1) else { continue };
            metas.push(meta);
            for field in fields(meta)? {
                if let Some(text) = field.at(6) {
                    *version = ResourceVersion::parse(text);
                }
                // Annotations are looked into.
                field.at(12).map_or(Some(Vec::new()), fields)?;
            }
        }
    }
    let text = |all: &[&[u8]]| match all {
        [] => Ok(String::new()),
        [one] if one.len() <= MAX_TEXT => String::from_utf8(one.to_vec()).map_err(|_| Refused),
        _ => Err(Refused),
    };
    let seen = object(&metas)?;
    let with_kind = || Ok(Seen { api_version: text(&kinds.0)?, kind: text(&kinds.1)?, ..seen? });
    Some(with_kind())
}
