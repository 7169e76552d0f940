//! Lists: position and continue token.

use super::*;

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
