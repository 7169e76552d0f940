//! The facts of objects, against serde_json, in lists and watches of every encoding.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    ALL,
    filter::cbor,
    random::{any_value, pretty, split},
    write,
};
use crate::wire::{
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
    version: ResourceVersion,
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
            version: object.resource_version,
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
            version: ResourceVersion::parse(text(&meta["resourceVersion"]).as_bytes()),
            labels: Some(labels.map(|(key, value)| (key.clone(), text(value))).collect()),
            owners: Some(owners.map(owner).collect()),
        }
    }

    /// The facts without those that were not wanted.
    fn only(self, wanted: Wanted) -> Self {
        Self {
            texts: self.texts,
            version: if wanted.version { self.version } else { ResourceVersion::Unset },
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
    (labels, owners, text(99), "[0-9]{0,3}", any_value()).prop_map(|(labels, owners, name, version, noise)| {
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

/// The fault of a list and of a watch of this one object.
fn refused(wanted: Wanted, object: &str) -> [Option<Fault>; 2] {
    let list = format!(r#"{{"items":[{object}]}}"#);
    let watch = format!(r#"{{"type":"ADDED","object":{object}}}"#);
    [
        in_list(Encoding::Json, wanted, &[list.as_bytes()]).err().map(|error| error.fault),
        in_watch(Encoding::Json, wanted, &[watch.as_bytes()]).err().map(|error| error.fault),
    ]
}

#[test]
fn t44_what_says_its_labels_or_owners_in_two_ways_is_refused_where_they_matter() {
    let none = Wanted::default();
    let labels = Wanted { labels: true, ..none };
    let owners = Wanted { owners: true, ..none };
    let version = Wanted { version: true, ..none };
    let (long, longer) = ("v".repeat(63), "v".repeat(64));
    let (key, longer_key) = ("k".repeat(317), "k".repeat(318));
    for (wanted, meta, is_refused) in [
        (labels, r#""labels":{"a":"1","a":"2"}"#, true),
        (labels, r#""labels":{"a":"1","b":"1","\u0061":"1"}"#, true),
        (labels, r#""labels":{"a":"1"},"labels":{}"#, true),
        (labels, r#""labels":{"a":null}"#, true),
        (labels, r#""labels":{"a":7}"#, true),
        (labels, r#""labels":{"a":{}}"#, true),
        (labels, r#""labels":["a"]"#, true),
        (labels, r#""labels":"a""#, true),
        (labels, r#""labels":null"#, false),
        (labels, r#""labels":{}"#, false),
        (labels, &format!(r#""labels":{{"a":"{long}"}}"#), false),
        (labels, &format!(r#""labels":{{"a":"{longer}"}}"#), true),
        (labels, &format!(r#""labels":{{"{key}":""}}"#), false),
        (labels, &format!(r#""labels":{{"{longer_key}":""}}"#), true),
        (owners, r#""ownerReferences":[{"uid":"1"}],"ownerReferences":[]"#, true),
        (owners, r#""ownerReferences":[{"uid":"1","uid":"1"}]"#, true),
        (owners, r#""ownerReferences":[{"uid":1}]"#, true),
        (owners, r#""ownerReferences":[{"controller":true,"controller":false}]"#, true),
        (owners, r#""ownerReferences":[{"controller":"true"}]"#, true),
        (owners, r#""ownerReferences":[{"controller":null,"uid":null}]"#, false),
        (owners, r#""ownerReferences":[null]"#, true),
        (owners, r#""ownerReferences":["a"]"#, true),
        (owners, r#""ownerReferences":{}"#, true),
        (owners, r#""ownerReferences":null"#, false),
        (version, r#""resourceVersion":"1","resourceVersion":"1""#, true),
        (version, r#""resourceVersion":1"#, true),
        (version, r#""resourceVersion":null"#, false),
    ] {
        let object = format!(r#"{{"metadata":{{"name":"x",{meta}}}}}"#);
        let fault = is_refused.then_some(Fault::Item);
        assert_eq!(refused(wanted, &object), [fault; 2], "{meta}");
        assert_eq!(refused(none, &object), [None; 2], "{meta}");
    }
    let broken = b"{\"items\":[{\"metadata\":{\"labels\":{\"a\":\"\xff\"}}}]}".as_slice();
    let fault = |wanted| in_list(Encoding::Json, wanted, &[broken]).err().map(|error| error.fault);
    assert_eq!([fault(labels), fault(none)], [Some(Fault::Item), None]);
}

#[test]
fn t44_labels_in_odd_protobuf() {
    let entry = |fields: &[Vec<u8>]| write::field(11, &fields.concat());
    let (key, value) = (write::field(1, b"a"), write::field(2, b"1"));
    let said = |entries: &[Vec<u8>]| {
        let body = write::proto_event("ADDED", &entries.concat());
        in_watch(Encoding::Protobuf, EVERYTHING, &[&body]).map(|mut said| said.remove(0).labels)
    };
    let labels = |all: &[(&str, &str)]| {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Ok(Some(all.iter().map(owned).collect()))
    };
    assert_eq!(said(&[entry(&[value.clone(), key.clone()])]), labels(&[("a", "1")]));
    assert_eq!(said(&[entry(&[])]), labels(&[("", "")]));
    assert_eq!(said(&[entry(std::slice::from_ref(&key))]), labels(&[("a", "")]));
    let twice = [entry(&[key.clone(), value.clone()]), entry(std::slice::from_ref(&key))];
    assert!(said(&twice).is_err());
    assert!(said(&[entry(&[key.clone(), key, value])]).is_err());
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

#[test]
fn t44_a_write_that_readers_decode_differently_is_refused() {
    let mut json = Reader::new(Encoding::Json, EVERYTHING);
    let plain = r#"{"metadata":{"name":"x","labels":null,"uid":null,"ownerReferences":null}}"#;
    for body in [plain, &format!(" \n{plain}\r\n\t ")] {
        assert_eq!(json.read(body.as_bytes()).map(|object| object.name), Ok("x"));
    }
    for meta in [
        r#""labels":{"a":"1"},"labels":null"#,
        r#""labels":null,"labels":{"a":"1"}"#,
        r#""namespace":"a","namespace":null"#,
        r#""namespace":null,"namespace":"a""#,
        r#""resourceVersion":null,"resourceVersion":"1""#,
        r#""ownerReferences":null,"ownerReferences":[]"#,
        r#""ownerReferences":[{"controller":null,"controller":true}]"#,
        r#""ownerReferences":[{"uid":null,"uid":"1"}]"#,
    ] {
        let body = format!(r#"{{"metadata":{{"name":"x",{meta}}}}}"#);
        assert_eq!(json.read(body.as_bytes()).err(), Some(Fault::Item), "{meta}");
    }
    for (body, fault) in [
        (r#"{"metadata":{"name":"x"},"metadata":null}"#, Fault::Item),
        (r#"{"metadata":null,"metadata":{"name":"x"}}"#, Fault::Item),
        (r#"{"metadata":{"name":"x"},"kind":"A","kind":null}"#, Fault::Item),
        (r#"{"metadata":{}} {}"#, Fault::Unexpected),
        (r#"{"metadata":{}}x"#, Fault::Unexpected),
        ("{}", Fault::Item),
        ("[]", Fault::NotAnObject),
        (r#"{"metadata":{}"#, Fault::Truncated),
        (" ", Fault::Truncated),
        ("", Fault::Truncated),
    ] {
        assert_eq!(json.read(body.as_bytes()).err(), Some(fault), "{body}");
    }
    assert_eq!(Reader::new(Encoding::Yaml, EVERYTHING).read(b"{}").err(), Some(Fault::NotAnObject));
}

#[test]
fn t44_a_binary_write_that_readers_decode_differently_is_refused() {
    let read = |encoding, body: &[u8]| {
        let mut reader = Reader::new(encoding, EVERYTHING);
        reader.read(body).map(|object| object.name.to_owned())
    };
    let meta = write::field(1, &write::field(1, b"x"));
    let fault = |body: &[u8]| read(Encoding::Protobuf, body).err();
    assert_eq!(read(Encoding::Protobuf, &write::envelope(&meta)), Ok("x".to_owned()));
    for (fields, expected) in [
        (vec![write::field(2, &meta), write::field(2, b"")], Fault::Item),
        (vec![write::field(2, b""), write::field(2, &meta)], Fault::Item),
        (vec![write::field(2, &meta.repeat(2))], Fault::Item),
        (vec![write::field(2, b"")], Fault::Item),
        (vec![], Fault::Item),
        (vec![vec![0x12, 9, 0x0a, 1]], Fault::Truncated),
    ] {
        assert_eq!(
            fault(&[b"k8s\0".to_vec(), fields.concat()].concat()),
            Some(expected),
            "{fields:?}"
        );
    }
    assert_eq!(
        [fault(b""), fault(b"k8"), fault(b"{}")],
        [Some(Fault::Truncated), Some(Fault::Truncated), Some(Fault::Magic)]
    );

    let text = |text: &str| cbor(&text.into(), 0);
    // The value of the name, and what stands before it and behind the object.
    let object = |before: &[u8], key: &[u8], behind: &[u8]| {
        let meta = [&[0xa1][..], &text("name"), before, &text("x")].concat();
        [&[0xd9, 0xd9, 0xf7, 0xa2], key, &[0xf6], &text("metadata"), &meta, behind].concat()
    };
    let odd = text("spec");
    assert_eq!(read(Encoding::Cbor, &object(&[], &odd, &[])), Ok("x".to_owned()));
    assert_eq!(read(Encoding::Cbor, &object(&[], &odd, &[0xf6])).err(), Some(Fault::Unexpected));
    // Tags 22 and 23: text in base64, and in base16.
    assert_eq!(read(Encoding::Cbor, &object(&[0xd6], &odd, &[])).err(), Some(Fault::Item));
    let tagged = [&[0xd7][..], &odd].concat();
    assert_eq!(read(Encoding::Cbor, &object(&[], &tagged, &[])).err(), Some(Fault::Item));
    assert_eq!(read(Encoding::Cbor, &object(&[], &[7], &[])).err(), Some(Fault::Item));
    // Before a value that is not read, a tag changes nothing.
    let mut skipped = odd;
    skipped.push(0xc1);
    assert_eq!(read(Encoding::Cbor, &object(&[], &skipped, &[])), Ok("x".to_owned()));
}

#[test]
fn t44_what_cannot_be_read_in_one_way_is_shown_as_unknown() {
    let objects = [
        r#"{"metadata":{"name":"a"}}"#,
        r#"{"metadata":{"name":"b","labels":{"k":"1","k":"2"}}}"#,
        r#"{"metadata":{"name":"c"}}"#,
    ];
    let names = |shown: Vec<Option<Said>>| -> Vec<_> {
        shown.into_iter().map(|said| said.map(|said| said.texts[1].clone())).collect()
    };
    let list =
        format!(r#"{{"items":[{}],"metadata":{{"resourceVersion":"77"}}}}"#, objects.join(","));
    let watch = objects.map(|object| format!(r#"{{"type":"ADDED","object":{object}}}"#)).concat();
    for (wanted, second) in [(Wanted::default(), Some("b")), (EVERYTHING, None)] {
        let expected = [Some("a"), second, Some("c")].map(|name| name.map(str::to_owned));
        let shown = shown_in_list(Encoding::Json, wanted, &[list.as_bytes()]).expect("a list");
        assert_eq!(names(shown), expected);
        assert_eq!(names(shown_in_watch(Encoding::Json, wanted, &[watch.as_bytes()])), expected);
    }
    for end in 1..list.len() {
        assert!(shown_in_list(Encoding::Json, EVERYTHING, &[&list.as_bytes()[..end]]).is_err());
    }
}

#[test]
fn items_that_nobody_asked_for_are_not_read() {
    let body =
        br#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},"no item"]}"#;
    let mut scanner = ListScanner::new(Encoding::Json).expect("a list");
    let known = scanner.feed_each(body, &mut |_| panic!("an item"));
    assert_eq!(known.expect("a list").expect("known").resource_version, ResourceVersion::At(7));
    let body = br#"{"items":[{"metadata":{"name":"a"}}],"metadata":{"resourceVersion":"7"}}"#;
    let mut scanner = ListScanner::new(Encoding::Json).expect("a list");
    assert!(scanner.feed_each(body, &mut |_| panic!("an item")).is_ok());
}
