//! Cases that only CBOR has.

use super::*;

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
