//! The facts of objects, against serde_json, in lists and watches of every encoding.

mod cbor;
mod json;
mod protobuf;

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    ALL,
    filter::cbor,
    random::{any_value, pretty, split},
    write,
};
use crate::{
    Encoding, ResourceVersion,
    frames::{
        EventKind, Fault, FrameError, ListFilter, ListItems, ListScanner, Verdict, WatchFilter,
        WatchScanner,
    },
    object::{Object, Owner, Reader, Wanted},
};

const EVERYTHING: Wanted = Wanted { version: true, labels: true, owners: true };

/// An object's facts with texts of their own.
#[derive(Debug, Default, PartialEq)]
struct Said {
    texts: [String; 5],
    version: String,
    labels: Option<BTreeMap<String, String>>,
    /// Group and version, kind, name, uid; whether it is the controller.
    owners: Option<Vec<([String; 4], bool)>>,
}

impl Said {
    fn new(object: &Object<'_>) -> Self {
        let Object { namespace, name, uid, kind, api_version, .. } = *object;
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let labels: Option<BTreeMap<_, _>> =
            object.labels.map(|labels| labels.iter().map(owned).collect());
        for (key, value) in labels.iter().flatten() {
            assert_eq!(object.labels.unwrap().get(key), Some(value.as_str()));
        }
        assert_eq!(object.labels.and_then(|labels| labels.get("no such")), None);
        let owners = object.owners.map(|owners| {
            let owner = |owner: Owner<'_>| {
                let texts = [owner.api_version, owner.kind, owner.name, owner.uid];
                (texts.map(str::to_owned), owner.is_controller)
            };
            owners.iter().map(owner).collect()
        });
        Self {
            texts: [namespace, name, uid, kind, api_version].map(str::to_owned),
            version: object.resource_version.to_owned(),
            labels,
            owners,
        }
    }

    /// The facts as serde_json reads them.
    fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &object["metadata"];
        let owners = meta["ownerReferences"].as_array().into_iter().flatten();
        let labels = meta["labels"].as_object().into_iter().flatten();
        let owner = |owner: &Value| {
            let texts = ["apiVersion", "kind", "name", "uid"].map(|name| text(&owner[name]));
            (texts, owner["controller"] == true)
        };
        Self {
            texts: [
                &meta["namespace"],
                &meta["name"],
                &meta["uid"],
                &object["kind"],
                &object["apiVersion"],
            ]
            .map(text),
            version: text(&meta["resourceVersion"]),
            labels: Some(labels.map(|(key, value)| (key.clone(), text(value))).collect()),
            owners: Some(owners.map(owner).collect()),
        }
    }

    /// The facts without those that were not wanted.
    fn only(self, wanted: Wanted) -> Self {
        Self {
            texts: self.texts,
            version: if wanted.version { self.version } else { String::new() },
            labels: self.labels.filter(|_| wanted.labels),
            owners: self.owners.filter(|_| wanted.owners),
        }
    }
}

/// The object in protobuf, with fields that are not read.
fn proto(object: &Value) -> Vec<u8> {
    let text = |value: &Value| value.as_str().unwrap_or_default().as_bytes().to_vec();
    let meta = &object["metadata"];
    let mut fields = write::noise();
    for (number, name) in [(1, "name"), (3, "namespace"), (5, "uid"), (6, "resourceVersion")] {
        if meta[name].is_string() {
            fields.extend(write::field(number, &text(&meta[name])));
        }
    }
    for (key, value) in meta["labels"].as_object().into_iter().flatten() {
        let entry = [write::field(1, key.as_bytes()), write::field(2, &text(value))];
        fields.extend(write::field(11, &entry.concat()));
    }
    fields.extend(write::annotation("labels", "no"));
    for owner in meta["ownerReferences"].as_array().into_iter().flatten() {
        let mut reference = write::noise();
        for (number, name) in [(1, "kind"), (3, "name"), (4, "uid"), (5, "apiVersion")] {
            reference.extend(write::field(number, &text(&owner[name])));
        }
        if let Some(is_controller) = owner["controller"].as_bool() {
            reference.extend([6 << 3, u8::from(is_controller), 7 << 3, 1]);
        }
        fields.extend(write::field(13, &reference));
    }
    [write::field(1, &fields), write::noise()].concat()
}

/// The object alone, as a write carries it.
fn alone(encoding: Encoding, object: &Value, style: u8) -> Vec<u8> {
    match encoding {
        Encoding::Protobuf => write::envelope(&proto(object)),
        // Without tags.
        _ => encoded(encoding, object, style & 3),
    }
}

fn encoded(encoding: Encoding, value: &Value, style: u8) -> Vec<u8> {
    match encoding {
        Encoding::Json => pretty(value, style),
        _ => cbor(value, style & 5),
    }
}

/// A list of the objects; a Table of them if it is to have rows.
fn list(encoding: Encoding, objects: &[Value], style: u8, has_rows: bool) -> Vec<u8> {
    if encoding == Encoding::Protobuf {
        let items: Vec<u8> =
            objects.iter().flat_map(|object| write::field(2, &proto(object))).collect();
        return write::envelope(&[write::field(1, &write::field(2, b"77")), items].concat());
    }
    let rows = objects.iter().map(|object| json!({"cells": [1], "object": object}));
    let mut list = json!({"kind": "PodList", "metadata": {"resourceVersion": "77"}});
    match has_rows {
        true => list["rows"] = rows.collect(),
        false => list["items"] = objects.into(),
    }
    encoded(encoding, &list, style)
}

fn watch(encoding: Encoding, objects: &[Value], style: u8) -> Vec<u8> {
    let event = |object: &Value| {
        if encoding == Encoding::Protobuf {
            let types = [write::field(1, b"v1"), write::field(2, b"Pod")];
            let envelope = [write::field(1, &types.concat()), write::field(2, &proto(object))];
            let object = write::field(1, &[b"k8s\0".to_vec(), envelope.concat()].concat());
            return write::frame(&[write::field(1, b"ADDED"), write::field(2, &object)].concat());
        }
        encoded(encoding, &json!({"type": "ADDED", "object": object}), style)
    };
    objects.iter().flat_map(event).collect()
}

fn in_list(encoding: Encoding, wanted: Wanted, chunks: &[&[u8]]) -> Result<Vec<Said>, FrameError> {
    let mut found = Vec::new();
    let mut items = ListItems::wanting(encoding, wanted).expect("a list");
    for chunk in chunks {
        items.feed(chunk, &mut |item| found.push(Said::new(&item.object)))?;
    }
    items.finish()?;
    let mut judged = Vec::new();
    let mut filter = ListFilter::wanting(encoding, wanted).expect("a list");
    let mut judge = |object: &Object<'_>| {
        judged.push(Said::new(object));
        Verdict::Drop
    };
    for chunk in chunks {
        filter.feed(chunk, &mut judge, &mut Vec::new())?;
    }
    assert_eq!(judged, found);
    Ok(found)
}

fn in_watch(encoding: Encoding, wanted: Wanted, chunks: &[&[u8]]) -> Result<Vec<Said>, FrameError> {
    let mut found = Vec::new();
    let mut filter = WatchFilter::wanting(encoding, wanted).expect("a stream");
    let mut judge = |object: &Object<'_>| {
        found.push(Said::new(object));
        Verdict::Drop
    };
    for chunk in chunks {
        let mut rest = *chunk;
        while let Some(passed) = filter.next(rest, &mut judge, &mut Vec::new())? {
            rest = &rest[passed.at..];
        }
    }
    Ok(found)
}

/// The name in an object that stands alone.
fn named(encoding: Encoding, body: &[u8]) -> Result<String, Fault> {
    let mut reader = Reader::new(encoding, EVERYTHING);
    reader.read(body).map(|object| object.name.to_owned())
}

/// The objects that a scanner of a list shows, which lets everything pass.
fn shown_in_list(
    encoding: Encoding,
    wanted: Wanted,
    chunks: &[&[u8]],
) -> Result<Vec<Option<Said>>, FrameError> {
    let mut found = Vec::new();
    let mut scanner = ListScanner::showing(encoding, wanted).expect("a list");
    for chunk in chunks {
        scanner
            .feed_each(chunk, &mut |object| found.push(object.map(|object| Said::new(&object))))?;
    }
    assert_eq!(scanner.finish()?.resource_version, ResourceVersion::At(77));
    Ok(found)
}

/// The objects that a scanner and a filter of a watch show.
fn shown_in_watch(encoding: Encoding, wanted: Wanted, chunks: &[&[u8]]) -> Vec<Option<Said>> {
    let mut found = Vec::new();
    let mut scanner = WatchScanner::wanting(encoding, wanted).expect("a stream");
    for chunk in chunks {
        let mut events = scanner.feed(chunk);
        while let Some(end) = events.next() {
            assert_eq!(end.expect("an event").event.kind, EventKind::Added);
            found.push(events.object().map(|object| Said::new(&object)));
        }
    }
    let mut filtered = Vec::new();
    let mut filter = WatchFilter::wanting(encoding, wanted).expect("a stream");
    for mut rest in chunks.iter().copied() {
        while let Ok(Some(passed)) = filter.next(rest, &mut |_| Verdict::Keep, &mut Vec::new()) {
            filtered.push(filter.object().map(|object| Said::new(&object)));
            rest = &rest[passed.at..];
        }
    }
    let known: Vec<_> = found.iter().take_while(|said| said.is_some()).collect();
    assert_eq!(filtered.iter().collect::<Vec<_>>(), known);
    found
}

/// Texts with the characters that matter to an encoding.
fn text(limit: usize) -> impl Strategy<Value = String> {
    let cut = move |text: String| {
        let end = (0..=limit).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text[..end.min(text.len())].to_owned()
    };
    prop_oneof![
        4 => "[a-z./]{1,20}".prop_map(cut),
        1 => "\\PC{0,40}".prop_map(cut),
        1 => prop::sample::select(vec!["labels", "name", "\"}]{", "\\", "\u{1f600}", ""]).prop_map(str::to_owned),
        1 => Just("k".repeat(limit)),
    ]
}

fn any_object() -> impl Strategy<Value = Value> {
    let labels = prop::option::of(prop::collection::btree_map(text(317), text(63), 0..6));
    let owner = (text(99), text(99), prop::option::of(any::<bool>()), any_value()).prop_map(
        |(kind, name, controller, noise)| {
            json!({"apiVersion": "a/v1", "kind": kind, "name": name, "uid": "u-" , "controller": controller, "noise": noise})
        },
    );
    let owners = prop::option::of(prop::collection::vec(owner, 0..3));
    (labels, owners, text(99), "[0-9]{0,3}|[a-z=]{40,60}", any_value()).prop_map(|(labels, owners, name, version, noise)| {
        let mut object = json!({"kind": "Pod", "apiVersion": "v1", "spec": {"metadata": {"labels": noise}},
            "metadata": {"name": name, "namespace": "team", "uid": "u", "resourceVersion": version,
                "annotations": {"labels": "no"}, "managedFields": [{"f:labels": noise}]}});
        let meta = &mut object["metadata"];
        if let Some(labels) = labels {
            meta["labels"] = json!(labels);
        }
        if let Some(owners) = owners {
            meta["ownerReferences"] = json!(owners);
        }
        object
    })
}

fn any_wanted() -> impl Strategy<Value = Wanted> {
    let wanted = |(version, labels, owners)| Wanted { version, labels, owners };
    any::<(bool, bool, bool)>().prop_map(wanted)
}

proptest! {
    #[test]
    fn t35_any_split_of_lists_and_watches_says_what_serde_finds(
        objects in prop::collection::vec(any_object(), 1..4),
        wanted in any_wanted(),
        style in 0u8..8,
        has_rows in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        for encoding in ALL {
            let said = |has_kind: bool| objects.iter().map(|object| {
                let mut said = Said::of(object).only(wanted);
                if !has_kind {
                    said.texts[3].clear();
                    said.texts[4].clear();
                }
                said
            }).collect::<Vec<_>>();
            let is_proto = encoding == Encoding::Protobuf;
            let body = list(encoding, &objects, style, has_rows);
            let has_kind = !is_proto && !has_rows;
            prop_assert_eq!(in_list(encoding, wanted, &split(&body, &cuts)), Ok(said(has_kind)));
            let shown = |has_kind| said(has_kind).into_iter().map(Some).collect::<Vec<_>>();
            prop_assert_eq!(shown_in_list(encoding, wanted, &split(&body, &cuts)), Ok(shown(has_kind)));
            let body = watch(encoding, &objects, style);
            prop_assert_eq!(in_watch(encoding, wanted, &split(&body, &cuts)), Ok(said(true)));
            prop_assert_eq!(shown_in_watch(encoding, wanted, &split(&body, &cuts)), shown(true));
            let bytes: Vec<_> = body.chunks(1).collect();
            prop_assert_eq!(in_watch(encoding, wanted, &bytes), Ok(said(true)));
            let mut reader = Reader::new(encoding, wanted);
            for (object, said) in objects.iter().zip(said(true)) {
                let body = alone(encoding, object, style);
                prop_assert_eq!(reader.read(&body).map(|object| Said::new(&object)), Ok(said));
                // A protobuf object may end behind any field.
                let cut = cuts.first().map_or(0, |cut| cut.index(body.trim_ascii_end().len()));
                let is_whole = reader.read(&body[..cut]).is_ok();
                prop_assert!(!is_whole || encoding == Encoding::Protobuf);
            }
        }
    }

    #[test]
    fn rows_of_a_watched_table_say_what_serde_finds(
        objects in prop::collection::vec(any_object(), 1..4),
        wanted in any_wanted(),
        style in 0u8..2,
    ) {
        let rows: Vec<_> = objects.iter().map(|object| json!({"cells": [1], "object": object})).collect();
        let table = json!({"type": "ADDED", "object": {"kind": "Table", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "5"}, "rows": rows}});
        let mut expected: Vec<_> = objects.iter().map(|object| Said::of(object).only(wanted)).collect();
        expected.iter_mut().flat_map(|said| &mut said.texts[3..]).for_each(String::clear);
        prop_assert_eq!(in_watch(Encoding::Json, wanted, &[&pretty(&table, style)]), Ok(expected));
    }
}

#[test]
fn t44_more_labels_than_are_held_are_unknown() {
    let object = |count: usize, key: usize| {
        let key = |at: usize| format!("{at:0key$}");
        let labels: BTreeMap<_, _> = (0..count).map(|at| (key(at), "")).collect();
        json!({"metadata": {"name": "x", "labels": labels}})
    };
    for (count, key, is_known) in
        [(300, 100, true), (150, 317, true), (250, 317, false), (2000, 4, false)]
    {
        for encoding in ALL {
            let body = watch(encoding, &[object(count, key)], 0);
            let said = in_watch(encoding, EVERYTHING, &[&body]);
            assert_eq!(
                said.as_ref().ok().and_then(|said| Some(said[0].labels.as_ref()?.len())),
                is_known.then_some(count)
            );
            assert!(in_watch(encoding, Wanted::default(), &[&body]).is_ok());
        }
    }
    let owners: Vec<_> = (0..1000).map(|_| json!({"uid": "u"})).collect();
    let object = json!({"metadata": {"name": "x", "ownerReferences": owners}});
    for encoding in ALL {
        let body = watch(encoding, std::slice::from_ref(&object), 0);
        assert!(in_watch(encoding, EVERYTHING, &[&body]).is_err());
    }
}
