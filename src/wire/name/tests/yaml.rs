use proptest::prelude::*;

use super::{indirect, objects, renamed, renamed_text, repeated, wrong};
use crate::wire::name::{BodyKind::Yaml, NameError, rename};

#[test]
fn t72_yaml_keeps_every_other_byte() {
    for object in [
        "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata:\n  name: <name> # the lock\n  namespace: ns\nspec:\n  holderIdentity: lock\n  renewTime: 2024-01-01T00:00:00.000000Z\n  leaseDurationSeconds: 017\n",
        "# first\n---\nkind: ConfigMap\ndata: &d\n  name: lock\n  metadata: |\n    name: lock\n  on: yes\nmetadata:\n  annotations: *d\n  name:\n    <name>\n...\n",
        "{kind: Endpoints, subsets: [{ports: [{name: lock, port: 0x10}]}], metadata: {labels: {name: lock}, name: <name>}}",
        "metadata: {name: <name>}",
        "\"metadata\":\n  'name': <name>\n",
        "\"met\\x61data\":\n  n: &x 1\n  ? name\n  : <name>\n  y: *x\n",
        "metadata:\r\n  name: <name>\r\n  labels: {}\r\n",
        "%YAML 1.1\n---\nmetadata:\n  name: <name>\n",
        "é: \"\u{1f600}\"\nmetadata:\n  ü: ö\n  name: <name>\n",
        // Keys told apart by case; keys twice that are not ours.
        "Metadata: {name: lock}\nx: 1\nx: 2\nmetadata: {Name: lock, name: <name>}\n",
    ] {
        let expected = object.replace("<name>", "\"lock---s1\"");
        for name in ["lock", "'lock'", "\"lock\"", "\"l\\u006Fck\""] {
            let body = object.replace("<name>", name);
            assert_eq!(renamed_text(Yaml, &body), Ok(Some(expected.clone())), "{body}");
        }
        for other in ["other", "~", "null", "''", "lock---s1", "17"] {
            assert_eq!(
                renamed(Yaml, object.replace("<name>", other)),
                Ok(None),
                "{object} {other}"
            );
        }
    }
}

/// What is written is taken again: YAML 1.1 reads these as line breaks unless they are escapes.
#[test]
fn t72_yaml_writes_its_line_breaks_as_escapes() {
    for (body, expected) in [
        ("metadata: {name: \"a\\N\\L\\Pb\"}", r#"metadata: {name: "a\u0085\u2028\u2029b---s1"}"#),
        (r#"{"metadata":{"name":"a\u2028b"}}"#, r#"{"metadata":{"name":"a\u2028b---s1"}}"#),
    ] {
        let longer = |name: &str| (!name.ends_with("---s1")).then(|| format!("{name}---s1"));
        let renamed = rename(Yaml, body.as_bytes(), longer).unwrap().unwrap();
        assert_eq!(std::str::from_utf8(&renamed).unwrap(), expected);
        assert_eq!(rename(Yaml, &renamed, longer), Ok(None), "{expected}");
    }
    for raw in ['\u{85}', '\u{2028}', '\u{2029}'] {
        let body = format!(r#"{{"metadata":{{"name":"a{raw}b"}}}}"#);
        assert_eq!(renamed(Yaml, &body), Err(NameError::LineBreak), "{raw:?}");
        // Elsewhere they are the API server's to read.
        let body = format!(r#"{{"data":{{"a":"{raw}"}},"metadata":{{"name":"lock"}}}}"#);
        let expected = body.replace("lock", "lock---s1");
        assert_eq!(renamed_text(Yaml, &body), Ok(Some(expected)), "{raw:?}");
    }
}

#[test]
fn t72_yaml_without_a_name_stays() {
    for body in [
        "kind: Lease",
        "metadata:\nkind: Lease",
        "metadata: ~",
        "metadata: {}",
        "metadata:\n  name:\n  labels: {name: lock}\n",
        "data:\n  metadata:\n    name: lock\n",
    ] {
        assert_eq!(renamed(Yaml, body), Ok(None), "{body}");
    }
}

#[test]
fn t72_yaml_that_cannot_be_relied_on_is_refused() {
    let malformed = NameError::Malformed(Yaml);
    let object = wrong("the whole", "an object");
    for (body, expected) in [
        ("metadata: {name: lock}\nmetadata: {name: x}", repeated("metadata")),
        ("metadata: {name: lock}\n'metadata': ~", repeated("metadata")),
        ("metadata: {name: lock, \"n\\x61me\": ~}", repeated("metadata.name")),
        ("a: &a lock\nmetadata: {name: *a}", indirect("metadata.name")),
        ("metadata: {name: &a lock}\nspec: {holderIdentity: *a}", indirect("metadata.name")),
        ("metadata: {name: !!binary bG9jaw==}", indirect("metadata.name")),
        ("metadata: {name: !x lock}", indirect("metadata.name")),
        ("metadata:\n  name: |-\n    lock\n", indirect("metadata.name")),
        ("metadata:\n  name: >-\n    lock\n", indirect("metadata.name")),
        ("a: &a {name: lock}\nmetadata: *a", indirect("metadata")),
        ("metadata: &a {name: lock}\nb: *a", indirect("metadata")),
        ("metadata: !!map {name: lock}", indirect("metadata")),
        ("a: &a {name: lock}\nmetadata: {<<: *a}", indirect("metadata")),
        ("metadata: {!!merge <<: {name: lock}}", indirect("metadata")),
        ("a: &a name\nmetadata: {*a : lock}", indirect("metadata")),
        ("metadata: {!!binary bmFtZQ==: lock}", indirect("metadata")),
        ("metadata: {? {a: b} : lock}", indirect("metadata")),
        ("a: &a {metadata: {name: lock}}\n<<: *a", indirect("the whole")),
        ("? !!binary bWV0YWRhdGE=\n: {name: lock}", indirect("the whole")),
        ("&a\nmetadata: {name: lock}\n", indirect("the whole")),
        ("metadata: {name: [lock]}", wrong("metadata.name", "a string")),
        ("metadata: {name: {}}", wrong("metadata.name", "a string")),
        ("metadata: lock", wrong("metadata", "an object")),
        ("metadata: [name, lock]", wrong("metadata", "an object")),
        ("- metadata: {name: lock}", object),
        ("lock", object),
        ("", object),
        ("# none\n", object),
        ("---\n...\n", object),
        ("metadata: {name: lock}\n---\nkind: x\n", NameError::SeveralDocuments),
        ("metadata: {name: lock}\n---\n", NameError::SeveralDocuments),
        ("metadata: {name: lock", malformed),
        ("metadata: {name: lock}\nx: [", malformed),
        ("metadata: {name: lock}\nx: *nowhere", malformed),
        ("metadata:\n\tname: lock\n\t- x", malformed),
        ("x: a\u{2028}metadata: {name: lock}", NameError::LineBreak),
        ("x: \"a\u{85}b\"\nmetadata: {name: lock}", NameError::LineBreak),
    ] {
        assert_eq!(renamed(Yaml, body), Err(expected), "{body}");
    }
    let utf16: Vec<u8> =
        "metadata: {name: lock}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(renamed(Yaml, [b"\xff\xfe".as_slice(), &utf16].concat()), Err(malformed));
}

/// A question mark begins a key to libyaml, and a scalar to YAML 1.2.
#[test]
fn t72_yaml_that_is_another_object_to_the_api_server_is_refused() {
    for body in [
        "{metadata: {?\"name\": lock}}",
        "{metadata: {?name: lock}}",
        "{metadata: {x: y, ?name: lock}}",
        "{?metadata: {name: lock}}",
    ] {
        assert_eq!(renamed(Yaml, body), Err(indirect("metadata.name")), "{body}");
    }
}

#[test]
fn t72_yaml_of_many_parts_is_refused() {
    let body = |parts: usize| format!("metadata: {{name: lock}}\nx: [{}]\n", "a,".repeat(parts));
    assert!(matches!(renamed(Yaml, body(65_000)), Ok(Some(_))));
    assert_eq!(renamed(Yaml, body(66_000)), Err(NameError::TooManyParts));
}

/// Nine times nine times nine… is one pass over what was sent.
#[test]
fn t72_yaml_alias_bombs_are_not_expanded() {
    let mut body = String::from("a0: &a0 [lol]\n");
    for level in 1..30 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        body += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    body += "metadata:\n  name: ";
    let found = renamed_text(Yaml, &format!("{body}lock\n"));
    assert_eq!(found, Ok(Some(format!("{body}\"lock---s1\"\n"))));
}

proptest! {
    #[test]
    fn t72_yaml_is_the_same_object_by_another_name(object in objects()) {
        let body = serde_yaml::to_string(&object).expect("YAML");
        prop_assume!(!body.contains(['\u{85}', '\u{2028}', '\u{2029}']));
        // Written as a merge key, and refused as one.
        prop_assume!(object.get("<<").is_none() && object["metadata"].get("<<").is_none());
        let mut expected = object;
        expected["metadata"]["name"] = "lock---s1".into();
        match renamed(Yaml, &body) {
            Ok(found) => {
                let found = found.expect("has the name");
                prop_assert_eq!(found.len(), body.len() + "---s1".len() + 2);
                let found: serde_json::Value = serde_yaml::from_slice(&found).expect("YAML");
                prop_assert_eq!(found, expected);
            }
            Err(error) => prop_assert!(false, "{error}: {body}"),
        }
    }
}
