use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::selector::{FieldSelector, FieldSelectorError, LabelError, Op, Requirement, Selector};

fn parse(text: &str) -> Selector {
    Selector::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn matches(selector: &Selector, labels: &BTreeMap<String, String>) -> bool {
    selector.matches(|key| labels.get(key).map(String::as_str))
}

#[test]
fn t46_the_grammar_is_upstreams() {
    for (text, printed) in [
        ("", ""),
        ("  \t\r\n", ""),
        ("a", "a"),
        ("!a", "!a"),
        ("! a", "!a"),
        ("a=b", "a=b"),
        ("a==b", "a=b"),
        ("a = b", "a=b"),
        ("a != b", "a!=b"),
        ("a=", "a="),
        ("a=,b", "a=,b"),
        ("a!=", "a!="),
        ("z,a", "a,z"),
        ("a,a=b,a", "a=b,a"),
        ("a in (c,b,b)", "a in (b,c)"),
        ("a in (b)", "a=b"),
        ("a notin (b)", "a!=b"),
        ("a notin(b,c)", "a notin (b,c)"),
        ("a in ()", "a="),
        ("a in (,)", "a="),
        ("a in (b,)", "a in (,b)"),
        ("a in (,b)", "a in (,b)"),
        ("a in (b,,c)", "a in (,b,c)"),
        ("in in (in,notin)", "in in (in,notin)"),
        ("in", "in"),
        ("!notin", "!notin"),
        ("a=in", "a=in"),
        ("a>5", "a>5"),
        ("a<05", "a<05"),
        ("example.com/a.b_c-D=X.y_z-0", "example.com/a.b_c-D=X.y_z-0"),
        // A NUL ends the token before it; alone it ends the text.
        ("a=b\0,c", "a=b,c"),
        ("a=b \0 nonsense ((", "a=b"),
        ("\0)(", ""),
    ] {
        assert_eq!(parse(text).to_string(), printed, "{text:?}");
    }
    let long = format!("{}/{}={}", "p".repeat(253), "n".repeat(63), "v".repeat(63));
    assert_eq!(parse(&long).to_string(), long);
}

#[test]
fn errors_name_position_and_reason() {
    for (text, position, reason) in [
        (",a", 0, "found \",\", expected '!' or a key"),
        ("a,", 2, "found \"the end\", expected '!' or a key"),
        ("a,,b", 2, "found \",\", expected '!' or a key"),
        ("!", 1, "found \"the end\", expected a key"),
        ("!!a", 1, "found \"!\", expected a key"),
        ("!a=b", 2, "found \"=\", expected ',' or the end"),
        ("a b", 2, "found \"b\", expected one of = == != in notin < >"),
        ("a=b=c", 3, "found \"=\", expected ',' or the end"),
        ("a===b", 3, "found \"=\", expected a value"),
        ("a=(b)", 2, "found \"(\", expected a value"),
        ("a in b", 5, "found \"b\", expected '('"),
        ("a in (b", 7, "found \"the end\", expected ',' or ')'"),
        ("a in (b c)", 8, "found \"c\", expected ',' or ')'"),
        ("a in (!b)", 6, "found \"!\", expected a value, ',' or ')'"),
        ("a in (b),", 9, "found \"the end\", expected '!' or a key"),
        ("a in (b)c", 8, "found \"c\", expected ',' or the end"),
        ("=a", 0, "found \"=\", expected '!' or a key"),
        ("a\0b", 2, "found \"b\", expected one of = == != in notin < >"),
    ] {
        let error = Selector::parse(text).expect_err(text);
        assert_eq!((error.position, error.reason.as_str()), (position, reason), "{text:?}");
    }
    let error = Selector::parse("ok, -x in (y)").expect_err("bad key");
    assert_eq!(error.position, 4);
    assert!(
        error.to_string().starts_with("label selector: at byte 4: label key \"-x\" is invalid")
    );
}

#[test]
fn keys_and_values_are_validated() {
    for text in [
        "-a",
        "a-",
        "a/b/c",
        "/a",
        "a/",
        "A/b",
        "a..b/c",
        "-a/b",
        "a_b/c",
        "ä",
        "a=-b",
        "a=b-",
        "a=ä",
        "a=b/c",
        "a>x",
        "a>",
        "a>1.5",
        "a<9223372036854775808",
        "a>-1",
        ".a",
        "a=.",
    ] {
        assert!(Selector::parse(text).is_err(), "{text:?}");
    }
    assert!(Selector::parse(&"k".repeat(64)).is_err());
    assert!(Selector::parse(&format!("a={}", "v".repeat(64))).is_err());
    assert!(Selector::parse(&format!("{}/a", "p".repeat(254))).is_err());
}

#[test]
fn requirements_from_their_pieces() {
    let count = |op, values: &[&str]| Requirement::new("a", op, values.iter().copied());
    assert!(matches!(count(Op::In, &[]), Err(LabelError::ValueCount { .. })));
    assert!(matches!(count(Op::NotIn, &[]), Err(LabelError::ValueCount { .. })));
    assert!(matches!(count(Op::Exists, &["x"]), Err(LabelError::ValueCount { .. })));
    assert!(matches!(count(Op::GreaterThan, &["1", "2"]), Err(LabelError::ValueCount { .. })));
    assert!(matches!(count(Op::LessThan, &["x"]), Err(LabelError::NotInteger(_))));
    assert!(matches!(Requirement::equals("a b", "x"), Err(LabelError::Key(_))));
    assert!(matches!(Requirement::equals("a", "x y"), Err(LabelError::Value(_))));
    let selector: Selector = [
        Requirement::equals("tier", "gold").expect("valid"),
        count(Op::In, &["y", "x"]).expect("valid"),
        count(Op::DoesNotExist, &[]).expect("valid"),
    ]
    .into_iter()
    .collect();
    assert_eq!(selector.to_string(), "a in (x,y),!a,tier=gold");
    assert_eq!(selector, parse("tier in (gold),!a,a in (x,y)"));
}

#[test]
fn t46_another_shard_and_ours_is_nothing() {
    let both = parse("shard=b").and(&parse("shard=a"));
    assert_eq!(both.to_string(), "shard=a,shard=b");
    for shard in ["a", "b", "c"] {
        assert!(!both.matches(|_| Some(shard)));
    }
    assert!(!both.matches(|_| None));
}

#[test]
fn values_are_judged_as_upstream_judges() {
    let judge = |text: &str, value: Option<&'static str>| parse(text).matches(|_| value);
    for (text, value, expected) in [
        ("a=b", Some("b"), true),
        ("a=b", Some("c"), false),
        ("a=b", None, false),
        ("a=", Some(""), true),
        ("a=", None, false),
        ("a!=b", None, true),
        ("a!=b", Some("c"), true),
        ("a!=b", Some("b"), false),
        ("a in (b,c)", Some("c"), true),
        ("a notin (b,c)", Some("c"), false),
        ("a notin (b,c)", None, true),
        ("a", Some(""), true),
        ("!a", Some(""), false),
        ("!a", None, true),
        ("a>5", Some("6"), true),
        ("a>5", Some("5"), false),
        ("a<5", Some("-6"), true),
        ("a<5", Some("x"), false),
        ("a<5", None, false),
        ("", None, true),
    ] {
        assert_eq!(judge(text, value), expected, "{text} {value:?}");
    }
}

#[test]
fn field_selectors_find_the_name() {
    for (text, name) in [
        ("", None),
        ("metadata.name=a", Some("a")),
        ("metadata.name==a", Some("a")),
        ("metadata.name!=a", None),
        ("metadata.namespace=n,metadata.name=a", Some("a")),
        ("metadata.name=a\\,b\\=c\\\\d", Some("a,b=c\\d")),
        ("metadata.name=a!b", Some("a!b")),
        (",,metadata.name=a,", Some("a")),
        (" metadata.name=a", None),
        ("metadata.name= a", Some(" a")),
        ("x\\,metadata.name=a", None),
        ("x=\\\\,metadata.name=a", Some("a")),
        ("metadata.name=b,metadata.name==z", Some("z")),
    ] {
        let selector = FieldSelector::parse(text).expect(text);
        assert_eq!(selector.requires("metadata.name"), name, "{text:?}");
    }
    for text in ["a", "a,b=c", "a!b"] {
        assert!(matches!(FieldSelector::parse(text), Err(FieldSelectorError::NoOperator(_))));
    }
    for text in ["a=b=c", "a=\\x", "a=b\\", "a===b"] {
        assert!(matches!(FieldSelector::parse(text), Err(FieldSelectorError::Escape(_))), "{text}");
    }
}

#[test]
fn t72_the_name_in_a_field_selector_is_replaced() {
    let rename = |text: &str| {
        FieldSelector::parse(text)
            .expect(text)
            .replace("metadata.name", |name| (name == "lock").then(|| "lock---a,b".to_owned()))
    };
    assert_eq!(rename("metadata.name=lock").as_deref(), Some("metadata.name=lock---a\\,b"));
    assert_eq!(
        rename("x=\\,,metadata.name!=lock,metadata.name==other").as_deref(),
        Some("x=\\,,metadata.name!=lock---a\\,b,metadata.name==other")
    );
    assert_eq!(rename("metadata.name=other,x=lock"), None);
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "x.io/a", "in", "notin"]).prop_map(str::to_owned)
}

fn value() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "a", "b", "in", "1", "7", "-1"]).prop_map(str::to_owned)
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let set = prop::sample::select(vec![Op::In, Op::NotIn]);
    let there = prop::sample::select(vec![Op::Exists, Op::DoesNotExist]);
    let order = prop::sample::select(vec![Op::GreaterThan, Op::LessThan]);
    let label = prop::sample::select(vec!["", "a", "b", "in", "1"]);
    let none: [String; 0] = [];
    prop_oneof![
        (key(), set, prop::collection::vec(label, 1..4))
            .prop_map(|(key, op, values)| Requirement::new(key, op, values).expect("valid")),
        (key(), there)
            .prop_map(move |(key, op)| Requirement::new(key, op, none.clone()).expect("valid")),
        (key(), order, 0..9i64).prop_map(|(key, op, bound)| Requirement::new(
            key,
            op,
            [bound.to_string()]
        )
        .expect("valid")),
    ]
}

fn selector() -> impl Strategy<Value = Selector> {
    prop::collection::vec(requirement(), 0..5).prop_map(|all| all.into_iter().collect())
}

proptest! {
    #[test]
    fn print_then_parse_is_the_same(selector in selector()) {
        prop_assert_eq!(parse(&selector.to_string()), selector);
    }

    #[test]
    fn t46_and_never_widens(
        a in selector(), b in selector(), labels in prop::collection::btree_map(key(), value(), 0..5),
    ) {
        let both = a.and(&b);
        prop_assert_eq!(matches(&both, &labels), matches(&a, &labels) && matches(&b, &labels));
        prop_assert_eq!(&both, &b.and(&a));
        prop_assert_eq!(parse(&both.to_string()), both);
    }

    #[test]
    fn no_text_panics(text in "([a-c/!=<>(), ]|in|notin|\\PC|\0){0,24}") {
        if let Ok(selector) = Selector::parse(&text) {
            prop_assert_eq!(parse(&selector.to_string()), selector);
        }
        let _ = FieldSelector::parse(&text).map(|fields| fields.requires("a").is_some());
    }
}
