//! What a client asks of deletions, which goes out again for each object.

use ctrlmesh::wire::{
    Query,
    delete::{BadOptions, DeleteOptions},
    frames::MAGIC,
    name::BodyKind,
};
use serde_json::{Map, Value, json};

use crate::{readers::protobuf, text};

/// By the three lowest bits of the first byte, of which a seed has a digit.
const KINDS: [Option<BodyKind>; 8] = [
    Some(BodyKind::Json),
    Some(BodyKind::JsonPatch),
    Some(BodyKind::Yaml),
    Some(BodyKind::Protobuf),
    Some(BodyKind::Cbor),
    None,
    Some(BodyKind::Protobuf),
    Some(BodyKind::Json),
];

type Fields = Map<String, Value>;

/// A digit that says the encoding, the query up to the end of the line, then the body.
pub(crate) fn options(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    let kind = KINDS[usize::from(kind & 7)];
    let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let (raw, body) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
    let Ok(raw) = std::str::from_utf8(raw) else { return };
    let Ok(query) = Query::parse(Some(raw)) else { return };
    let own = DeleteOptions::read(kind, body, query);
    let given = match kind {
        _ if body.is_empty() => of_query(raw),
        Some(BodyKind::Json) => serde_json::from_slice(body).ok(),
        Some(BodyKind::Yaml) => match serde_json::from_slice::<Fields>(body) {
            Ok(given) => Some(given).filter(is_written_out),
            Err(_) => {
                assert_eq!(own, Err(BadOptions::Encoding));
                return;
            }
        },
        Some(BodyKind::Protobuf) => match of_protobuf(body) {
            Some(given) => given,
            None => return,
        },
        _ => {
            assert_eq!(own, Err(BadOptions::Encoding));
            return;
        }
    };
    let Some(mut given) = given else {
        assert_eq!(own, Err(BadOptions::Unreadable));
        return;
    };
    if given.get("preconditions").is_some_and(|given| !given.is_null()) {
        assert_eq!(own, Err(BadOptions::Preconditions));
        return;
    }
    let own = own.expect("all of it can be read").only("the uid", "7");
    let one = json!({ "uid": "the uid", "resourceVersion": "7" });
    given.insert("preconditions".to_owned(), one);
    given.insert("kind".to_owned(), "DeleteOptions".into());
    given.insert("apiVersion".to_owned(), "v1".into());
    serde_json::from_slice::<Fields>(&own).expect("JSON");
    // Numbers are compared as they are written: none but integers mean anything here.
    assert_eq!(String::from_utf8(own.clone()).expect("text"), Value::Object(given).to_string());
    let again = DeleteOptions::read(Some(BodyKind::Json), &own, Query::default());
    assert_eq!(again, Err(BadOptions::Preconditions), "what goes out is for one object");
}

/// A merge key may bring in any other.
fn is_written_out(given: &Fields) -> bool {
    !given.contains_key("<<")
}

/// `Convert_url_Values_To_v1_DeleteOptions`; `None` if a value is no number.
fn of_query(raw: &str) -> Option<Fields> {
    let mut given = Fields::new();
    for key in [
        "gracePeriodSeconds",
        "orphanDependents",
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "propagationPolicy",
        "dryRun",
    ] {
        let Some(text) = text::first(raw, key) else { continue };
        let value = match key {
            "gracePeriodSeconds" => text.parse::<i64>().ok()?.into(),
            // `strings.EqualFold` takes the long s for an s.
            "orphanDependents" | "ignoreStoreReadErrorWithClusterBreakingPotential" => {
                let folded = text.to_lowercase().replace('\u{17f}', "s");
                (!["0", "false"].contains(&&*folded)).into()
            }
            "dryRun" => vec![text].into(),
            _ => text.into(),
        };
        given.insert(key.to_owned(), value);
    }
    Some(given)
}

/// `Some(None)` for a well-formed message that is no `DeleteOptions`, `None` for a malformed one.
fn of_protobuf(body: &[u8]) -> Option<Option<Fields>> {
    let Some(envelope) = body.strip_prefix(MAGIC) else { return Some(None) };
    let envelope = protobuf::fields(envelope)?;
    if envelope.iter().any(|field| field.number <= 4 && field.wire != 2) {
        return Some(None);
    }
    let mut raws = envelope.iter().filter(|field| field.number == 2);
    let (raw, None) = (raws.next(), raws.next()) else { return Some(None) };
    let (mut given, mut modes) = (Fields::new(), Vec::new());
    for field in protobuf::fields(raw.map_or(&[][..], |raw| raw.bytes))? {
        let number = protobuf::varint(field.bytes, &mut 0);
        let text = std::str::from_utf8(field.bytes);
        // No client writes a tag in more bytes than it needs.
        let (name, value) = match (field.number, field.wire, number, text) {
            _ if field.tag_length > 1 => return Some(None),
            (1, 0, Some(seconds), _) => ("gracePeriodSeconds", seconds.cast_signed().into()),
            (2, 2, ..) => ("preconditions", json!({})),
            (3, 0, Some(orphan), _) => ("orphanDependents", (orphan > 0).into()),
            (4, 2, _, Ok(policy)) => ("propagationPolicy", policy.into()),
            (5, 2, _, Ok(mode)) => {
                modes.push(Value::from(mode));
                ("dryRun", modes.clone().into())
            }
            (6, 0, Some(ignore), _) => {
                ("ignoreStoreReadErrorWithClusterBreakingPotential", (ignore > 0).into())
            }
            _ => return Some(None),
        };
        given.insert(name.to_owned(), value);
    }
    Some(Some(given))
}
