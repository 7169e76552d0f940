//! Random events in random pieces, against serde_json.

use proptest::prelude::*;

use super::*;

/// Any value, with the known names more often than others.
pub(super) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<f32>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name(), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(vec!["type", "object", "metadata", "resourceVersion", "annotations", "k8s.io/initial-events-end", "rows"])
            .prop_map(str::to_owned),
        1 => text(),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "ADDED",
            "BOOKMARK",
            "true",
            "12",
            "0",
            "",
            "\"",
            "\\",
            "}{][",
            "\u{1f600}\n"
        ])
        .prop_map(str::to_owned),
        "\\PC{0,70}",
    ]
}

/// A value that is often a valid event.
fn any_event() -> impl Strategy<Value = Value> {
    let metadata = (
        name(),
        any_value(),
        "[0-9]{0,3}",
        prop::sample::select(vec!["true", "false"]),
        any::<bool>(),
    );
    let kind =
        prop::sample::select(vec!["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "OTHER"]);
    prop_oneof![
        any_value().prop_map(|value| json!({"object": value})),
        (kind, metadata, any_value()).prop_map(|(kind, (name, noise, version, end, table), spec)| {
            let mut annotated = json!({"annotations": {"k8s.io/initial-events-end": end, "x": "true"}, "resourceVersion": version});
            let rows = if table { json!([{"object": {"metadata": annotated.clone()}, "x": spec}]) } else { spec.clone() };
            if name != "annotations" && name != "resourceVersion" {
                annotated[name] = noise;
            }
            if table {
                annotated["annotations"] = Value::Null;
            }
            json!({"type": kind, "object": {"metadata": annotated, "rows": rows, "spec": spec}})
        }),
    ]
}

/// The event as serde_json reads it.
fn oracle(value: &Value) -> Event {
    let kind = match value["type"].as_str() {
        Some("ADDED") => EventKind::Added,
        Some("MODIFIED") => EventKind::Modified,
        Some("DELETED") => EventKind::Deleted,
        Some("BOOKMARK") => EventKind::Bookmark,
        Some("ERROR") => EventKind::Error,
        _ => EventKind::Unknown,
    };
    let metadata = &value["object"]["metadata"];
    let resource_version = match &metadata["resourceVersion"] {
        Value::Null => ResourceVersion::Unset,
        Value::String(text) => ResourceVersion::parse(text.as_bytes()),
        _ => ResourceVersion::Opaque,
    };
    let marked = |metadata: &Value| metadata["annotations"]["k8s.io/initial-events-end"] == "true";
    let rows = value["object"]["rows"].as_array();
    // Of several marks the last one read wins; names are in alphabetical order here, and rows come
    // behind metadata.
    let mark = |metadata: &Value| match &metadata["annotations"]["k8s.io/initial-events-end"] {
        Value::Null => None,
        _ => Some(marked(metadata)),
    };
    let in_rows =
        rows.into_iter().flatten().filter_map(|row| mark(&row["object"]["metadata"])).next_back();
    Event {
        kind,
        resource_version,
        initial_events_end: kind == EventKind::Bookmark
            && in_rows.or_else(|| mark(metadata)).unwrap_or(false),
    }
}

pub(super) fn split<'a>(body: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
    cuts.sort_unstable();
    let mut chunks = Vec::new();
    let mut start = 0;
    for cut in cuts {
        chunks.push(&body[start..cut]);
        start = cut;
    }
    chunks.push(&body[start..]);
    chunks
}

pub(super) fn pretty(value: &Value, style: u8) -> Vec<u8> {
    let text = if style & 1 == 0 { value.to_string() } else { format!("{value:#}\n") };
    // Escapes for letters of the known names.
    let text =
        if style & 2 == 0 { text } else { text.replace('a', "\\u0061").replace('V', "\\u0056") };
    text.into_bytes()
}

proptest! {
    #[test]
    fn t35_any_split_of_any_events_gives_what_serde_finds(
        values in prop::collection::vec(any_event(), 1..4),
        style in 0u8..8,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        for encoding in [Encoding::Json, Encoding::Cbor] {
            let mut body = Vec::new();
            let mut expected = Vec::new();
            for value in &values {
                match encoding {
                    Encoding::Json => body.extend(pretty(value, style)),
                    _ => write::cbor(value, style, &mut body),
                }
                expected.push((body.len(), oracle(value)));
            }
            prop_assert_eq!(scan(encoding, &[&body]), (expected.clone(), None));
            // A newline that comes in another chunk is counted there.
            let plain = |scan: Scan| (scan.0.into_iter().map(|(_, event)| event).collect::<Vec<_>>(), scan.1);
            let expected: Vec<_> = expected.into_iter().map(|(_, event)| event).collect();
            prop_assert_eq!(plain(scan(encoding, &split(&body, &cuts))), (expected.clone(), None));
            let bytes: Vec<&[u8]> = body.chunks(1).collect();
            prop_assert_eq!(plain(scan(encoding, &bytes)), (expected, None));
        }
    }

    #[test]
    fn t35_any_split_of_protobuf_gives_the_same(
        values in prop::collection::vec(any_event(), 1..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let body: Vec<u8> = values.iter().flat_map(write::proto).collect();
        let whole = scan(Encoding::Protobuf, &[&body]);
        prop_assert_eq!(whole.0.len(), values.len());
        prop_assert_eq!(whole.1, None);
        for ((_, found), value) in whole.0.iter().zip(&values) {
            let kind = oracle(value).kind;
            prop_assert_eq!(found.kind, kind);
            let version = value["object"]["metadata"]["resourceVersion"].as_str().unwrap_or("");
            prop_assert_eq!(found.resource_version, ResourceVersion::parse(version.as_bytes()));
        }
        prop_assert_eq!(&scan(Encoding::Protobuf, &split(&body, &cuts)), &whole);
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        prop_assert_eq!(&scan(Encoding::Protobuf, &bytes), &whole);
    }

    #[test]
    fn damaged_bodies_never_panic_and_split_alike(
        value in any_event(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        for encoding in ALL {
            let mut body = encode(encoding, &value).repeat(2);
            for (at, byte) in &damage {
                let at = at.index(body.len());
                body[at] = *byte;
            }
            let kinds = |scan: Scan| (scan.0.into_iter().map(|(_, event)| event).collect::<Vec<_>>(), scan.1.map(|error| error.fault));
            let whole = kinds(scan(encoding, &[&body]));
            prop_assert_eq!(kinds(scan(encoding, &split(&body, &cuts))), whole);
            let _ = list(encoding, &body, 7);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 1usize..40) {
        for encoding in ALL {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            let whole = scan(encoding, &[&bytes]);
            prop_assert_eq!(scan(encoding, &chunks).0.len(), whole.0.len());
            prop_assert_eq!(
                list(encoding, &bytes, size).map_err(|error| error.fault),
                list(encoding, &bytes, 200).map_err(|error| error.fault)
            );
        }
    }
}
