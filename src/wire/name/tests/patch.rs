use super::{renamed, renamed_text, repeated, wrong};
use crate::name::{BodyKind::JsonPatch, NameError};

#[test]
fn t72_json_patch_names_are_found_wherever_an_operation_has_them() {
    for patch in [
        r#"[{"op":"replace","path":"/metadata/name","value":<name>}]"#,
        r#" [ { "value" : <name> , "path" : "/metadata/name", "op" : "add" } ] "#,
        r#"[{"op":"test","path":"/metadata/name","value":<name>},{"op":"replace","path":"/spec/holderIdentity","value":"lock"}]"#,
        r#"[{"op":"test","path":"/metadata/name","value":<name>},{"op":"add","path":"/metadata/name","value":<name>,"x":1}]"#,
        r#"[{"op":"add","path":"/metadata","value":{"labels":{"name":"lock"},"name":<name>}}]"#,
        r#"[{"op":"replace","path":"/metadata","value":{"name":<name>}}]"#,
        r#"[{"op":"replace","path":"","value":{"kind":"Lease","metadata":{"name":<name>}}}]"#,
        r#"[{"op":"test","path":"","value":{"kind":"ConfigMap","metadata":{"name":<name>}}}]"#,
        r#"[{"\u006fp":"r\u0065place","path":"\u002fmetadata/n\u0061me","value":<name>}]"#,
        // The API server drops the text before the first slash.
        r#"[{"op":"replace","path":"x/metadata/name","value":<name>}]"#,
    ] {
        let expected = patch.replace("<name>", "\"lock---s1\"");
        for name in ["\"lock\"", "\"\\u006cock\""] {
            let body = patch.replace("<name>", name);
            assert_eq!(renamed_text(JsonPatch, &body), Ok(Some(expected.clone())), "{body}");
        }
        assert_eq!(renamed(JsonPatch, patch.replace("<name>", "\"other\"")), Ok(None), "{patch}");
        assert_eq!(renamed(JsonPatch, patch.replace("<name>", "null")), Ok(None), "{patch}");
    }
}

#[test]
fn t72_json_patch_of_other_fields_stays() {
    for body in [
        "[]",
        r#"[{}]"#,
        r#"[{"op":"add","path":"/metadata/name"}]"#,
        r#"[{"op":"remove","path":"/metadata/name","value":"lock"}]"#,
        r#"[{"op":"move","path":"/metadata/name","from":"/spec/x","value":"lock"}]"#,
        r#"[{"op":"Replace","path":"/metadata/name","value":"lock"}]"#,
        r#"[{"op":"replace","path":"/metadata~1name","value":"lock"}]"#,
        r#"[{"op":"replace","path":"/metadata/name~0","value":"lock"}]"#,
        r#"[{"op":"replace","path":"/metadata/name/","value":"lock"}]"#,
        r#"[{"op":"replace","path":"//metadata/name","value":"lock"}]"#,
        r#"[{"op":"replace","path":"/Metadata/name","value":"lock"}]"#,
        r#"[{"op":"replace","path":"metadata","value":{"name":"lock"}}]"#,
        r#"[{"op":"add","path":"/metadata/labels","value":{"name":"lock"}}]"#,
        r#"[{"op":"replace","path":"/data","value":{"metadata":{"name":"lock"}}}]"#,
        r#"[{"op":"add","path":"/metadata","value":{"labels":{}}}]"#,
    ] {
        assert_eq!(renamed(JsonPatch, body), Ok(None), "{body}");
    }
}

#[test]
fn t72_json_patch_that_cannot_be_relied_on_is_refused() {
    let malformed = NameError::Malformed(JsonPatch);
    let name = r#""path":"/metadata/name","value":"lock""#;
    for (body, expected) in [
        (format!(r#"[{{"op":"add",{name},"op":"remove"}}]"#), repeated("op")),
        (format!(r#"[{{"op":"add",{name},"path":"/x"}}]"#), repeated("path")),
        (format!(r#"[{{"op":"add",{name},"v\u0061lue":"x"}}]"#), repeated("value")),
        (
            r#"[{"op":"add","path":"/metadata","value":{"name":"a","name":"lock"}}]"#.to_owned(),
            repeated("metadata.name"),
        ),
        (
            r#"[{"op":"add","path":"/metadata/name","value":1}]"#.to_owned(),
            wrong("metadata.name", "a string"),
        ),
        (
            r#"[{"op":"add","path":"/metadata","value":[]}]"#.to_owned(),
            wrong("metadata", "an object"),
        ),
        (r#"[{"op":1,"path":"","value":1}]"#.to_owned(), wrong("op", "a string")),
        (r#"[{"op":"add","path":[],"value":1}]"#.to_owned(), wrong("path", "a string")),
        ("[null]".to_owned(), wrong("an operation", "an object")),
        // A fault of one operation is reported after a fault of the whole.
        (format!(r#"[null,{{"op":"add",{name}}}"#), malformed),
        (format!(r#"{{"op":"add",{name}}}"#), malformed),
        (format!(r#"[{{"op":"add",{name}}}]]"#), malformed),
        (String::new(), malformed),
    ] {
        assert_eq!(renamed(JsonPatch, &body), Err(expected), "{body}");
    }
    assert_eq!(
        renamed(JsonPatch, r#"[{"op":"add","path":"/metadata/name","value":"\ud800"}]"#),
        Err(malformed)
    );
}
