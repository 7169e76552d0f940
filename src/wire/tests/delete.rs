#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};

use crate::{
    Query,
    delete::{BadOptions, DeleteOptions},
    name::BodyKind,
};

fn read(kind: BodyKind, body: &[u8], query: &str) -> Result<Value, BadOptions> {
    let options = DeleteOptions::read(Some(kind), body, Query::parse(Some(query)).unwrap())?;
    Ok(serde_json::from_slice(&options.only("u", "7")).unwrap())
}

fn with(fields: Value) -> Value {
    let mut all = json!({ "kind": "DeleteOptions", "apiVersion": "v1",
        "preconditions": { "uid": "u", "resourceVersion": "7" } });
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    all
}

#[test]
fn t56_each_encoding_says_the_same() {
    let fields = json!({ "gracePeriodSeconds": 0, "propagationPolicy": "Foreground",
        "dryRun": ["All"] });
    let raw = b"\x08\x00\x22\x0aForeground\x2a\x03All";
    let mut proto = b"k8s\0\x0a\x04\x0a\x02v1\x12".to_vec();
    proto.push(u8::try_from(raw.len()).unwrap());
    proto.extend_from_slice(raw);
    let query = "gracePeriodSeconds=0&propagationPolicy=Foreground&dryRun=All&labelSelector=a";
    for kind in [BodyKind::Json, BodyKind::Yaml] {
        let read = read(kind, fields.to_string().as_bytes(), "dryRun=x");
        assert_eq!(read, Ok(with(fields.clone())), "{kind}");
    }
    assert_eq!(read(BodyKind::Protobuf, &proto, ""), Ok(with(fields.clone())));
    assert_eq!(read(BodyKind::Protobuf, b"", query), Ok(with(fields)));
    assert_eq!(read(BodyKind::Json, b"", ""), Ok(with(json!({}))));
    let ignore = "ignoreStoreReadErrorWithClusterBreakingPotential";
    let query = format!("orphanDependents=fal%C5%BFe&{ignore}");
    let fields = json!({ "orphanDependents": false, ignore: true });
    assert_eq!(read(BodyKind::Json, b"", &query), Ok(with(fields)));
}

#[test]
fn what_cannot_be_read_is_refused() {
    for body in [&b"["[..], b"[]"] {
        assert_eq!(read(BodyKind::Json, body, ""), Err(BadOptions::Unreadable));
    }
    let merged = br#"{"<<":{"dryRun":["All"]}}"#;
    assert_eq!(read(BodyKind::Yaml, merged, ""), Err(BadOptions::Unreadable));
    for yaml in [&b"dryRun: [All]\n"[..], b"a: &a {dryRun: [All]}\n<<: *a\n", b"[]"] {
        assert_eq!(read(BodyKind::Yaml, yaml, ""), Err(BadOptions::Encoding));
    }
    for body in [
        &b"x"[..],
        b"k8s\0\x12\x05",
        // Unknown options.
        b"k8s\0\x12\x02\x38\x01",
        b"k8s\0\x12\x02\x3a\0",
        b"k8s\0\x12\x01\xff",
        // A number that goes on behind its message.
        b"k8s\0\x12\x01\x08\x18\0",
        // The kind in four bytes; a number of more than 64 bits.
        b"k8s\0\x0d\0\0\0\0",
        // Options twice; options that are a number; a tag in more bytes than it needs.
        b"k8s\0\x12\0\x12\0",
        b"k8s\0\x10\x01",
        b"k8s\0\x12\x03\x88\0\x05",
        // A period in bytes, modes of a dry run in a number, text that is none.
        b"k8s\0\x12\x02\x0a\0",
        b"k8s\0\x12\x02\x28\0",
        b"k8s\0\x12\x03\x22\x01\xff",
        b"k8s\0\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
    ] {
        assert_eq!(read(BodyKind::Protobuf, body, ""), Err(BadOptions::Unreadable));
    }
    assert_eq!(read(BodyKind::Json, b"", "gracePeriodSeconds=x"), Err(BadOptions::Unreadable));
    assert_eq!(read(BodyKind::Cbor, b"\xa0", ""), Err(BadOptions::Encoding));
    let one = br#"{"preconditions":{"uid":"x"}}"#;
    assert_eq!(read(BodyKind::Json, one, ""), Err(BadOptions::Preconditions));
    assert_eq!(
        read(BodyKind::Protobuf, b"k8s\0\x12\x02\x12\x00", ""),
        Err(BadOptions::Preconditions)
    );
}
