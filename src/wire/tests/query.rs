use proptest::prelude::*;

use crate::query::{MAX_PAIRS, Query, QueryError, is_true};

type Changes<'a> = &'a [(&'a str, Option<&'a str>)];

fn query(raw: &str) -> Query<'_> {
    Query::parse(Some(raw)).expect("few pairs")
}

#[test]
fn t46_the_first_value_of_a_key_is_the_only_one() {
    let cases: &[(&str, &str, Option<&str>)] = &[
        ("", "watch", None),
        ("watch", "watch", Some("")),
        ("watch=", "watch", Some("")),
        ("watch=1&watch=0", "watch", Some("1")),
        ("labelSelector=a=b", "labelSelector", Some("a=b")),
        ("labelSelector=a%3Db&labelSelector=c", "labelSelector", Some("a=b")),
        ("labelSelector=a+b", "labelSelector", Some("a b")),
        ("labelSelector=a%2Bb", "labelSelector", Some("a+b")),
        ("label%53elector=x", "labelSelector", Some("x")),
        ("&&watch=1&", "watch", Some("1")),
        ("=x&watch=1", "", Some("x")),
        ("watch;=1", "watch;", None),
        ("watch=1;limit=2", "watch", None),
        ("watch=1;limit=2&watch=0", "watch", Some("0")),
        ("watch=%zz&watch=0", "watch", Some("0")),
        ("watch=%", "watch", None),
        ("watch=%4", "watch", None),
        ("%zz=1&watch=2", "watch", Some("2")),
        ("watch=%ff", "watch", Some("\u{fffd}")),
        ("Watch=1", "watch", None),
        ("a+b=1", "a+b", None),
        ("a%2Bb=1", "a+b", Some("1")),
        ("a+b=1", "a b", Some("1")),
        ("%61=1", "%61", None),
    ];
    for (raw, key, expected) in cases {
        assert_eq!(query(raw).first(key).as_deref(), *expected, "{raw} {key}");
    }
}

#[test]
fn t10_a_boolean_is_false_for_0_and_false_alone() {
    for (raw, expected) in [
        ("", None),
        ("a=%zz", None),
        ("a", Some(true)),
        ("a=", Some(true)),
        ("a=no", Some(true)),
        ("a=00", Some(true)),
        ("a=f", Some(true)),
        ("a=0", Some(false)),
        ("a=FaLsE", Some(false)),
        ("a=0&a=1", Some(false)),
        ("a=fal%C5%BFe", Some(false)),
        ("a=FAL%C5%BFE", Some(false)),
        ("a=fal%ffe", Some(true)),
    ] {
        assert_eq!(query(raw).first("a").as_deref().map(is_true), expected, "{raw}");
    }
}

#[test]
fn broken_pairs_are_counted() {
    assert_eq!(query("a=1&b=%zz&c=;&&d").broken_pairs(), 2);
    assert_eq!(query("a=1&b=%7a").broken_pairs(), 0);
}

#[test]
fn t46_rewrite_collapses_repeats_and_keeps_the_rest_byte_for_byte() {
    let cases: &[(&str, Changes<'_>, &str)] = &[
        ("", &[("a", Some("1"))], "a=1"),
        ("", &[("a", None)], ""),
        ("x=%7e&y=+", &[("a", Some("1"))], "x=%7e&y=+&a=1"),
        ("a=0&x&a=2", &[("a", Some("1"))], "a=1&x"),
        (
            "x&a=0&%61=2&y=",
            &[("a", Some("k in (b,c),!d e~"))],
            "x&a=k%20in%20%28b%2Cc%29%2C%21d%20e~&y=",
        ),
        ("x&a=0&%61=2&y=", &[("a", None)], "x&y="),
        ("a&b&c", &[("b", None), ("a", Some("é&=")), ("d", Some(""))], "a=%C3%A9%26%3D&c&d="),
        // Pairs that Go drops are removed: another server might read them.
        ("a=%zz&a=1;b=2&x&&y", &[("a", Some("1"))], "x&y&a=1"),
    ];
    for (raw, changes, expected) in cases {
        assert_eq!(query(raw).rewrite(changes), *expected, "{raw} {changes:?}");
    }
}

#[test]
fn t46_a_query_that_go_would_drop_altogether_is_refused() {
    let pairs = |count: usize| vec!["a"; count].join("&");
    assert!(Query::parse(Some(&pairs(MAX_PAIRS))).is_ok());
    assert_eq!(
        Query::parse(Some(&pairs(MAX_PAIRS + 1))),
        Err(QueryError::TooManyPairs(MAX_PAIRS + 1))
    );
    assert!(Query::parse(Some(&"&".repeat(MAX_PAIRS))).is_err());
}

proptest! {
    #[test]
    fn what_is_set_is_what_is_read(raw in "[a-c=&%+;0-9]{0,40}", key in "[a-d]{1,2}", value in ".{0,12}") {
        let rewritten = query(&raw).rewrite(&[(&key, Some(&value))]);
        let read = query(&rewritten);
        prop_assert!(read.first(&key).as_deref() == Some(value.as_str()));
        prop_assert_eq!(read.broken_pairs(), 0);
        let removed = query(&rewritten).rewrite(&[(&key, None)]);
        prop_assert_eq!(query(&removed).first(&key), None);
        for other in ["a", "b", "c", "x"].iter().filter(|other| **other != key) {
            prop_assert_eq!(read.first(other), query(&raw).first(other));
        }
    }
}
