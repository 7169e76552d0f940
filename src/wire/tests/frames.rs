//! Bodies are written here by hand, in every encoding, from one description; what a scanner says is
//! compared with it.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::wire::frames::{
    Continue, Event, EventKind, Fault, FrameError, ListMeta, ListScanner, WatchScanner,
};
use crate::wire::{Encoding, Reason, ResourceVersion, Status};

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

/// All events of a body that is well-formed and ends at a boundary.
fn events(encoding: Encoding, body: &[u8]) -> Vec<Event> {
    let mut scanner = WatchScanner::new(encoding).expect("a stream");
    assert!(scanner.at_boundary());
    let found: Result<Vec<_>, _> = scanner.feed(body).map(|end| end.map(|end| end.event)).collect();
    assert!(scanner.at_boundary(), "{}", String::from_utf8_lossy(body));
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

mod write {
    use super::Value;

    /// Every string as bytes or as text, every length definite or not, tags in front: as `style`
    /// has its bits.
    pub(super) fn cbor(value: &Value, style: u8, out: &mut Vec<u8>) {
        if style & 4 != 0 {
            out.extend_from_slice(&[0xd9, 0xd9, 0xf7]);
        }
        let indefinite = style & 1 != 0;
        match value {
            Value::Null => out.push(0xf6),
            Value::Bool(truth) => out.push(0xf4 + u8::from(*truth)),
            Value::Number(number) => match number.as_u64() {
                Some(number) => head(0, number, out),
                None => {
                    out.push(0xfb);
                    out.extend_from_slice(&number.as_f64().expect("a number").to_be_bytes());
                }
            },
            Value::String(text) => {
                let major = if style & 2 != 0 { 3 } else { 2 };
                if indefinite {
                    out.push(major << 5 | 31);
                    for piece in text.as_bytes().chunks(3) {
                        head(major, piece.len() as u64, out);
                        out.extend_from_slice(piece);
                    }
                    out.push(0xff);
                } else {
                    head(major, text.len() as u64, out);
                    out.extend_from_slice(text.as_bytes());
                }
            }
            Value::Array(items) => {
                open(4, items.len(), indefinite, out);
                items.iter().for_each(|item| cbor(item, style, out));
                out.extend(indefinite.then_some(0xff));
            }
            Value::Object(fields) => {
                open(5, fields.len(), indefinite, out);
                for (name, value) in fields {
                    cbor(&Value::from(name.as_str()), style, out);
                    cbor(value, style, out);
                }
                out.extend(indefinite.then_some(0xff));
            }
        }
    }

    fn open(major: u8, items: usize, indefinite: bool, out: &mut Vec<u8>) {
        if indefinite { out.push(major << 5 | 31) } else { head(major, items as u64, out) }
    }

    pub(super) fn head(major: u8, argument: u64, out: &mut Vec<u8>) {
        match argument {
            0..24 => out.push(major << 5 | u8::try_from(argument).expect("small")),
            24..0x1_0000 => {
                out.push(major << 5 | 25);
                out.extend_from_slice(&u16::try_from(argument).expect("short").to_be_bytes());
            }
            _ => {
                out.push(major << 5 | 27);
                out.extend_from_slice(&argument.to_be_bytes());
            }
        }
    }

    pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
        while value > 0x7f {
            out.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        out.push(u8::try_from(value).expect("seven bits"));
    }

    /// A field of bytes.
    pub(super) fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        varint(number << 3 | 2, &mut out);
        varint(bytes.len() as u64, &mut out);
        out.extend_from_slice(bytes);
        out
    }

    /// Fields of every wire type that nobody reads.
    pub(super) fn noise() -> Vec<u8> {
        let mut out = vec![0x78, 0xff, 0xff, 0x03];
        out.extend_from_slice(&[0x71, 1, 2, 3, 4, 5, 6, 7, 8]);
        out.extend_from_slice(&[0x6d, 1, 2, 3, 4]);
        out.extend_from_slice(&field(1000, b"\x0a\x03abc"));
        out
    }

    /// Magic and `runtime.Unknown`.
    pub(super) fn envelope(raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, b"v1"), field(2, b"Pod")].concat();
        [b"k8s\0".to_vec(), field(1, &meta), field(2, raw), field(3, b""), field(4, b"")].concat()
    }

    pub(super) fn frame(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("short").to_be_bytes();
        [length.as_slice(), message].concat()
    }

    /// An event about an object with these metadata fields.
    pub(super) fn proto_event(kind: &str, metadata: &[u8]) -> Vec<u8> {
        let object = [field(1, metadata), noise()].concat();
        let extension = field(1, &envelope(&object));
        frame(&[field(1, kind.as_bytes()), field(2, &extension)].concat())
    }

    pub(super) fn annotation(name: &str, value: &str) -> Vec<u8> {
        field(12, &[field(1, name.as_bytes()), field(2, value.as_bytes())].concat())
    }

    /// The value in protobuf: what the scanner looks at, and noise.
    pub(super) fn proto(event: &Value) -> Vec<u8> {
        let metadata = &event["object"]["metadata"];
        let mut fields = [field(1, b"name"), noise()].concat();
        if let Some(version) = metadata["resourceVersion"].as_str() {
            fields.extend(field(6, version.as_bytes()));
        }
        for (name, value) in metadata["annotations"].as_object().into_iter().flatten() {
            fields.extend(annotation(name, value.as_str().unwrap_or("other")));
        }
        fields.extend(field(17, b"\x0a\x03abc"));
        proto_event(event["type"].as_str().unwrap_or(""), &fields)
    }
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
    // An entry without a name has the empty one.
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
fn t43_odd_json() {
    let one = event(EventKind::Added, 1);
    for body in [
        r#"{"type":"ADDED","object":{"met\u0061data":{"resource\u0056ersion":"\u0031"}}}"#,
        r#"{"t\u0079pe":"ADD\u0045D","object":{"metadata":{"resourceVersion":"1"}}}"#,
        // The last of two wins; metadata is merged, as Go decodes into a struct.
        r#"{"type":"ERROR","type":"ADDED","object":{"metadata":{"resourceVersion":"2","resourceVersion":"1"}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"metadata":{"name":"x"}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"metadata":null}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"9"}},"object":{"metadata":{"resourceVersion":"1"}}}"#,
        r#"{"object":{"metadata":{"resourceVersion":"1"}},"object":null,"type":"ADDED"}"#,
        // Only the top-level metadata of the object counts, and only these very names.
        r#"{"object":{"spec":{"metadata":{"resourceVersion":"2"}},"metadata":{"resourceVersion":"1"}},"type":"ADDED"}"#,
        r#"{"metadata":{"resourceVersion":"2"},"type":"ADDED","object":{"Metadata":{"resourceVersion":"3"},"metadata":{"ResourceVersion":"4","resourceVersion":"1"}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1","labels":{"resourceVersion":"2"}}},"x":1e400,"y":-0.5E+7,"z":[[],{},""]}"#,
        " \t\r\n{ \"type\" : \"ADDED\" , \"object\" : { \"metadata\" : { \"resourceVersion\" : \"1\" } } }\n",
        r#"{"type":"ADDED","object":{"metadata":{"a\ud83d\ude00":{},"\"":1,"\\":[],"\/\b\f\n\r\t":2,"resourceVersion":"1"}}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"a":{"\\\\\"}":"\\\"]{"}}}"#,
    ] {
        assert_eq!(json_event(body), one, "{body}");
    }
    for (body, expected) in [
        // An object that is replaced takes its position with it.
        (
            r#"{"object":{"metadata":{"resourceVersion":"9"}},"object":{}}"#,
            unset(EventKind::Unknown),
        ),
        (
            r#"{"object":{"metadata":{"resourceVersion":"9"}},"object":7}"#,
            unset(EventKind::Unknown),
        ),
        ("{}", unset(EventKind::Unknown)),
        (r#"{"type":7,"object":[]}"#, unset(EventKind::Unknown)),
        (
            r#"{"type":"ADDED","object":{"metadata":[{"resourceVersion":"9"}]}}"#,
            unset(EventKind::Added),
        ),
        (
            r#"{"type":"ADDED","object":{"metadata":{"resource\ud800Version":"9"}}}"#,
            unset(EventKind::Added),
        ),
        (
            r#"{"type":"ADDED","object":{"metadata":{"resourceVersio":"9","resourceVersionn":"8"}}}"#,
            unset(EventKind::Added),
        ),
    ] {
        assert_eq!(json_event(body), expected, "{body}");
    }
}

#[test]
fn malformed_json_is_named() {
    for (body, expected) in [
        ("[", Fault::NotAnObject),
        ("1", Fault::NotAnObject),
        ("\u{feff}{}", Fault::NotAnObject),
        ("{}x", Fault::NotAnObject),
        ("{,", Fault::Unexpected),
        ("{1", Fault::Unexpected),
        (r#"{"a","#, Fault::Unexpected),
        (r#"{"a":}"#, Fault::Unexpected),
        (r#"{"a":1,}"#, Fault::Unexpected),
        (r#"{"a":1]"#, Fault::Unexpected),
        (r#"{"a":"x" "b""#, Fault::Unexpected),
        (r#"{"object":{"rows":[{},]"#, Fault::Unexpected),
        (r#"{"object":{"rows":[}"#, Fault::Unexpected),
        (r#"{"a\x"#, Fault::Escape),
        (r#"{"a\u12g"#, Fault::Escape),
    ] {
        assert_eq!(fault(Encoding::Json, body.as_bytes()), Some(expected), "{body}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(20_000));
    assert_eq!(fault(Encoding::Json, deep.as_bytes()), Some(Fault::TooDeep));
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(9_000), "]".repeat(9_000));
    assert_eq!(events(Encoding::Json, deep.as_bytes()).len(), 1);
}

#[test]
fn t35_frames_of_any_size() {
    let empty = write::frame(b"");
    assert_eq!(events(Encoding::Protobuf, &empty), [unset(EventKind::Unknown)]);
    let big = write::field(2, &vec![b'x'; 17 << 20]);
    let object = [write::field(1, &[big, write::field(6, b"7")].concat()), write::noise()].concat();
    let big = write::frame(
        &[write::field(1, b"ADDED"), write::field(2, &write::field(1, &write::envelope(&object)))]
            .concat(),
    );
    assert!(big.len() > 16 << 20);
    let body =
        [empty.as_slice(), &big, &empty, &write::proto_event("DELETED", &write::field(6, b"8"))]
            .concat();
    let chunks: Vec<&[u8]> = body.chunks(16_384).collect();
    let (found, error) = scan(Encoding::Protobuf, &chunks);
    assert_eq!(error, None);
    let kinds: Vec<_> = found.iter().map(|(_, event)| *event).collect();
    let none = unset(EventKind::Unknown);
    assert_eq!(kinds, [none, event(EventKind::Added, 7), none, event(EventKind::Deleted, 8)]);
    assert_eq!(
        found.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
        [4, 4 + big.len(), 8 + big.len(), body.len()]
    );
}

#[test]
fn odd_protobuf() {
    let meta = |fields: &[Vec<u8>]| {
        events(Encoding::Protobuf, &write::proto_event("ADDED", &fields.concat()))[0]
    };
    let version = |text: &[u8]| write::field(6, text);
    assert_eq!(meta(&[version(b"2"), version(b"1")]), event(EventKind::Added, 1));
    assert_eq!(meta(&[]), unset(EventKind::Added));
    assert_eq!(meta(&[version(b"")]), unset(EventKind::Added));
    assert_eq!(meta(&[version(b"2"), version(b"")]), unset(EventKind::Added));
    // A field of the right number and another wire type is not the field.
    assert_eq!(meta(&[vec![0x30, 5]]), unset(EventKind::Added));
    let empty_object = write::frame(&[write::field(1, b"ADDED"), write::field(2, b"")].concat());
    assert_eq!(events(Encoding::Protobuf, &empty_object), [unset(EventKind::Added)]);
    // The second object replaces the first.
    let object = |version: &[u8]| {
        write::field(
            2,
            &write::field(1, &write::envelope(&write::field(1, &write::field(6, version)))),
        )
    };
    let twice = write::frame(&[object(b"1"), object(b"2")].concat());
    assert_eq!(events(Encoding::Protobuf, &twice)[0].resource_version, ResourceVersion::At(2));
}

#[test]
fn malformed_protobuf_is_named() {
    let frame = |message: &[u8]| fault(Encoding::Protobuf, &write::frame(message));
    assert_eq!(frame(&[0x0a, 5, b'x']), Some(Fault::Length), "longer than its message");
    assert_eq!(frame(&[0x0a]), None, "the next frame's bytes are missing still");
    assert_eq!(fault(Encoding::Protobuf, &[0, 0, 0, 1, 0x0a, 0]), Some(Fault::Length));
    assert_eq!(fault(Encoding::Protobuf, &[0, 0, 0, 1, 0x80, 1]), Some(Fault::Length));
    assert_eq!(frame(&[0x0d, 1, 2]), Some(Fault::Length), "fixed32");
    assert_eq!(frame(&[0x09, 1, 2, 3, 4, 5, 6, 7]), Some(Fault::Length), "fixed64");
    assert_eq!(frame(&[0x02, 0]), Some(Fault::Tag), "field 0");
    assert_eq!(frame(&[0x0b, 0]), Some(Fault::Tag), "group");
    assert_eq!(frame(&[0x0f, 0]), Some(Fault::Tag), "wire type 7");
    assert_eq!(frame(&[0x78, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]), Some(Fault::Varint));
    assert_eq!(frame(&[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]), Some(Fault::Length));
    for raw in [b"{}".as_slice(), b"k8s", b"k8s\x01\x0a\x00"] {
        assert_eq!(frame(&write::field(2, &write::field(1, raw))), Some(Fault::Magic));
    }
}

#[test]
fn t37_odd_cbor() {
    for style in 0..8 {
        let mut body = Vec::new();
        write::cbor(&pod("ADDED", "12"), style, &mut body);
        write::cbor(&pod("DELETED", "13"), style, &mut body);
        assert_eq!(
            events(Encoding::Cbor, &body),
            [event(EventKind::Added, 12), event(EventKind::Deleted, 13)]
        );
    }
    // {1: 2, [3]: {}, "type": "ADDED", "x": undefined, "y": 1.5, "z": simple(255), -1: null}
    let odd = [
        0xa7, 1, 2, 0x81, 3, 0xa0, 0x64, b't', b'y', b'p', b'e', 0x45, b'A', b'D', b'D', b'E',
        b'D', 0x61, b'x', 0xf7, 0x61, b'y', 0xf9, 0x3e, 0, 0x61, b'z', 0xf8, 255, 0x20, 0xf6,
    ];
    assert_eq!(events(Encoding::Cbor, &odd), [unset(EventKind::Added)]);
    assert_eq!(events(Encoding::Cbor, &[0xa0, 0xbf, 0xff]).len(), 2);
    let number = [
        0xa1, 0x46, b'o', b'b', b'j', b'e', b'c', b't', 0xa1, 0x48, b'm', b'e', b't', b'a', b'd',
        b'a', b't', b'a', 0xa1, 0x4f, b'r', b'e', b's', b'o', b'u', b'r', b'c', b'e', b'V', b'e',
        b'r', b's', b'i', b'o', b'n', 0x07,
    ];
    assert_eq!(events(Encoding::Cbor, &number)[0].resource_version, ResourceVersion::Opaque);
}

#[test]
fn malformed_cbor_is_named() {
    for (body, expected) in [
        (&[0x80][..], Fault::NotAnObject),
        (&[0x01], Fault::NotAnObject),
        (&[0xff], Fault::NotAnObject),
        (&[0xa1, 0xff], Fault::Unexpected),
        (&[0xbf, 0x41, b'a', 0xff], Fault::Unexpected),
        (&[0xa1, 0x41, b'a', 0x81, 0xff], Fault::Unexpected),
        (&[0xa1, 0x5f, 0x01], Fault::Unexpected),
        (&[0xa1, 0x1c], Fault::Head),
        (&[0xa1, 0x1f], Fault::Head),
        (&[0xa1, 0x41, b'a', 0xfe], Fault::Head),
        (&[0xbb, 255, 255, 255, 255, 255, 255, 255, 255], Fault::Length),
        (&[0xa1, 0x41, b'a', 0x9b, 255, 255, 255, 255, 255, 255, 255, 255], Fault::Length),
        (&[0xa1, 0x41, b'a', 0xbb, 8, 0, 0, 0, 0, 0, 0, 0], Fault::Length),
    ] {
        assert_eq!(fault(Encoding::Cbor, body), Some(expected), "{body:02x?}");
    }
    let deep = [&[0xa1, 0x41, b'a'][..], &[0x9f; 300]].concat();
    assert_eq!(fault(Encoding::Cbor, &deep), Some(Fault::TooDeep));
    // Definite nesting needs no memory.
    let deep = [&[0xa1, 0x41, b'a'][..], &[0x81; 100_000], &[0]].concat();
    assert_eq!(events(Encoding::Cbor, &deep).len(), 1);
}

#[test]
fn t03_an_error_event_fits_only_at_a_boundary() {
    let status = Status::new(Reason::Expired, "the policy changed");
    for encoding in ALL {
        let first = encode(encoding, &pod("ADDED", "1"));
        let mut scanner = WatchScanner::new(encoding).expect("a stream");
        assert!(scanner.at_boundary());
        for (position, byte) in first.iter().enumerate() {
            let ended = scanner.feed(&[*byte]).count();
            let left = &first[position + 1..];
            let whole = left.is_empty() || left == b"\n";
            assert_eq!(scanner.at_boundary(), whole, "{encoding:?} {position}");
            assert_eq!(ended == 1, whole && *byte != b'\n');
            assert_eq!(scanner.separator(), if left == b"\n" { b"\n".as_slice() } else { b"" });
        }
        let body = [first.as_slice(), scanner.separator(), &status.error_event(encoding)].concat();
        let kinds: Vec<_> = events(encoding, &body).iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Added, EventKind::Error]);
    }
    assert!(WatchScanner::new(Encoding::Yaml).is_none());
}

#[test]
fn a_newline_belongs_to_its_event() {
    let (found, _) = scan(Encoding::Json, &[b"{}\n{}{}\n\n", b"\n{}", b"\n{}\r\n"]);
    assert_eq!(found.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [3, 5, 8, 12, 15]);
}

#[test]
fn an_error_stays() {
    let mut scanner = WatchScanner::new(Encoding::Json).expect("a stream");
    let found: Vec<_> = scanner.feed(b"{}\nx{}").collect();
    let error = FrameError { fault: Fault::NotAnObject, at: 3 };
    assert!(found[0].is_ok());
    assert_eq!(found[1..], [Err(error)]);
    assert_eq!(scanner.feed(b"{}").collect::<Vec<_>>(), [Err(error)]);
    assert!(!scanner.at_boundary());
    assert_eq!(error.to_string(), "not an object (byte 3 of the body)");
}

#[test]
fn events_that_nobody_takes_are_still_scanned() {
    let mut scanner = WatchScanner::new(Encoding::Json).expect("a stream");
    assert!(scanner.feed(b"{}{}{\"type").next().is_some());
    assert!(!scanner.at_boundary());
    assert_eq!(scanner.feed(b"\":\"ADDED\"}").count(), 1);
}

fn list(encoding: Encoding, body: &[u8], size: usize) -> Result<ListMeta, FrameError> {
    let mut scanner = ListScanner::new(encoding).expect("a list");
    for chunk in body.chunks(size.max(1)) {
        scanner.feed(chunk)?;
    }
    scanner.finish()
}

fn meta(position: u128, token: Continue) -> ListMeta {
    ListMeta { resource_version: ResourceVersion::At(position), continue_token: token }
}

#[test]
fn lists_in_each_encoding_and_order() {
    let token = Continue::Token("eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ".to_owned());
    let metadata = json!({"resourceVersion": "77", "continue": "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ", "remainingItemCount": 3});
    let items = json!([{"metadata": {"resourceVersion": "1", "continue": "no"}, "spec": {"items": [{}, "}]"]}}, {"metadata": {}}]);
    let before =
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "zitems": items})
            .to_string();
    let after = json!({"kind": "PodList", "aitems": items, "metadata": metadata}).to_string();
    for size in [1, 3, 64, 10_000] {
        for body in [before.replace("zitems", "items"), after.replace("aitems", "items")] {
            assert_eq!(list(Encoding::Json, body.as_bytes(), size), Ok(meta(77, token.clone())));
            let value: Value = serde_json::from_str(&body).expect("JSON");
            for style in 0..8 {
                let mut cbor = Vec::new();
                write::cbor(&value, style, &mut cbor);
                assert_eq!(list(Encoding::Cbor, &cbor, size), Ok(meta(77, token.clone())));
            }
        }
        let list_meta = [
            write::field(1, b"self"),
            write::field(2, b"77"),
            write::field(3, b"eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ"),
        ]
        .concat();
        let item = write::field(2, &write::field(1, &write::field(6, b"1")));
        for fields in
            [[write::field(1, &list_meta), item.clone()], [item, write::field(1, &list_meta)]]
        {
            let body = write::envelope(&fields.concat());
            assert_eq!(list(Encoding::Protobuf, &body, size), Ok(meta(77, token.clone())));
        }
    }
    assert!(ListScanner::new(Encoding::Yaml).is_none());
}

#[test]
fn a_list_is_scanned_no_further_than_needed() {
    let mut scanner = ListScanner::new(Encoding::Json).expect("a list");
    assert_eq!(scanner.feed(br#"{"kind":"PodList","metadata":{"resourceVersion":"5""#), Ok(None));
    let known = meta(5, Continue::None);
    assert_eq!(scanner.feed(br#"},"items":[{"#), Ok(Some(&known)));
    assert_eq!(scanner.feed(b"]]] not even JSON"), Ok(Some(&known)));
    assert_eq!(scanner.finish(), Ok(known));
}

#[test]
fn lists_that_say_little() {
    let none = ListMeta::default();
    assert_eq!(list(Encoding::Json, b"{}", 9), Ok(none.clone()));
    assert_eq!(list(Encoding::Json, br#"{"metadata":{},"items":null}"#, 9), Ok(none.clone()));
    assert_eq!(list(Encoding::Json, br#"{"metadata":null,"items":[]}"#, 9), Ok(none.clone()));
    assert_eq!(list(Encoding::Cbor, &[0xa0], 9), Ok(none.clone()));
    assert_eq!(list(Encoding::Protobuf, &write::envelope(b""), 9), Ok(none.clone()));
    assert_eq!(list(Encoding::Protobuf, b"k8s\0", 9), Ok(none));
    let truncated = |encoding, body: &[u8]| list(encoding, body, 9).map_err(|error| error.fault);
    for (encoding, body) in [
        (Encoding::Json, br#"{"metadata":{"resourceVersion":"5""#.to_vec()),
        (Encoding::Json, Vec::new()),
        (Encoding::Cbor, vec![0xa1]),
        (Encoding::Cbor, Vec::new()),
        (Encoding::Protobuf, b"k8s".to_vec()),
        (Encoding::Protobuf, Vec::new()),
        (Encoding::Protobuf, b"k8s\0\x12\x05\x12".to_vec()),
    ] {
        assert_eq!(truncated(encoding, &body), Err(Fault::Truncated), "{encoding:?} {body:?}");
    }
    assert_eq!(truncated(Encoding::Protobuf, b"{}"), Err(Fault::Magic));
}

#[test]
fn a_continue_token_is_bounded() {
    for encoding in [Encoding::Json, Encoding::Cbor] {
        for (length, kept) in
            [(ListMeta::MAX_CONTINUE, true), (ListMeta::MAX_CONTINUE + 1, false), (1 << 20, false)]
        {
            let token = "t".repeat(length);
            let value = json!({"metadata": {"continue": token, "resourceVersion": "1"}});
            let expected = if kept { Continue::Token(token) } else { Continue::Unreadable };
            let body = encode(encoding, &value);
            assert_eq!(list(encoding, &body, 1000), Ok(meta(1, expected)));
        }
    }
    let body = br#"{"metadata":{"continue":"a\ud83d\ude00\u00e9\ud800"}}"#;
    let token = Continue::Token("a\u{1f600}é\u{fffd}".to_owned());
    for size in [1, 2, 1000] {
        assert_eq!(
            list(Encoding::Json, body, size).map(|meta| meta.continue_token),
            Ok(token.clone())
        );
    }
    assert_eq!(
        list(Encoding::Json, br#"{"metadata":{"continue":7}}"#, 9).map(|meta| meta.continue_token),
        Ok(Continue::Unreadable)
    );
}

/// Any value, with the names that matter more often than others.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<f32>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name(), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(vec!["type", "object", "metadata", "resourceVersion", "annotations", "k8s.io/initial-events-end", "rows"])
            .prop_map(str::to_owned),
        1 => text(),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "ADDED",
            "BOOKMARK",
            "true",
            "12",
            "0",
            "",
            "\"",
            "\\",
            "}{][",
            "\u{1f600}\n"
        ])
        .prop_map(str::to_owned),
        "\\PC{0,70}",
    ]
}

/// An event that is more likely to be one than chance would have it.
fn any_event() -> impl Strategy<Value = Value> {
    let metadata = (
        name(),
        any_value(),
        "[0-9]{0,3}",
        prop::sample::select(vec!["true", "false"]),
        any::<bool>(),
    );
    let kind =
        prop::sample::select(vec!["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "OTHER"]);
    prop_oneof![
        any_value().prop_map(|value| json!({"object": value})),
        (kind, metadata, any_value()).prop_map(|(kind, (name, noise, version, end, table), spec)| {
            let mut annotated = json!({"annotations": {"k8s.io/initial-events-end": end, "x": "true"}, "resourceVersion": version});
            let rows = if table { json!([{"object": {"metadata": annotated.clone()}, "x": spec}]) } else { spec.clone() };
            if name != "annotations" && name != "resourceVersion" {
                annotated[name] = noise;
            }
            if table {
                annotated["annotations"] = Value::Null;
            }
            json!({"type": kind, "object": {"metadata": annotated, "rows": rows, "spec": spec}})
        }),
    ]
}

/// What serde_json finds.
fn oracle(value: &Value) -> Event {
    let kind = match value["type"].as_str() {
        Some("ADDED") => EventKind::Added,
        Some("MODIFIED") => EventKind::Modified,
        Some("DELETED") => EventKind::Deleted,
        Some("BOOKMARK") => EventKind::Bookmark,
        Some("ERROR") => EventKind::Error,
        _ => EventKind::Unknown,
    };
    let metadata = &value["object"]["metadata"];
    let resource_version = match &metadata["resourceVersion"] {
        Value::Null => ResourceVersion::Unset,
        Value::String(text) => ResourceVersion::parse(text.as_bytes()),
        _ => ResourceVersion::Opaque,
    };
    let marked = |metadata: &Value| metadata["annotations"]["k8s.io/initial-events-end"] == "true";
    let rows = value["object"]["rows"].as_array();
    // Of several marks the last one read wins; names are in alphabetical order here, and rows come
    // behind metadata.
    let mark = |metadata: &Value| match &metadata["annotations"]["k8s.io/initial-events-end"] {
        Value::Null => None,
        _ => Some(marked(metadata)),
    };
    let in_rows =
        rows.into_iter().flatten().filter_map(|row| mark(&row["object"]["metadata"])).next_back();
    Event {
        kind,
        resource_version,
        initial_events_end: kind == EventKind::Bookmark
            && in_rows.or_else(|| mark(metadata)).unwrap_or(false),
    }
}

fn split<'a>(body: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
    cuts.sort_unstable();
    let mut chunks = Vec::new();
    let mut start = 0;
    for cut in cuts {
        chunks.push(&body[start..cut]);
        start = cut;
    }
    chunks.push(&body[start..]);
    chunks
}

fn pretty(value: &Value, style: u8) -> Vec<u8> {
    let text = if style & 1 == 0 { value.to_string() } else { format!("{value:#}\n") };
    // An escape for a letter of the names that matter.
    let text =
        if style & 2 == 0 { text } else { text.replace('a', "\\u0061").replace('V', "\\u0056") };
    text.into_bytes()
}

proptest! {
    #[test]
    fn t35_any_split_of_any_events_gives_what_serde_finds(
        values in prop::collection::vec(any_event(), 1..4),
        style in 0u8..8,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        for encoding in [Encoding::Json, Encoding::Cbor] {
            let mut body = Vec::new();
            let mut expected = Vec::new();
            for value in &values {
                match encoding {
                    Encoding::Json => body.extend(pretty(value, style)),
                    _ => write::cbor(value, style, &mut body),
                }
                expected.push((body.len(), oracle(value)));
            }
            prop_assert_eq!(scan(encoding, &[&body]), (expected.clone(), None));
            // A newline that comes in another chunk is counted there.
            let plain = |scan: Scan| (scan.0.into_iter().map(|(_, event)| event).collect::<Vec<_>>(), scan.1);
            let expected: Vec<_> = expected.into_iter().map(|(_, event)| event).collect();
            prop_assert_eq!(plain(scan(encoding, &split(&body, &cuts))), (expected.clone(), None));
            let bytes: Vec<&[u8]> = body.chunks(1).collect();
            prop_assert_eq!(plain(scan(encoding, &bytes)), (expected, None));
        }
    }

    #[test]
    fn t35_any_split_of_protobuf_gives_the_same(
        values in prop::collection::vec(any_event(), 1..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let body: Vec<u8> = values.iter().flat_map(write::proto).collect();
        let whole = scan(Encoding::Protobuf, &[&body]);
        prop_assert_eq!(whole.0.len(), values.len());
        prop_assert_eq!(whole.1, None);
        for ((_, found), value) in whole.0.iter().zip(&values) {
            let kind = oracle(value).kind;
            prop_assert_eq!(found.kind, kind);
            let version = value["object"]["metadata"]["resourceVersion"].as_str().unwrap_or("");
            prop_assert_eq!(found.resource_version, ResourceVersion::parse(version.as_bytes()));
        }
        prop_assert_eq!(&scan(Encoding::Protobuf, &split(&body, &cuts)), &whole);
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        prop_assert_eq!(&scan(Encoding::Protobuf, &bytes), &whole);
    }

    #[test]
    fn damaged_bodies_never_panic_and_split_alike(
        value in any_event(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        for encoding in ALL {
            let mut body = encode(encoding, &value).repeat(2);
            for (at, byte) in &damage {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            let kinds = |scan: Scan| (scan.0.into_iter().map(|(_, event)| event).collect::<Vec<_>>(), scan.1.map(|error| error.fault));
            let whole = kinds(scan(encoding, &[&body]));
            prop_assert_eq!(kinds(scan(encoding, &split(&body, &cuts))), whole);
            let _ = list(encoding, &body, 7);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 1usize..40) {
        for encoding in ALL {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            let whole = scan(encoding, &[&bytes]);
            prop_assert_eq!(scan(encoding, &chunks).0.len(), whole.0.len());
            prop_assert_eq!(
                list(encoding, &bytes, size).map_err(|error| error.fault),
                list(encoding, &bytes, 200).map_err(|error| error.fault)
            );
        }
    }
}
