//! Cases that only protobuf has.

use super::*;

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
