use proptest::prelude::*;

use super::{renamed, repeated};
use crate::name::{BodyKind::Protobuf, Field, NameError, name_of, rename};

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value /= 0x80;
    }
    out.push(value.to_le_bytes()[0]);
}

/// A length-delimited field.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(u64::from(number) << 3 | 2, &mut out);
    varint(content.len() as u64, &mut out);
    [out, content.to_vec()].concat()
}

/// Unknown fields of every wire type.
fn unknown() -> Vec<u8> {
    let mut out = field(1000, b"lock");
    varint(1001 << 3, &mut out);
    varint(u64::MAX, &mut out);
    varint(1002 << 3 | 1, &mut out);
    out.extend_from_slice(&[0xff; 8]);
    varint(1003 << 3 | 5, &mut out);
    out.extend_from_slice(&[0x0a; 4]);
    out
}

fn object(kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, raw), field(3, b""), field(4, b"")].concat()
}

/// Encodes an object of this name.
type Object<'a> = &'a dyn Fn(&str) -> Vec<u8>;

#[test]
fn t72_protobuf_changes_the_name_and_the_lengths_around_it() {
    let metadata = |name: &str| {
        [field(1, name.as_bytes()), field(2, b""), field(3, b"ns"), field(6, b"12")].concat()
    };
    let lease = |name: &str| {
        object("Lease", &[field(1, &metadata(name)), field(2, &field(1, b"lock"))].concat())
    };
    let entry = [field(1, b"name"), field(2, b"lock")].concat();
    let config_map =
        |name: &str| object("ConfigMap", &[field(1, &metadata(name)), field(2, &entry)].concat());
    let endpoints = |name: &str| {
        object(
            "Endpoints",
            &[field(1, &metadata(name)), field(2, &field(3, &field(1, b"lock")))].concat(),
        )
    };
    // In another order, among unknown fields, and so long that each length takes a byte more.
    let odd = |name: &str| {
        let padding = field(11, &[b'x'; 100]);
        let metadata =
            [unknown(), field(2, b"lock"), padding, field(1, name.as_bytes()), unknown()].concat();
        let raw = [field(2, b"lock"), unknown(), field(1, &metadata), field(3, b"")].concat();
        [b"k8s\0".to_vec(), unknown(), field(2, &raw), field(1, b""), unknown()].concat()
    };
    let at_the_edge = |name: &str| {
        let metadata = [field(1, name.as_bytes()), field(3, &[b'n'; 118])].concat();
        object("Lease", &field(1, &metadata))
    };
    let odd_ones: [Object<'_>; 2] = [&odd, &at_the_edge];
    let objects: [Object<'_>; 3] = [&lease, &config_map, &endpoints];
    for object in objects.into_iter().chain(odd_ones) {
        assert_eq!(renamed(Protobuf, object("lock")), Ok(Some(object("lock---s1"))));
        for other in ["", "other", "lock---s1"] {
            assert_eq!(renamed(Protobuf, object(other)), Ok(None));
        }
    }
}

#[test]
fn t72_protobuf_without_a_name_stays() {
    for body in [
        b"k8s\0".to_vec(),
        object("Lease", b""),
        object("Lease", &field(2, b"lock")),
        object("Lease", &field(1, b"")),
        object("Lease", &field(1, &field(2, b"lock"))),
    ] {
        assert_eq!(renamed(Protobuf, body), Ok(None));
    }
}

#[test]
fn t72_protobuf_that_cannot_be_relied_on_is_refused() {
    let malformed = NameError::Malformed(Protobuf);
    let name = field(1, b"lock");
    let good = object("Lease", &field(1, &name));
    let raw = |raw: &[u8]| object("Lease", raw);
    let metadata = |metadata: &[u8]| raw(&field(1, metadata));
    for (body, expected) in [
        ([good.clone(), field(2, &field(1, &name))].concat(), repeated("the whole")),
        (raw(&[field(1, &name), field(1, b"")].concat()), repeated("metadata")),
        (metadata(&[name.clone(), field(1, b"x")].concat()), repeated("metadata.name")),
        (Vec::new(), malformed),
        (good[..good.len() - 1].to_vec(), malformed),
        (good[4..].to_vec(), malformed),
        ([b"k8s\x01".as_slice(), &good[4..]].concat(), malformed),
        (metadata(&field(1, b"l\xff")), malformed),
        // Another wire type, the field 0, a group, a length past the end.
        (metadata(&[1 << 3, 1]), malformed),
        (metadata(&[2, 0]), malformed),
        (metadata(&[vec![9 << 3 | 3, 9 << 3 | 4], name.clone()].concat()), malformed),
        (metadata(&[1 << 3 | 2, 5, b'l', b'o', b'c', b'k']), malformed),
        (metadata(&[&name[..], &[3 << 3 | 2, 1]].concat()), malformed),
        (metadata(&[&name[..], &[3 << 3 | 1, 1]].concat()), malformed),
        // A key of 33 bits, which Go reads as the field 1; one of 65 bits; one without an end.
        (metadata(&[0x8a, 0x80, 0x80, 0x80, 0x80, 0x01, 1, b'x']), malformed),
        (metadata(&[&[0x8a][..], &[0x80; 8], &[2, 0]].concat()), malformed),
        (metadata(&[0x80; 11]), malformed),
        (metadata(&[0x8a]), malformed),
        (metadata(&[&[0x0a][..], &[0xff; 9], &[1]].concat()), malformed),
    ] {
        assert_eq!(renamed(Protobuf, &body), Err(expected), "{body:x?}");
    }
}

proptest! {
    #[test]
    fn t72_protobuf_of_any_lengths(
        before in prop::collection::vec((4u32..2000, prop::collection::vec(any::<u8>(), 0..300)), 0..4),
        after in prop::collection::vec((4u32..2000, prop::collection::vec(any::<u8>(), 0..300)), 0..4),
        new in "[a-z]{0,400}",
        namespaces in prop::option::of(("[a-z]{0,200}", "[a-z]{0,200}")),
    ) {
        let fields = |fields: &[(u32, Vec<u8>)]| -> Vec<u8> {
            fields.iter().flat_map(|(number, content)| field(*number, content)).collect()
        };
        let (before, after) = (fields(&before), fields(&after));
        let (old_namespace, new_namespace) = namespaces.unzip();
        let whole = |name: &str, namespace: &Option<String>| {
            let namespace = namespace.as_ref().map(|namespace| field(3, namespace.as_bytes()));
            let namespace = namespace.unwrap_or_default();
            let metadata = [&before[..], &field(1, name.as_bytes()), &namespace, &after].concat();
            let raw = [&before[..], &field(1, &metadata), &after].concat();
            [b"k8s\0", &after[..], &field(2, &raw), &after].concat()
        };
        let old = whole("lock", &old_namespace);
        let found = rename(Protobuf, &old, |field, _| match field {
            Field::Name => Some(new.clone()),
            Field::Namespace => new_namespace.clone(),
        });
        prop_assert_eq!(found, Ok(Some(whole(&new, &new_namespace))));
        prop_assert_eq!(name_of(Protobuf, &old), Ok(Some("lock".to_owned())));
    }
}
