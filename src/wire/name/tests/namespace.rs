use super::{indirect, renamed, repeated, wrong};
use crate::name::{BodyKind, Field, NameError, name_of, rename};

/// Moves `lock` of `kube-system` to `ns`.
fn moved(kind: BodyKind, body: &str) -> Result<Option<String>, NameError> {
    let new = |field, text: &str| match (field, text) {
        (Field::Name, "lock") => Some("lock.kube-system---s1".to_owned()),
        (Field::Namespace, "kube-system") => Some("ns".to_owned()),
        _ => None,
    };
    let body = rename(kind, body.as_bytes(), new)?;
    Ok(body.map(|body| String::from_utf8(body).expect("text stays text")))
}

#[test]
fn t72_the_namespace_of_a_lock_is_replaced_beside_its_name() {
    for (kind, body) in [
        (
            BodyKind::Json,
            r#"{"metadata":{"name":<name>,"namespace":<namespace>,"labels":{"namespace":"kube-system"}}}"#,
        ),
        (
            BodyKind::Json,
            r#" {"spec":{"namespace":"kube-system"},"metadata":{ "namespace" : <namespace>, "name" : <name> } } "#,
        ),
        (BodyKind::Json, r#"{"metadata":{"namespace":<namespace>}}"#),
        (BodyKind::Yaml, r#"{"metadata":{"namespace":<namespace>,"name":<name>}}"#),
        (
            BodyKind::JsonPatch,
            r#"[{"op":"replace","path":"/metadata/namespace","value":<namespace>},{"op":"test","path":"/metadata/name","value":<name>}]"#,
        ),
        (
            BodyKind::JsonPatch,
            r#"[{"op":"add","path":"","value":{"metadata":{"namespace":<namespace>,"name":<name>}}},{"op":"add","path":"/metadata","value":{"name":<name>,"namespace":<namespace>}}]"#,
        ),
    ] {
        let with = |name: &str, namespace: &str| {
            body.replace("<name>", &format!("{name:?}"))
                .replace("<namespace>", &format!("{namespace:?}"))
        };
        let expected = with("lock.kube-system---s1", "ns");
        assert_eq!(moved(kind, &with("lock", "kube-system")), Ok(Some(expected)), "{kind} {body}");
        assert_eq!(moved(kind, &with("other", "other")), Ok(None), "{kind} {body}");
    }
}

#[test]
fn t72_a_namespace_that_cannot_be_relied_on_is_refused() {
    let field = "metadata.namespace";
    for (body, expected) in [
        (r#"{"metadata":{"namespace":"a","n\u0061mespace":"b"}}"#, repeated(field)),
        (r#"{"metadata":{"namespace":["a"],"name":"lock"}}"#, wrong(field, "a string")),
    ] {
        assert_eq!(renamed(BodyKind::Json, body), Err(expected), "{body}");
    }
    let tagged = b"\xa1\x48metadata\xa1\x49namespace\xc1\x42ns";
    assert_eq!(renamed(BodyKind::Cbor, tagged), Err(indirect(field)));
    let broken = "{\"metadata\":{\"namespace\":\"a\u{2028}b\"}}";
    assert_eq!(renamed(BodyKind::Yaml, broken), Err(NameError::LineBreak(field)));
}

#[test]
fn the_name_in_a_body_is_the_only_one() {
    for (kind, body, name) in [
        (BodyKind::Json, r#"{"metadata":{"namespace":"a","name":"b"}}"#, Some("b")),
        (BodyKind::Json, r#"{"metadata":{"namespace":"a","name":null}}"#, None),
        (BodyKind::JsonPatch, r#"[{"op":"test","path":"/metadata/name","value":"b"}]"#, Some("b")),
        (
            BodyKind::JsonPatch,
            r#"[{"op":"test","path":"/metadata/name","value":"b"},{"op":"add","path":"/metadata/name","value":"c"}]"#,
            None,
        ),
    ] {
        assert_eq!(name_of(kind, body.as_bytes()), Ok(name.map(str::to_owned)), "{body}");
    }
}
