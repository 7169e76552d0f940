use proptest::prelude::*;

use super::{objects, renamed, renamed_text, repeated, wrong};
use crate::name::{
    BodyKind::{Json, Yaml},
    NameError,
};

/// Bodies in which `<name>` stands for the value.
const OBJECTS: [&str; 10] = [
    r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":<name>,"namespace":"ns"},"spec":{"holderIdentity":"lock","leaseDurationSeconds":15,"strategy":"OldestEmulationVersion"}}"#,
    "\r\n{ \"metadata\" :\t{ \"labels\": {\"name\": \"lock\"}, \"name\" : <name> } ,\n \"data\": {\"name\":\"lock\", \"metadata\":\"{\\\"name\\\":\\\"lock\\\"}\"}, \"kind\":\"ConfigMap\"} \n",
    r#"{"subsets":[{"ports":[{"name":"lock","port":1.50E+2}]}],"metadata":{"annotations":{"é\ud83d\ude00\/":"\u0000"},"name":<name>},"kind":"Endpoints"}"#,
    // What only looks like the way to the name.
    r#"{"name":"lock","metadata":{"metadata":{"name":"lock"},"name":<name>},"x":{"metadata":{"name":"lock"}}}"#,
    // Escaped keys equal the plain ones.
    r#"{"met\u0061data":{"n\u0061me":<name>}}"#,
    // Keys are case-sensitive.
    r#"{"Metadata":{"name":"lock"},"metadata":{"Name":"lock","name":<name>,"NAME":1}}"#,
    // Numbers that no float holds, a lone surrogate, repeated keys that are not ours.
    r#"{"x":123456789012345678901234567890,"y":-0.0,"z":"\ud800","x":1e999,"metadata":{"name":<name>,"x":1,"x":2}}"#,
    // Patches of the object's shape.
    r#"{"metadata":{"name":<name>,"resourceVersion":"12"},"spec":{"renewTime":null}}"#,
    r#"{"$retainKeys":["metadata"],"metadata":{"$patch":"merge","name":<name>}}"#,
    r#"{"metadata":{"ownerReferences":[{"name":"lock"}],"name":<name>,"managedFields":[{"fieldsV1":{"f:metadata":{"name":"lock"}}}]}}"#,
];

#[test]
fn t72_json_keeps_every_other_byte() {
    for object in OBJECTS {
        let expected = object.replace("<name>", "\"lock---s1\"");
        for name in ["\"lock\"", "\"l\\u006fck\""] {
            let body = object.replace("<name>", name);
            for kind in [Json, Yaml] {
                assert_eq!(renamed_text(kind, &body), Ok(Some(expected.clone())), "{kind} {body}");
            }
        }
        for other in ["\"other\"", "\"lock---s1\"", "\"Lock\"", "\"\"", "null"] {
            let body = object.replace("<name>", other);
            assert_eq!(renamed(Json, &body), Ok(None), "{body}");
        }
    }
}

#[test]
fn t72_json_without_a_name_stays() {
    for body in [
        "{}",
        r#"{"metadata":null}"#,
        r#"{"metadata":{}}"#,
        r#"{"metadata":{"generateName":"lock"}}"#,
        r#"{"name":"lock","data":{"metadata":{"name":"lock"}}}"#,
        r#"{"METADATA":{"name":"lock"}}"#,
    ] {
        assert_eq!(renamed(Json, body), Ok(None), "{body}");
    }
}

#[test]
fn t72_json_that_cannot_be_relied_on_is_refused() {
    let malformed = NameError::Malformed(Json);
    for (body, expected) in [
        (r#"{"metadata":{"name":"lock"},"metadata":{"name":"lock"}}"#, repeated("metadata")),
        (r#"{"metadata":{"name":"lock"},"m\u0065tadata":null}"#, repeated("metadata")),
        (r#"{"metadata":{"name":"lock","name":"lock"}}"#, repeated("metadata.name")),
        (r#"{"metadata":{"name":"a","n\u0061me":"b"},"x":1}"#, repeated("metadata.name")),
        (r#"{"metadata":{"name":5}}"#, wrong("metadata.name", "a string")),
        (r#"{"metadata":{"name":["lock"]}}"#, wrong("metadata.name", "a string")),
        (r#"{"metadata":"lock"}"#, wrong("metadata", "an object")),
        (r#"[{"metadata":{"name":"lock"}}]"#, wrong("the whole", "an object")),
        ("null", wrong("the whole", "an object")),
        ("", malformed),
        (r#"{"metadata":{"name":"lock"}"#, malformed),
        (r#"{"metadata":{"name":"lock"}}}"#, malformed),
        (r#"{"metadata":{"name":"lock"}} {}"#, malformed),
        (r#"{"metadata":{"name":"lock"},}"#, malformed),
        (r#"{"metadata":{"name":"lock"},"x":01}"#, malformed),
        ("\u{feff}{\"metadata\":{\"name\":\"lock\"}}", malformed),
        (r#"{"metadata":{"name":"\ud800"}}"#, malformed),
    ] {
        assert_eq!(renamed(Json, body), Err(expected), "{body}");
    }
    let bytes = b"{\"metadata\":{\"name\":\"lock\"},\"x\":\"\xff\"}";
    assert_eq!(renamed(Json, bytes), Err(malformed));
}

#[test]
fn t72_json_is_read_as_deep_as_upstream_reads_it() {
    let body = |depth, name| {
        let deep = "[".repeat(depth) + &"]".repeat(depth);
        format!(r#"{{"x":{deep},"metadata":{{"y":{deep},"name":"{name}"}}}}"#)
    };
    let deepest = renamed_text(Json, &body(10_000, "lock"));
    assert!(deepest == Ok(Some(body(10_000, "lock---s1"))));
    // Takes no stack. The depth is compared once in 64 bytes.
    for depth in [10_064, 700_000] {
        assert!(renamed(Json, body(depth, "lock")) == Err(NameError::TooDeep), "{depth}");
    }
    let open = "{\"metadata\":".repeat(100_000);
    assert_eq!(renamed(Json, open), Err(NameError::Malformed(Json)));
}

proptest! {
    #[test]
    fn t72_json_is_the_same_object_by_another_name(object in objects(), pretty in any::<bool>()) {
        let body = if pretty {
            serde_json::to_string_pretty(&object).expect("JSON")
        } else {
            object.to_string()
        };
        let mut expected = object;
        expected["metadata"]["name"] = "lock---s1".into();
        let found = renamed(Json, &body).expect("well-formed").expect("has the name");
        prop_assert_eq!(found.len(), body.len() + "---s1".len());
        let found: serde_json::Value = serde_json::from_slice(&found).expect("JSON");
        prop_assert_eq!(found, expected);
    }
}
