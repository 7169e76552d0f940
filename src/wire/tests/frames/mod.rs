//! Bodies written by hand, in every encoding, from one description; a scanner's reports are
//! compared with it.

mod cbor;
mod filter;
mod items;
mod json;
mod lists;
mod protobuf;
mod random;
mod said;
mod write;

use serde_json::{Value, json};

use crate::frames::{
    Continue, Event, EventKind, Fault, FrameError, ListMeta, ListScanner, WatchScanner,
};
use crate::{Encoding, Reason, ResourceVersion, Status};

const ALL: [Encoding; 3] = [Encoding::Json, Encoding::Protobuf, Encoding::Cbor];

/// Events with the offset in the body behind each, and the error that ended the scan.
type Scan = (Vec<(usize, Event)>, Option<FrameError>);

fn scan(encoding: Encoding, chunks: &[&[u8]]) -> Scan {
    let mut scanner = WatchScanner::new(encoding).expect("a stream");
    let mut events = Vec::new();
    let mut before = 0;
    for chunk in chunks {
        for event in scanner.feed(chunk) {
            match event {
                Ok(end) => events.push((before + end.at, end.event)),
                Err(error) => return (events, Some(error)),
            }
        }
        before += chunk.len();
    }
    (events, None)
}

/// All events of a well-formed body that ends behind an event.
fn events(encoding: Encoding, body: &[u8]) -> Vec<Event> {
    let mut scanner = WatchScanner::new(encoding).expect("a stream");
    assert!(scanner.is_between());
    let found: Result<Vec<_>, _> = scanner.feed(body).map(|end| end.map(|end| end.event)).collect();
    assert!(scanner.is_between(), "{}", String::from_utf8_lossy(body));
    found.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(body)))
}

fn json_event(body: &str) -> Event {
    let found = events(Encoding::Json, body.as_bytes());
    assert_eq!(found.len(), 1, "{body}");
    found[0]
}

fn fault(encoding: Encoding, body: &[u8]) -> Option<Fault> {
    scan(encoding, &[body]).1.map(|error| error.fault)
}

fn event(kind: EventKind, position: u128) -> Event {
    Event { kind, resource_version: ResourceVersion::At(position), initial_events_end: false }
}

fn unset(kind: EventKind) -> Event {
    Event { kind, resource_version: ResourceVersion::Unset, initial_events_end: false }
}

fn encode(encoding: Encoding, value: &Value) -> Vec<u8> {
    match encoding {
        Encoding::Protobuf => write::proto(value),
        Encoding::Cbor => {
            let mut out = Vec::new();
            write::cbor(value, 4, &mut out);
            out
        }
        _ => format!("{value}\n").into_bytes(),
    }
}

fn pod(kind: &str, version: &str) -> Value {
    json!({"type": kind, "object": {
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "labels": {"a": "b"}, "resourceVersion": version,
            "ownerReferences": [{"name": "x", "resourceVersion": "no"}]},
        "spec": {"metadata": {"resourceVersion": "666"}, "containers": [{"image": "i\"\\{["}]},
        "status": {"resourceVersion": "667", "type": "no"},
    }})
}

#[test]
fn each_type_and_position_in_each_encoding() {
    for encoding in ALL {
        let mut body = Vec::new();
        let mut expected = Vec::new();
        for (position, (name, kind)) in [
            ("ADDED", EventKind::Added),
            ("MODIFIED", EventKind::Modified),
            ("DELETED", EventKind::Deleted),
            ("BOOKMARK", EventKind::Bookmark),
            ("ERROR", EventKind::Error),
            ("RENAMED", EventKind::Unknown),
            ("ADDEDADDEDADDEDADDED", EventKind::Unknown),
            ("added", EventKind::Unknown),
        ]
        .into_iter()
        .enumerate()
        {
            let position = position as u128 + 340_282_366_920_938_463_463_374_607_431_768_211_440;
            body.extend(encode(encoding, &pod(name, &position.to_string())));
            expected.push((body.len(), event(kind, position)));
        }
        assert_eq!(scan(encoding, &[&body]), (expected, None), "{encoding:?}");
    }
}

#[test]
fn t32_versions_that_are_no_position() {
    for encoding in ALL {
        for (version, expected) in [
            ("", ResourceVersion::Unset),
            ("0", ResourceVersion::Zero),
            ("abc", ResourceVersion::Opaque),
            ("0123", ResourceVersion::Opaque),
            ("340282366920938463463374607431768211456", ResourceVersion::Opaque),
            ("1111111111111111111111111111111111111111111111111111111", ResourceVersion::Opaque),
        ] {
            let found = events(encoding, &encode(encoding, &pod("ADDED", version)));
            assert_eq!(found[0].resource_version, expected, "{encoding:?} {version}");
        }
    }
    for (version, expected) in [
        ("7", ResourceVersion::Opaque),
        ("null", ResourceVersion::Unset),
        ("{}", ResourceVersion::Opaque),
    ] {
        let body = format!(r#"{{"object":{{"metadata":{{"resourceVersion":{version}}}}}}}"#);
        assert_eq!(json_event(&body).resource_version, expected, "{body}");
    }
    let null = json!({"type": "ADDED", "object": {"metadata": {"resourceVersion": null}}});
    let mut cbor = encode(Encoding::Cbor, &null);
    assert_eq!(events(Encoding::Cbor, &cbor), [unset(EventKind::Added)]);
    // {"type": undefined}
    cbor.splice(.., [0xa1, 0x44, b't', b'y', b'p', b'e', 0xf7]);
    assert_eq!(events(Encoding::Cbor, &cbor), [unset(EventKind::Unknown)]);
}

#[test]
fn t01_the_bookmark_that_ends_the_initial_events() {
    let with = |kind: &str, value: Value| {
        json!({"type": kind, "object": {"metadata": {
            "annotations": {"a": "true", "k8s.io/initial-events-end": value, "z": "true"}, "resourceVersion": "5"}}})
    };
    for encoding in ALL {
        let ends = |value: &Value| events(encoding, &encode(encoding, value))[0].initial_events_end;
        assert!(ends(&with("BOOKMARK", "true".into())), "{encoding:?}");
        assert!(!ends(&with("BOOKMARK", "True".into())));
        assert!(!ends(&with("BOOKMARK", "".into())));
        assert!(!ends(&with("BOOKMARK", "true, but far too long".into())));
        assert!(!ends(&with("ADDED", "true".into())), "any object may have the annotation");
        assert!(!ends(&pod("BOOKMARK", "5")));
        let two = [
            encode(encoding, &with("BOOKMARK", "true".into())),
            encode(encoding, &pod("BOOKMARK", "6")),
        ];
        let both = events(encoding, &two.concat());
        assert_eq!([both[0].initial_events_end, both[1].initial_events_end], [true, false]);
    }
    // Name and value of a protobuf map's entry may come in any order.
    let entry = write::field(
        12,
        &[write::field(2, b"true"), write::field(1, b"k8s.io/initial-events-end")].concat(),
    );
    let bookmark = write::proto_event("BOOKMARK", &entry);
    assert!(events(Encoding::Protobuf, &bookmark)[0].initial_events_end);
    // An entry without a name has the empty name.
    let unnamed = write::field(12, &write::field(2, b"true"));
    let false_one = write::annotation("k8s.io/initial-events-end", "false");
    let bookmark = write::proto_event("BOOKMARK", &[false_one, unnamed].concat());
    assert!(!events(Encoding::Protobuf, &bookmark)[0].initial_events_end);
}

#[test]
fn t40_tables_have_their_own_metadata() {
    let table = |kind: &str, rows: Value| {
        json!({"type": kind, "object": {"kind": "Table", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "42"}, "columnDefinitions": [{"name": "Name"}], "rows": rows}})
    };
    let row = json!([{"cells": ["p", 1, null], "object": {"kind": "PartialObjectMetadata",
        "metadata": {"resourceVersion": "41", "annotations": {"k8s.io/initial-events-end": "true"}}}}]);
    for style in 0..8 {
        for (rows, ends) in [
            (row.clone(), true),
            (json!([]), false),
            (json!(null), false),
            (json!([null, 1, "x"]), false),
            (json!({}), false),
        ] {
            let table = table("BOOKMARK", rows);
            let mut cbor = Vec::new();
            write::cbor(&table, style, &mut cbor);
            let expected = Event { initial_events_end: ends, ..event(EventKind::Bookmark, 42) };
            assert_eq!(events(Encoding::Cbor, &cbor), [expected]);
            assert_eq!(json_event(&table.to_string()), expected);
        }
    }
    assert_eq!(json_event(&table("ADDED", row).to_string()), event(EventKind::Added, 42));
}

#[test]
fn t03_an_error_event_fits_only_at_a_boundary() {
    let status = Status::new(Reason::Expired, "the policy changed");
    for encoding in ALL {
        let first = encode(encoding, &pod("ADDED", "1"));
        let mut scanner = WatchScanner::new(encoding).expect("a stream");
        assert!(scanner.is_between());
        for (position, byte) in first.iter().enumerate() {
            let ended = scanner.feed(&[*byte]).count();
            let left = &first[position + 1..];
            let whole = left.is_empty() || left == b"\n";
            assert_eq!(scanner.is_between(), whole, "{encoding:?} {position}");
            assert_eq!(ended == 1, whole && *byte != b'\n');
            assert_eq!(scanner.separator(), if left == b"\n" { b"\n".as_slice() } else { b"" });
        }
        let body = [first.as_slice(), scanner.separator(), &status.error_event(encoding)].concat();
        let kinds: Vec<_> = events(encoding, &body).iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Added, EventKind::Error]);
    }
    assert!(WatchScanner::new(Encoding::Yaml).is_none());
}

fn list(encoding: Encoding, body: &[u8], size: usize) -> Result<ListMeta, FrameError> {
    let mut scanner = ListScanner::new(encoding).expect("a list");
    for chunk in body.chunks(size.max(1)) {
        scanner.feed(chunk)?;
    }
    scanner.finish()
}
