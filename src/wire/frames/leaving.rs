//! The metadata of an object that leaves a shard, as the last event about it shows it.
//!
//! Hides where in each encoding the metadata is. All else in the object stays as it was listed.

use std::ops::Range;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    media::Encoding,
    object::walk::CborHead,
    protobuf::number as number_of,
    status::write::{cbor_head, cbor_text, message, number, text},
};

/// The names of the fields, in JSON and CBOR.
const VERSION: &str = "resourceVersion";
const DELETION: &str = "deletionTimestamp";
const GRACE: &str = "deletionGracePeriodSeconds";

/// The changes to the metadata of an object that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// The position at which it leaves. The API server too puts the version of a deletion into its
    /// DELETED event, and a client without bookmarks resumes from there.
    pub at: u64,
    /// The time of a deletion to show, in seconds since 1970. It is for clients that take no other
    /// sign for an end.
    pub deleted: Option<i64>,
}

impl Leaving {
    /// The object with these changes. `None` if its metadata cannot be found.
    pub fn put_into(self, encoding: Encoding, object: &[u8]) -> Option<Vec<u8>> {
        let deleted = self.deleted.map(Timestamp::from_second).transpose().ok()?;
        let version = self.at.to_string();
        match encoding {
            Encoding::Json => json(object, &version, deleted),
            Encoding::Cbor => cbor(object, &version, deleted),
            Encoding::Protobuf => protobuf(object, &version, deleted),
            Encoding::Yaml => None,
        }
    }
}

#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeavingMetadata<'a> {
    #[serde(borrow, default)]
    resource_version: Option<&'a RawValue>,
    #[serde(borrow, default)]
    deletion_timestamp: Option<&'a RawValue>,
    #[serde(borrow, default)]
    deletion_grace_period_seconds: Option<&'a RawValue>,
}

fn json(object: &[u8], version: &str, deleted: Option<Timestamp>) -> Option<Vec<u8>> {
    // The library reads an array, too, as the fields in their order.
    object.trim_ascii_start().strip_prefix(b"{")?;
    let whole: Whole<'_> = serde_json::from_slice(object).ok()?;
    let text = whole.metadata.get();
    let meta: LeavingMetadata<'_> = serde_json::from_str(text).ok()?;
    let open = place(object, text)?.start + 1;
    let is_empty = text.strip_prefix('{')?.trim_ascii_start() == "}";
    let mut fields = vec![(VERSION, meta.resource_version, format!("\"{version}\""))];
    if let Some(deleted) = deleted {
        fields.push((DELETION, meta.deletion_timestamp, format!("\"{deleted}\"")));
        fields.push((GRACE, meta.deletion_grace_period_seconds, "0".to_owned()));
    }
    let (mut edits, mut added) = (Vec::new(), Vec::new());
    for (name, present, value) in fields {
        match present {
            Some(present) => edits.push((place(object, present.get())?, value)),
            None => added.push(format!("\"{name}\":{value}")),
        }
    }
    let ends = if is_empty || added.is_empty() { "" } else { "," };
    edits.push((open..open, format!("{}{ends}", added.join(","))));
    edits.sort_by_key(|(place, _)| place.start);
    let mut out = Vec::with_capacity(object.len() + 128);
    let mut copied = 0;
    for (place, new) in edits {
        out.extend_from_slice(object.get(copied..place.start)?);
        out.extend_from_slice(new.as_bytes());
        copied = place.end;
    }
    out.extend_from_slice(object.get(copied..)?);
    Some(out)
}

/// The place of a part that was borrowed from the whole.
fn place(whole: &[u8], part: &str) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    Some(start..start + part.len())
}

/// The fields of `ObjectMeta` that change, and that of the metadata in an object.
const PROTO_METADATA: u64 = 1;
const PROTO_VERSION: u8 = 6;
const PROTO_DELETION: u8 = 9;
const PROTO_GRACE: u8 = 10;

fn protobuf(object: &[u8], version: &str, deleted: Option<Timestamp>) -> Option<Vec<u8>> {
    let mut found = fields(object)?.into_iter().filter(|field| field.number == PROTO_METADATA);
    let (Some(LeavingField { kind: BYTES, all, value, .. }), None) = (found.next(), found.next())
    else {
        return None;
    };
    let known = object.get(value)?;
    let is_ours = |field: &LeavingField| {
        field.number == u64::from(PROTO_VERSION)
            || deleted.is_some()
                && [PROTO_DELETION, PROTO_GRACE].map(u64::from).contains(&field.number)
    };
    let mut kept = Vec::with_capacity(known.len() + 32);
    for field in fields(known)?.into_iter().filter(|field| !is_ours(field)) {
        kept.extend_from_slice(known.get(field.all)?);
    }
    text(PROTO_VERSION, version, &mut kept);
    if let Some(deleted) = deleted {
        let seconds = deleted.as_second().try_into().ok()?;
        message(PROTO_DELETION, &mut kept, |time| number(1, seconds, time));
        number(PROTO_GRACE, 0, &mut kept);
    }
    let mut out = object.get(..all.start)?.to_vec();
    message(1, &mut out, |meta| meta.append(&mut kept));
    out.extend_from_slice(object.get(all.end..)?);
    Some(out)
}

/// The wire type of texts and messages.
const BYTES: u64 = 2;

/// One field of a message.
struct LeavingField {
    number: u64,
    kind: u64,
    all: Range<usize>,
    value: Range<usize>,
}

/// The fields of a message (protobuf's encoding guide, "Message Structure").
fn fields(message: &[u8]) -> Option<Vec<LeavingField>> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at < message.len() {
        let begin = at;
        let tag = varint(message, &mut at)?;
        let length = match tag & 7 {
            0 => {
                let begin = at;
                varint(message, &mut at)?;
                std::mem::replace(&mut at, begin).checked_sub(begin)?
            }
            1 => 8,
            BYTES => varint(message, &mut at)?.try_into().ok()?,
            5 => 4,
            _ => return None,
        };
        let value = at..at.checked_add(length).filter(|end| *end <= message.len())?;
        at = value.end;
        fields.push(LeavingField { number: tag >> 3, kind: tag & 7, all: begin..at, value });
    }
    Some(fields)
}

/// The number that begins at `at`, which is moved behind it.
fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    const MAX: usize = 10;
    let rest = bytes.get(*at..)?;
    let length = rest.iter().take(MAX).position(|byte| byte & 0x80 == 0)? + 1;
    *at += length;
    rest.get(..length).map(number_of)
}

/// Major type 5: a map.
const MAP: u8 = 5;

fn cbor(object: &[u8], version: &str, deleted: Option<Timestamp>) -> Option<Vec<u8>> {
    let meta = entries(object, 0)?.into_iter().find(|entry| entry.is(object, "metadata"))?;
    let known = entries(object, meta.value.start)?;
    let is_ours = |entry: &Entry| {
        entry.is(object, VERSION)
            || deleted.is_some() && (entry.is(object, DELETION) || entry.is(object, GRACE))
    };
    let kept: Vec<_> = known.iter().filter(|entry| !is_ours(entry)).collect();
    let mut out = object.get(..meta.value.start)?.to_vec();
    cbor_head(MAP, kept.len() + if deleted.is_some() { 3 } else { 1 }, &mut out);
    for entry in kept {
        out.extend_from_slice(object.get(entry.name.start..entry.value.end)?);
    }
    cbor_text(VERSION, &mut out);
    cbor_text(version, &mut out);
    if let Some(deleted) = deleted {
        cbor_text(DELETION, &mut out);
        cbor_text(&deleted.to_string(), &mut out);
        cbor_text(GRACE, &mut out);
        cbor_head(0, 0, &mut out);
    }
    out.extend_from_slice(object.get(meta.value.end..)?);
    Some(out)
}

/// One entry of a map in CBOR.
struct Entry {
    name: Range<usize>,
    value: Range<usize>,
}

impl Entry {
    /// Whether it has this name. The API server writes names as byte strings, others as texts.
    fn is(&self, object: &[u8], name: &str) -> bool {
        let bytes = object.get(self.name.clone()).unwrap_or_default();
        bytes.get(bytes.len().saturating_sub(name.len())..) == Some(name.as_bytes())
            && CborHead::read(bytes).is_ok_and(|head| {
                head.is_some_and(|head| {
                    matches!(head.major, 2 | 3) && head.length + name.len() == bytes.len()
                })
            })
    }
}

/// The entries of the map that begins at `at`.
fn entries(bytes: &[u8], at: usize) -> Option<Vec<Entry>> {
    let head = CborHead::read(bytes.get(at..)?).ok()??;
    let mut entries = Vec::new();
    let mut at = at + head.length;
    while head.major == MAP && !is_over(bytes, at, &head, entries.len())? {
        let name = at..end(bytes, at, 0)?;
        let value = name.end..end(bytes, name.end, 0)?;
        at = value.end;
        entries.push(Entry { name, value });
    }
    Some(entries)
}

/// Whether a container that has had `count` entries is over: by its head, or by a break.
fn is_over(bytes: &[u8], at: usize, head: &CborHead, count: usize) -> Option<bool> {
    const BREAK: u8 = 0xff;
    Some(match head.argument {
        Some(length) => usize::try_from(length).ok()? == count,
        None => *bytes.get(at)? == BREAK,
    })
}

/// The offset behind the value that begins at `at`.
fn end(bytes: &[u8], at: usize, depth: usize) -> Option<usize> {
    const MAX_DEPTH: usize = 64;
    if depth > MAX_DEPTH {
        return None;
    }
    let head = CborHead::read(bytes.get(at..)?).ok()??;
    let mut at = at + head.length;
    let in_each = match (head.major, head.argument) {
        (2 | 3, Some(length)) => return at.checked_add(usize::try_from(length).ok()?),
        // A tag has a value behind it.
        (6, _) => return end(bytes, at, depth + 1),
        (2..=4, _) => 1,
        (MAP, _) => 2,
        _ => return Some(at),
    };
    let mut count = 0;
    while !is_over(bytes, at, &head, count)? {
        for _ in 0..in_each {
            at = end(bytes, at, depth + 1)?;
        }
        count += 1;
    }
    let has_break = usize::from(head.argument.is_none());
    Some(at + has_break)
}

#[cfg(test)]
mod tests;
