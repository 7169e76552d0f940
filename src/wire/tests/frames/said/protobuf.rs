//! What objects say in protobuf.

use super::*;

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
fn t44_a_protobuf_write_that_readers_decode_differently_is_refused() {
    let meta = write::field(1, &write::field(1, b"x"));
    let fault = |body: &[u8]| named(Encoding::Protobuf, body).err();
    assert_eq!(named(Encoding::Protobuf, &write::envelope(&meta)), Ok("x".to_owned()));
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
}
