//! Lists.

use proptest::prelude::*;
use serde_json::json;

use super::super::{
    random::{any_value, pretty, split},
    write,
};
use super::*;

#[test]
fn t36_kept_items_are_the_same_bytes() {
    let body = br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[
 {"metadata":{"namespace":"d"},"n":1.0} , {"metadata":{"namespace":"k"},"n":1.50,"u":"\u0041"}
,{"metadata":{"namespace":"d"}},{ "metadata" : {"namespace":"k"} } ,{"metadata":{"namespace":"d"}}
 ] , "more":true}
"#;
    let expected =
        br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[ {"metadata":{"namespace":"k"},"n":1.50,"u":"\u0041"},{ "metadata" : {"namespace":"k"} }
 ] , "more":true}
"#;
    let in_two = (0..body.len()).map(|at| <[_; 2]>::from(body.split_at(at)).to_vec());
    let in_equal = [1, 2, 7].map(|size| body.chunks(size).collect());
    for chunks in in_two.chain(in_equal) {
        let filtered = list(Encoding::Json, &chunks).expect("a list");
        assert_eq!(
            String::from_utf8_lossy(&filtered.body),
            String::from_utf8_lossy(expected),
            "{} bytes first",
            chunks[0].len()
        );
        assert_eq!(filtered.counts, Counts { kept: 2, dropped: 3 });
    }
}

#[test]
fn t33_t25_a_list_of_which_nothing_is_kept_is_empty_and_goes_on() {
    let body = pods(&[pod("d", "a"), pod("d", "b")]);
    let filtered = list(Encoding::Json, &[body.to_string().as_bytes()]).expect("a list");
    assert_eq!(json_of(&filtered.body)["items"], json!([]));
    assert_eq!(json_of(&filtered.body)["metadata"]["continue"], "token");
    for style in 0..8 {
        let filtered = list(Encoding::Cbor, &[&cbor(&body, style)]).expect("a list");
        assert_eq!(cbor_of(&filtered.body), thinned(&body), "style {style}");
    }
}

#[test]
fn t26_the_count_of_what_remains_is_left_out_and_nothing_else() {
    let all_kept = pods(&[pod("k", "a"), pod("k", "b")]);
    let body = all_kept.to_string();
    for size in [1, 3, 4096] {
        let chunks: Vec<_> = body.as_bytes().chunks(size).collect();
        let filtered = list(Encoding::Json, &chunks).expect("a list");
        let expected = body.replace("\"remainingItemCount\":12345", "\"remainingItemCount\":null");
        assert_eq!(String::from_utf8_lossy(&filtered.body), expected);
        assert_eq!(filtered.meta.resource_version, ResourceVersion::At(77));
    }
    let null = body.replace("12345", "null");
    assert_eq!(list(Encoding::Json, &[null.as_bytes()]).expect("a list").body, null.as_bytes());
}

#[test]
fn the_metadata_may_stand_behind_the_items() {
    let items = json!([pod("d", "a"), pod("k", "b")]).to_string();
    let body = format!(
        r#"{{"apiVersion":"v1","items":{items},"kind":"List","metadata":{{"remainingItemCount":5,"resourceVersion":"9"}}}}"#
    );
    for size in [1, 5, 4096] {
        let chunks: Vec<_> = body.as_bytes().chunks(size).collect();
        let filtered = list(Encoding::Json, &chunks).expect("a list");
        assert_eq!(json_of(&filtered.body), thinned(&json_of(body.as_bytes())));
        assert_eq!(filtered.meta.resource_version, ResourceVersion::At(9));
    }
}

#[test]
fn t34_protobuf_keeps_every_length_and_every_other_byte() {
    let items =
        [("k", "a"), ("d", "b"), ("d", "c"), ("k", "d")].map(|(ns, name)| proto_item(ns, name));
    let body = proto_list(&items);
    for size in [1, 2, 50, 4096] {
        let chunks: Vec<_> = body.chunks(size).collect();
        let filtered = list(Encoding::Protobuf, &chunks).expect("a list");
        assert_eq!(filtered.body.len(), body.len());
        assert_eq!(filtered.counts, Counts { kept: 2, dropped: 2 });
        assert_eq!(filtered.meta.resource_version, ResourceVersion::At(77));
        let (before, after) = (&body[4..], &filtered.body[4..]);
        assert_eq!(field_of(after, 1), field_of(before, 1), "the kind");
        let raw = fields(&field_of(after, 2));
        let kept: Vec<_> = raw.iter().filter(|(number, _)| *number == 2).collect();
        assert_eq!(kept, [&(2, items[0].clone()), &(2, items[3].clone())]);
        let unknown: Vec<_> = raw.iter().filter(|(number, _)| *number == 15).collect();
        assert_eq!(unknown[0].1, vec![0; items[1].len()], "nothing of it is left");
        let meta = fields(&field_of(&field_of(after, 2), 1));
        assert_eq!(meta.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2, 3, 15]);
    }
}

#[test]
fn t41_an_empty_protobuf_item_is_no_object() {
    let body = proto_list(&[Vec::new()]);
    assert_eq!(list_fault(Encoding::Protobuf, &body), Some(Fault::Item));
    let empty = proto_list(&[]);
    let filtered = list(Encoding::Protobuf, &[&empty]).expect("a list");
    assert_eq!(filtered.counts, Counts::default());
}

#[test]
fn t40_rows_are_judged_by_the_object_that_they_stand_for() {
    let row = |ns: &str, name: &str| json!({"cells": [name, "metadata"], "object": pod(ns, name)});
    let table = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "5"}, "columnDefinitions": [{"name": "Name"}],
        "rows": [row("k", "a"), row("d", "b"), row("k", "c")]});
    let filtered = list(Encoding::Json, &[table.to_string().as_bytes()]).expect("a list");
    assert_eq!(json_of(&filtered.body), thinned(&table));
    for style in 0..8 {
        let filtered = list(Encoding::Cbor, &[&cbor(&table, style)]).expect("a list");
        assert_eq!(cbor_of(&filtered.body), thinned(&table));
    }
    let mut without = table;
    without["rows"] = json!([{"cells": ["a"], "object": null}]);
    assert_eq!(list_fault(Encoding::Json, without.to_string().as_bytes()), Some(Fault::Item));
}

#[test]
fn t44_what_cannot_be_judged_in_one_way_is_refused() {
    let item = |item: &str| format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{item}]}}"#);
    let cases = [
        (r#"{"metadata":{"namespace":"k"},"metadata":{"namespace":"d"}}"#, Fault::Item),
        (r#"{"metadata":{"namespace":"k","namespace":"d"}}"#, Fault::Item),
        (r#"{"metadata":{"namespace":"k","n\u0061mespace":"d"}}"#, Fault::Item),
        (r#"{"metadata":{"namespace":7}}"#, Fault::Item),
        (r#"{"metadata":{"namespace":"?"}}"#, Fault::Item),
        (r#"{"metadata":null}"#, Fault::Item),
        (r#"{"metadata":"k"}"#, Fault::Item),
        (r#"{"Metadata":{"namespace":"k"}}"#, Fault::Item),
        (r"{}", Fault::Item),
        ("null", Fault::NotAnObject),
        ("7", Fault::NotAnObject),
        (r#""k""#, Fault::NotAnObject),
        ("[]", Fault::NotAnObject),
    ];
    for (text, fault) in cases {
        assert_eq!(list_fault(Encoding::Json, item(text).as_bytes()), Some(fault), "{text}");
    }
    let broken_utf8 = [b"{\"items\":[{\"metadata\":{\"namespace\":\"k\xff\"}}]}".as_slice()];
    assert_eq!(list_fault(Encoding::Json, broken_utf8[0]), Some(Fault::Item));
    let long = item(&format!(r#"{{"metadata":{{"namespace":"k{}"}}}}"#, "a".repeat(600)));
    assert_eq!(list_fault(Encoding::Json, long.as_bytes()), Some(Fault::Item));
    let twice = [write::field(1, &write::field(3, b"k")), write::field(1, &write::field(3, b"d"))];
    let body = proto_list(&[twice.concat()]);
    assert_eq!(list_fault(Encoding::Protobuf, &body), Some(Fault::Item));
}

#[test]
fn t43_only_the_items_own_metadata_decides() {
    let body = json!({"metadata": {"namespace": "k"}, "items": [{
        "spec": {"metadata": {"namespace": "k"}, "items": [{"metadata": {"namespace": "k"}}]},
        "metadata": {"labels": {"namespace": "k"}, "ownerReferences": [{"namespace": "k"}],
            "namespace": "d", "name": "\"}]{\\"},
    }]});
    let filtered = list(Encoding::Json, &[body.to_string().as_bytes()]).expect("a list");
    assert_eq!(filtered.counts, Counts { kept: 0, dropped: 1 });
    let escaped = br#"{"i\u0074ems":[{"met\u0061data":{"n\u0061mespace":"\u006b"}},{"metadata":{"namespace":"d"}}]}"#;
    let filtered = list(Encoding::Json, &[escaped]).expect("a list");
    assert_eq!(filtered.counts, Counts { kept: 1, dropped: 1 });
}

#[test]
fn what_is_no_list_never_leaves() {
    let secret = r#"{"kind":"Other","entries":[{"metadata":{"namespace":"d"}}]}"#;
    assert_eq!(list_fault(Encoding::Json, secret.as_bytes()), Some(Fault::NotAList));
    let cbor = cbor(&json!({"entries": [1]}), 4);
    assert_eq!(list_fault(Encoding::Cbor, &cbor), Some(Fault::NotAList));
    let odd = r#"{"items":{"a":{"metadata":{"namespace":"d"}}}}"#;
    assert_eq!(list_fault(Encoding::Json, odd.as_bytes()), Some(Fault::NotItems));
    assert_eq!(list_fault(Encoding::Json, b"{\"items\":[{\"meta"), Some(Fault::Truncated));
    let mut filter = ListFilter::new(Encoding::Json).expect("a list");
    let mut out = Vec::new();
    let fed = filter.feed(&secret.as_bytes()[..40], &mut |object| rule(object), &mut out);
    assert_eq!((fed, out.as_slice()), (Ok(()), b"".as_slice()));
    let null = br#"{"kind":"PodList","items":null,"metadata":{}}"#;
    assert_eq!(list(Encoding::Json, &[null]).expect("a list").body, null);
}

#[test]
fn memory_is_that_of_one_item() {
    let items: Vec<_> = (0..2000).map(|n| pod(if n % 2 == 0 { "k" } else { "d" }, "x")).collect();
    let value = pods(&items);
    let proto: Vec<_> =
        (0..2000).map(|n| proto_item(if n % 2 == 0 { "k" } else { "d" }, "x")).collect();
    for (encoding, body) in [
        (Encoding::Json, value.to_string().into_bytes()),
        (Encoding::Cbor, cbor(&value, 4)),
        (Encoding::Protobuf, proto_list(&proto)),
    ] {
        let mut filter = ListFilter::new(encoding).expect("a list");
        for chunk in body.chunks(16 << 10) {
            let mut out = Vec::new();
            filter.feed(chunk, &mut |object| rule(object), &mut out).expect("a list");
            assert!(filter.held() < 64 << 10, "{} bytes", filter.held());
        }
    }
}

fn any_item() -> impl Strategy<Value = Value> {
    let namespace = prop::sample::select(vec!["k1", "k2", "d1", "d2"]);
    (namespace, "[a-z]{1,9}", any_value(), any_value()).prop_map(|(ns, name, noise, spec)| {
        json!({"metadata": {"name": name, "namespace": ns, "other": noise}, "spec": spec})
    })
}

proptest! {
    #[test]
    fn t36_any_split_of_any_list_gives_the_list_of_what_is_kept(
        items in prop::collection::vec(any_item(), 0..6),
        is_table in any::<bool>(),
        noise in any_value(),
        style in 0u8..8,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut value = pods(&items);
        if is_table {
            let rows: Vec<_> = items.iter().map(|item| json!({"cells": [1], "object": item})).collect();
            value = json!({"kind": "Table", "metadata": {"remainingItemCount": 3}, "rows": rows});
        }
        value["noise"] = noise;
        // A string in pieces may be cut within a character, which the oracle does not read.
        let style = style & 5;
        let text = pretty(&value, style);
        let filtered = list(Encoding::Json, &split(&text, &cuts)).expect("a list");
        prop_assert_eq!(json_of(&filtered.body), thinned(&json_of(&text)));
        let binary = cbor(&value, style);
        let filtered = list(Encoding::Cbor, &split(&binary, &cuts)).expect("a list");
        prop_assert_eq!(cbor_of(&filtered.body), cbor_of(&cbor(&thinned(&value), style)));
        let bytes: Vec<_> = binary.chunks(1).collect();
        prop_assert_eq!(list(Encoding::Cbor, &bytes).expect("a list").body, filtered.body);
    }

    #[test]
    fn t34_any_split_of_protobuf_keeps_its_length(
        items in prop::collection::vec((prop::sample::select(vec!["k", "d"]), "[a-z]{0,200}"), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let written: Vec<_> = items.iter().map(|(ns, name)| proto_item(ns, name)).collect();
        let body = proto_list(&written);
        let filtered = list(Encoding::Protobuf, &split(&body, &cuts)).expect("a list");
        prop_assert_eq!(filtered.body.len(), body.len());
        let raw = fields(&field_of(&filtered.body[4..], 2));
        let kept: Vec<_> = raw.into_iter().filter(|(number, _)| *number == 2).map(|(_, item)| item).collect();
        let expected: Vec<_> = items.iter().zip(written).filter(|((ns, _), _)| *ns == "k").map(|(_, item)| item).collect();
        prop_assert_eq!(kept, expected);
    }

    #[test]
    fn damaged_lists_split_alike_and_never_panic(
        items in prop::collection::vec(any_item(), 0..3),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let proto: Vec<_> = items.iter().map(|item| proto_item(item["metadata"]["namespace"].as_str().unwrap_or(""), "x")).collect();
        let value = pods(&items);
        for (encoding, mut body) in [
            (Encoding::Json, value.to_string().into_bytes()),
            (Encoding::Cbor, cbor(&value, 4)),
            (Encoding::Protobuf, proto_list(&proto)),
        ] {
            for (at, byte) in &damage {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            let outcome = |filtered: Result<Filtered, FrameError>| match filtered {
                Ok(filtered) => Ok(filtered.body),
                Err(error) => Err(error.fault),
            };
            let whole = outcome(list(encoding, &[&body]));
            prop_assert_eq!(outcome(list(encoding, &split(&body, &cuts))), whole);
        }
    }
}

#[test]
fn an_item_larger_than_anything_stored_is_refused_whole_and_in_chunks() {
    let body = |fill: usize| {
        let meta = write::field(1, &write::field(3, b"k"));
        proto_list(&[[meta, write::field(2, &vec![0; fill])].concat()])
    };
    let (fits, is_too_large) = (body((64 << 20) - 1000), body(64 << 20));
    for size in [1 << 20, usize::MAX] {
        let fault = |body: &[u8]| {
            let chunks: Vec<_> = body.chunks(size).collect();
            list(Encoding::Protobuf, &chunks).err().map(|error| error.fault)
        };
        assert_eq!(fault(&fits), None, "{size}");
        assert_eq!(fault(&is_too_large), Some(Fault::TooLarge), "{size}");
    }
}
