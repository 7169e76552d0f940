use std::fmt::Write as _;
use std::path::Path;

use ciborium::Value;

use crate::Encoding;
use crate::status::{Cause, Details, Reason, Status};

const ALL: [Encoding; 4] = [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor];

fn full() -> Status {
    let details = Details {
        name: "n".to_owned(),
        group: "apps".to_owned(),
        kind: "deployments".to_owned(),
        uid: "u-1".to_owned(),
        causes: vec![
            Cause {
                reason: "ResourceVersionTooLarge".into(),
                message: "m".to_owned(),
                field: "f".to_owned(),
            },
            Cause { message: "only".to_owned(), ..Cause::default() },
        ],
        retry_after_seconds: Some(3),
    };
    let status = Status::new(Reason::Expired, "The \"policy\" <changed> é\n");
    Status { details: Some(details), ..status }
}

fn small() -> Status {
    Status::new(Reason::InternalError, "no")
}

/// The bytes in the golden file are written by the serializers of Kubernetes 1.37, except the YAML.
#[test]
fn t71_bodies_and_error_events_are_upstreams_bytes() {
    let mut found = String::new();
    for (name, status) in [("full", full()), ("small", small())] {
        for encoding in ALL {
            for (form, bytes) in
                [("object", status.encode(encoding)), ("event", status.error_event(encoding))]
            {
                writeln!(found, "{name} {form} {encoding:?}").expect("memory");
                match std::str::from_utf8(&bytes) {
                    Ok(text) if encoding != Encoding::Protobuf => {
                        writeln!(found, "{}", text.trim_end()).expect("memory");
                    }
                    _ => writeln!(found, "{}", hex(&bytes)).expect("memory"),
                }
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/status.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &found).expect("golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).expect("golden file, written with BLESS=1");
    assert_eq!(found, golden, "BLESS=1 rewrites {}", path.display());
}

#[test]
fn t71_json_and_yaml_say_the_same() {
    for status in [full(), small()] {
        let json: serde_json::Value =
            serde_json::from_slice(&status.encode(Encoding::Json)).expect("JSON");
        let yaml: serde_json::Value =
            serde_yaml::from_slice(&status.encode(Encoding::Yaml)).expect("YAML");
        assert_eq!(json, yaml);
        assert_eq!(json["kind"], "Status");
        assert_eq!(json["message"], status.message.as_ref());
        assert_eq!(json["code"], status.code);
        let event: serde_json::Value =
            serde_json::from_slice(&status.error_event(Encoding::Json)).expect("JSON");
        assert_eq!(event["type"], "ERROR");
        assert_eq!(event["object"], json);
    }
}

#[test]
fn t71_cbor_says_what_json_says() {
    for status in [full(), small()] {
        let json: serde_json::Value =
            serde_json::from_slice(&status.error_event(Encoding::Json)).expect("JSON");
        let bytes = status.error_event(Encoding::Cbor);
        assert!(bytes.starts_with(&[0xd9, 0xd9, 0xf7]));
        let cbor: Value = ciborium::from_reader(&*bytes).expect("CBOR");
        assert_eq!(to_json(&cbor), json);
    }
}

#[test]
fn t71_protobuf_events_are_framed() {
    let status = full();
    let object = status.encode(Encoding::Protobuf);
    let event = status.error_event(Encoding::Protobuf);
    let (length, message) = event.split_at(4);
    assert_eq!(length, u32::try_from(message.len()).expect("short").to_be_bytes());
    assert!(object.starts_with(b"k8s\0"));
    assert!(message.ends_with(&object));
    assert!(message.starts_with(b"\x0a\x05ERROR\x12"));
}

/// Lengths at each change of the length's own size, in each encoding.
#[test]
fn long_messages_stay_readable() {
    for length in [23, 24, 127, 128, 255, 256, 16_384, 65_535, 65_536] {
        let status = Status::new(Reason::BadRequest, "x".repeat(length));
        let cbor: Value = ciborium::from_reader(&*status.encode(Encoding::Cbor)).expect("CBOR");
        assert_eq!(to_json(&cbor)["message"].as_str().map(str::len), Some(length));
    }
}

fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Bytes(bytes) => String::from_utf8(bytes.clone()).expect("text").into(),
        Value::Integer(number) => i64::try_from(*number).expect("small").into(),
        Value::Array(items) => items.iter().map(to_json).collect(),
        Value::Map(fields) => fields
            .iter()
            .map(|(name, value)| {
                (to_json(name).as_str().expect("a key").to_owned(), to_json(value))
            })
            .collect(),
        Value::Tag(55799, inner) => to_json(inner),
        other => panic!("upstream does not write {other:?} in a Status"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
