#![allow(clippy::too_many_lines, reason = "tables of cases")]

mod cbor;
mod errors;
mod json;
mod namespace;
mod patch;
mod proto;
mod upstream;
mod yaml;

use proptest::prelude::*;

use super::{BodyKind, Field, NameError, rename};

const ALL: [BodyKind; 5] =
    [BodyKind::Json, BodyKind::JsonPatch, BodyKind::Yaml, BodyKind::Protobuf, BodyKind::Cbor];

/// Renames `lock` to `lock---s1`, and no namespace.
fn renamed(kind: BodyKind, body: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, NameError> {
    rename(kind, body.as_ref(), |field, name| {
        (field == Field::Name && name == "lock").then(|| "lock---s1".to_owned())
    })
}

/// Renames in a body that is text.
fn renamed_text(kind: BodyKind, body: &str) -> Result<Option<String>, NameError> {
    Ok(renamed(kind, body)?.map(|body| String::from_utf8(body).expect("text stays text")))
}

fn repeated(field: &'static str) -> NameError {
    NameError::Repeated(field)
}

fn wrong(field: &'static str, expected: &'static str) -> NameError {
    NameError::WrongType { field, expected }
}

fn indirect(field: &'static str) -> NameError {
    NameError::Indirect(field)
}

/// JSON objects with a name and random other members.
fn objects() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "\\PC{0,8}".prop_map(Into::into),
        "(lock|name|metadata|- a|#|\\n x: y|'|\"|\\\\|~|<<)".prop_map(Into::into),
    ];
    let key = "(name|metadata|[a-z.]{1,3}|\\PC{1,4})";
    let tree = leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    });
    let fields = move |tree| prop::collection::btree_map(key, tree, 0..4);
    (fields(tree.clone().boxed()), fields(tree.boxed())).prop_map(|(object, metadata)| {
        let mut object = serde_json::Value::Object(object.into_iter().collect());
        object["metadata"] = serde_json::Value::Object(metadata.into_iter().collect());
        object["metadata"]["name"] = "lock".into();
        object
    })
}

#[test]
fn t72_content_types_are_read_as_upstream_reads_them() {
    for (content_type, expected) in [
        (None, Some(BodyKind::Json)),
        (Some(""), Some(BodyKind::Json)),
        (Some("application/json"), Some(BodyKind::Json)),
        (Some("Application/JSON; charset=utf-8"), Some(BodyKind::Json)),
        (Some("application/merge-patch+json"), Some(BodyKind::Json)),
        (Some("application/strategic-merge-patch+json"), Some(BodyKind::Json)),
        (Some("application/json-patch+json"), Some(BodyKind::JsonPatch)),
        (Some("application/yaml"), Some(BodyKind::Yaml)),
        (Some("application/apply-patch+yaml"), Some(BodyKind::Yaml)),
        (Some("application/vnd.kubernetes.protobuf"), Some(BodyKind::Protobuf)),
        (Some("application/cbor"), Some(BodyKind::Cbor)),
        (Some("application/apply-patch+cbor"), Some(BodyKind::Cbor)),
        (Some("application/cbor-seq"), None),
        (Some("text/yaml"), None),
        (Some("json"), None),
        (Some(";"), None),
    ] {
        assert_eq!(BodyKind::of_content_type(content_type), expected, "{content_type:?}");
    }
}

#[test]
fn t72_a_body_longer_than_upstream_takes_is_refused() {
    let fits =
        format!("{{\"metadata\":{{\"name\":\"lock\"}}}}{}", " ".repeat(super::MAX_BODY - 28));
    assert_eq!(fits.len(), super::MAX_BODY);
    assert!(matches!(renamed(BodyKind::Json, &fits), Ok(Some(_))));
    for kind in ALL {
        let length = super::MAX_BODY + 1;
        assert_eq!(renamed(kind, vec![b' '; length]), Err(NameError::TooLarge(length)));
    }
}

#[test]
fn t72_the_same_name_again_is_no_change() {
    for kind in [BodyKind::Json, BodyKind::Yaml] {
        let body = br#"{"metadata":{"name":"lock"}}"#;
        assert_eq!(rename(kind, body, |_, text| Some(text.to_owned())), Ok(None));
    }
}

proptest! {
    #[test]
    fn t72_arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for kind in ALL {
            let _ = rename(kind, &body, |_, _| Some("x".to_owned()));
        }
        let magic = [b"k8s\0".as_slice(), &body].concat();
        let _ = rename(BodyKind::Protobuf, &magic, |_, _| Some("x".to_owned()));
    }

    #[test]
    fn t72_arbitrary_text_never_panics(
        body in "([ \\n]|metadata|name|lock|[\\[\\]{}:,\"'&*!<|>?-]|\\PC){0,60}",
    ) {
        for kind in ALL {
            let _ = rename(kind, body.as_bytes(), |_, _| Some("x".to_owned()));
        }
    }
}
