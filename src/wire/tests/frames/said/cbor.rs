//! What objects say in CBOR.

use super::*;

#[test]
fn t44_a_cbor_write_that_readers_decode_differently_is_refused() {
    let text = |text: &str| cbor(&text.into(), 0);
    // The value of the name, and what stands before it and behind the object.
    let object = |before: &[u8], key: &[u8], behind: &[u8]| {
        let meta = [&[0xa1][..], &text("name"), before, &text("x")].concat();
        [&[0xd9, 0xd9, 0xf7, 0xa2], key, &[0xf6], &text("metadata"), &meta, behind].concat()
    };
    let odd = text("spec");
    assert_eq!(named(Encoding::Cbor, &object(&[], &odd, &[])), Ok("x".to_owned()));
    assert_eq!(named(Encoding::Cbor, &object(&[], &odd, &[0xf6])).err(), Some(Fault::Unexpected));
    // Tags 22 and 23: text in base64, and in base16.
    assert_eq!(named(Encoding::Cbor, &object(&[0xd6], &odd, &[])).err(), Some(Fault::Item));
    let tagged = [&[0xd7][..], &odd].concat();
    assert_eq!(named(Encoding::Cbor, &object(&[], &tagged, &[])).err(), Some(Fault::Item));
    assert_eq!(named(Encoding::Cbor, &object(&[], &[7], &[])).err(), Some(Fault::Item));
    let twice = [&[0xd9, 0xd9, 0xf7][..], &object(&[], &odd, &[])].concat();
    assert_eq!(named(Encoding::Cbor, &twice).err(), Some(Fault::Item));
    // Before a value that is not read, a tag changes nothing.
    let mut skipped = odd;
    skipped.push(0xc1);
    assert_eq!(named(Encoding::Cbor, &object(&[], &skipped, &[])), Ok("x".to_owned()));
}
