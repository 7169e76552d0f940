use super::{renamed, renamed_text, repeated, wrong};
use crate::name::{BodyKind::Yaml, NameError, rename};

/// The output is accepted as input: YAML 1.1 reads these as line breaks unless they are escaped.
#[test]
fn t72_yaml_writes_its_line_breaks_as_escapes() {
    let body = r#"{"metadata":{"name":"a\u0085\u2028\u2029b"}}"#;
    let expected = r#"{"metadata":{"name":"a\u0085\u2028\u2029b---s1"}}"#;
    let longer = |_, name: &str| (!name.ends_with("---s1")).then(|| format!("{name}---s1"));
    let renamed_once = rename(Yaml, body.as_bytes(), longer).unwrap().unwrap();
    assert_eq!(std::str::from_utf8(&renamed_once).unwrap(), expected);
    assert_eq!(rename(Yaml, &renamed_once, longer), Ok(None));
    for raw in ['\u{85}', '\u{2028}', '\u{2029}'] {
        let body = format!(r#"{{"metadata":{{"name":"a{raw}b"}}}}"#);
        assert_eq!(renamed(Yaml, &body), Err(NameError::LineBreak("metadata.name")), "{raw:?}");
        // Outside of the name they are left to the API server.
        let body = format!(r#"{{"data":{{"a":"{raw}"}},"metadata":{{"name":"lock"}}}}"#);
        let expected = body.replace("lock", "lock---s1");
        assert_eq!(renamed_text(Yaml, &body), Ok(Some(expected)), "{raw:?}");
    }
}

#[test]
fn t72_json_that_cannot_be_relied_on_is_refused_as_yaml_too() {
    for (body, expected) in [
        (r#"{"metadata":{"name":"lock"},"metadata":{"name":"x"}}"#, repeated("metadata")),
        (r#"{"metadata":{"name":"lock","n\u0061me":null}}"#, repeated("metadata.name")),
        (r#"{"metadata":{"name":["lock"]}}"#, wrong("metadata.name", "a string")),
        (r#"{"metadata":"lock"}"#, wrong("metadata", "an object")),
        (r#"[{"metadata":{"name":"lock"}}]"#, wrong("the whole", "an object")),
        (r#""lock""#, wrong("the whole", "an object")),
        ("null", wrong("the whole", "an object")),
    ] {
        assert_eq!(renamed(Yaml, body), Err(expected), "{body}");
    }
}

#[test]
fn t72_yaml_that_is_no_json_is_refused() {
    for body in [
        "metadata: {name: lock}",
        "metadata: {name: other}",
        "kind: Lease",
        "{metadata: {name: lock}}",
        "{\"metadata\":{\"name\":\"lock\"},}",
        "{\"metadata\":{\"name\":'lock'}}",
        "{\"metadata\":{\"name\":\"lock\"}} # the lock",
        "{\"metadata\":{\"name\":\"lock\"}}\n---\n{}",
        "---\n{\"metadata\":{\"name\":\"lock\"}}",
        "\u{feff}{\"metadata\":{\"name\":\"lock\"}}",
        "{\"metadata\":{\"name\":\"lock\"}",
        "{\"metadata\":{\"name\":\"lo\n  ck\"}}",
        "{?\"metadata\":{\"name\":\"lock\"}}",
        "{\"<<\":*a,\"metadata\":{\"name\":\"lock\"}}",
        "lock",
        "",
        "# none\n",
    ] {
        assert_eq!(renamed(Yaml, body), Err(NameError::NotJson), "{body}");
    }
    let utf16 = "{\"metadata\":{}}".encode_utf16().flat_map(u16::to_le_bytes);
    assert_eq!(renamed(Yaml, utf16.collect::<Vec<_>>()), Err(NameError::NotJson));
}
