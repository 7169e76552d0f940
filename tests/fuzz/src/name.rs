//! The name and the namespace in the body of a write. They are replaced where plain readers see
//! them, and nowhere else.

use std::cell::RefCell;

use ctrlmesh::wire::{
    frames::MAGIC,
    name::{self, BodyKind, Field, NameError},
};
use serde_yaml::Value as Yaml;

use crate::readers::{
    cbor, protobuf,
    tree::{self, Node, Refused, Value},
};

/// By the three lowest bits of the first byte, of which a seed has a digit.
const KINDS: [BodyKind; 8] = [
    BodyKind::Json,
    BodyKind::JsonPatch,
    BodyKind::Yaml,
    BodyKind::Protobuf,
    BodyKind::Cbor,
    BodyKind::Yaml,
    BodyKind::Yaml,
    BodyKind::Yaml,
];

type Renamed = Result<Option<Vec<u8>>, NameError>;

fn longer(name: &str) -> String {
    format!("{name}---s1")
}

/// A digit that says the encoding, then the body.
pub(crate) fn rename(input: &[u8]) {
    let Some((kind, body)) = input.split_first() else { return };
    let kind = KINDS[usize::from(kind & 7)];
    let (own, asked) = run(kind, body);
    let kept = name::rename(kind, body, |_, _| None);
    assert_eq!(kept, own.as_ref().map(|_| None).map_err(|error| *error));
    if kind == BodyKind::Yaml {
        let is_json = run(BodyKind::Json, body).0 != Err(NameError::Malformed(BodyKind::Json));
        assert_eq!(own != Err(NameError::NotJson), is_json);
        yaml(body, &own, &asked);
    }
    match &own {
        Err(_) => {}
        Ok(None) => assert!(asked.is_empty()),
        Ok(Some(renamed)) => {
            let expected: Vec<_> =
                asked.iter().map(|(field, text)| (*field, longer(text))).collect();
            assert_eq!(run(kind, renamed).1, expected, "what was written is read");
        }
    }
    match kind {
        BodyKind::Protobuf => check(&own, protobuf(body)),
        BodyKind::Cbor => {
            if let Some((root, rest)) = cbor::first(body.strip_prefix(TAG).unwrap_or(body)) {
                let names = if rest.is_empty() { in_object(&root) } else { Err(Refused) };
                check(&own, spliced(body, names, cbor_text));
            }
        }
        _ => {
            if let Some(root) = tree::json(body) {
                let is_patch = kind == BodyKind::JsonPatch;
                let names = if is_patch { in_patch(&root) } else { in_object(&root) };
                let is_yaml = kind == BodyKind::Yaml;
                let names = names.and_then(|names| {
                    let broken = |node: &&Node<'_>| is_yaml && has_line_break(node.raw);
                    if names.iter().any(broken) { Err(Refused) } else { Ok(names) }
                });
                let write = |_: &[u8], new: &str| {
                    let text = serde_json::to_string(new).expect("text");
                    (if is_yaml { escaped(&text) } else { text }).into_bytes()
                };
                check(&own, spliced(body, names, write));
            }
        }
    }
}

/// Of YAML 1.1, which the API server reads.
const LINE_BREAKS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

fn has_line_break(text: &[u8]) -> bool {
    std::str::from_utf8(text).expect("JSON").contains(LINE_BREAKS)
}

fn escaped(text: &str) -> String {
    let escape = |one: char| match one {
        one if LINE_BREAKS.contains(&one) => format!("\\u{:04x}", u32::from(one)),
        one => one.to_string(),
    };
    text.chars().map(escape).collect()
}

fn run(kind: BodyKind, body: &[u8]) -> (Renamed, Vec<(Field, String)>) {
    let asked = RefCell::new(Vec::new());
    let own = name::rename(kind, body, |field, text| {
        asked.borrow_mut().push((field, text.to_owned()));
        Some(longer(text))
    });
    (own, asked.into_inner())
}

fn check(own: &Renamed, expected: Result<Option<Vec<u8>>, Refused>) {
    match expected {
        Ok(expected) => assert_eq!(own.as_ref(), Ok(&expected)),
        Err(Refused) => assert!(own.is_err(), "it must be refused"),
    }
}

/// The body with each name in its place.
fn spliced(
    body: &[u8],
    names: Result<Vec<&Node<'_>>, Refused>,
    write: impl Fn(&[u8], &str) -> Vec<u8>,
) -> Result<Option<Vec<u8>>, Refused> {
    let (mut out, mut copied) = (Vec::new(), 0);
    for node in names? {
        let Value::Text(name) = &node.value else { return Err(Refused) };
        let name = std::str::from_utf8(name).map_err(|_| Refused)?;
        let at = node.raw.as_ptr().addr() - body.as_ptr().addr();
        out.extend(&body[copied..at]);
        out.extend(write(node.raw, &longer(name)));
        copied = at + node.raw.len();
    }
    out.extend(&body[copied..]);
    Ok((copied > 0).then_some(out))
}

/// Null is a value that is not there.
fn is_null(node: &Node<'_>) -> bool {
    matches!(node.raw, b"null" | b"\xf6")
}

/// The one value of a key.
fn one<'n, 'a>(node: &'n Node<'a>, key: &str) -> Result<Option<&'n Node<'a>>, Refused> {
    if !node.is_map() || node.is_tagged() {
        return Err(Refused);
    }
    if node.fields().iter().any(|field| field.name.is_none() || field.is_tagged) {
        return Err(Refused);
    }
    let is_one = |field: &&tree::Field<'_>| field.name.as_deref() == Some(key.as_bytes());
    let mut all = node.fields().iter().filter(is_one).map(|field| &field.value);
    match (all.next(), all.next()) {
        (one, None) => Ok(one),
        _ => Err(Refused),
    }
}

fn in_object<'n, 'a>(node: &'n Node<'a>) -> Result<Vec<&'n Node<'a>>, Refused> {
    one(node, "metadata")?.map_or(Ok(Vec::new()), in_metadata)
}

/// The name and the namespace, in the order of the body.
fn in_metadata<'n, 'a>(node: &'n Node<'a>) -> Result<Vec<&'n Node<'a>>, Refused> {
    let mut found = Vec::new();
    if is_null(node) {
        return Ok(found);
    }
    for key in ["name", "namespace"] {
        found.extend(one(node, key)?.map_or(Ok(None), in_name)?);
    }
    found.sort_by_key(|node| node.raw.as_ptr().addr());
    Ok(found)
}

/// The name or the namespace.
fn in_name<'n, 'a>(node: &'n Node<'a>) -> Result<Option<&'n Node<'a>>, Refused> {
    match &node.value {
        _ if is_null(node) => Ok(None),
        Value::Text(_) if !node.is_tagged() => Ok(Some(node)),
        _ => Err(Refused),
    }
}

/// What the operations of a JSON Patch (RFC 6902) give the object or compare with it.
fn in_patch<'n, 'a>(root: &'n Node<'a>) -> Result<Vec<&'n Node<'a>>, Refused> {
    let Value::Array(operations) = &root.value else { return Err(Refused) };
    let mut names = Vec::new();
    for operation in operations {
        let [op, path, value] = ["op", "path", "value"].map(|key| one(operation, key));
        let (Some(op), Some(path), Some(value)) = (op?, path?, value?) else { continue };
        let Value::Text(op) = &op.value else { return Err(Refused) };
        if !["add", "replace", "test"].map(str::as_bytes).contains(&op.as_slice()) || is_null(value)
        {
            continue;
        }
        let Value::Text(path) = &path.value else { return Err(Refused) };
        // What stands before the first slash is nothing to the API server.
        let slash = path.iter().position(|byte| *byte == b'/');
        names.extend(match (path.as_slice(), slash.map(|at| &path[at..])) {
            (b"", _) => in_object(value)?,
            (_, Some(b"/metadata")) => in_metadata(value)?,
            (_, Some(b"/metadata/name" | b"/metadata/namespace")) => {
                Vec::from_iter(in_name(value)?)
            }
            _ => Vec::new(),
        });
    }
    Ok(names)
}

/// The tag that says that this is CBOR.
const TAG: &[u8] = b"\xd9\xd9\xf7";

/// Bytes or text as before, of definite length.
fn cbor_text(old: &[u8], new: &str) -> Vec<u8> {
    let major = old.first().expect("a head") & 0xe0;
    let short = u8::try_from(new.len());
    let head = match (new.len(), short) {
        (0..24, Ok(short)) => vec![major | short],
        (_, Ok(short)) => vec![major | 24, short],
        (length, _) => {
            let length = u16::try_from(length).expect("no input is longer");
            [&[major | 25], &length.to_be_bytes()[..]].concat()
        }
    };
    [&head, new.as_bytes()].concat()
}

/// The envelope, the object in it, its metadata, their name.
fn protobuf(body: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
    let envelope = body.strip_prefix(MAGIC).ok_or(Refused)?;
    // The order of the fields does not matter: the lengths around them are the same.
    let new = |name: &[u8]| {
        let name = std::str::from_utf8(name).map_err(|_| Refused)?;
        Ok(longer(name).into_bytes())
    };
    let named = protobuf::replaced(envelope, &[2, 1, 1], new)?;
    let moved = protobuf::replaced(named.as_deref().unwrap_or(envelope), &[2, 1, 3], new)?;
    Ok(moved.or(named).map(|envelope| [&MAGIC[..], &envelope].concat()))
}

/// What libyaml reads in JSON, which is how the API server reads it, is the same but for both texts.
/// What it does not read the API server refuses.
fn yaml(body: &[u8], own: &Renamed, asked: &[(Field, String)]) {
    let Ok(own) = own else { return };
    let Ok(mut object) = serde_yaml::from_slice::<Yaml>(body) else { return };
    let fields = object.as_mapping_mut().expect("an object");
    let none = &mut serde_yaml::Mapping::new();
    let meta = match fields.get_mut("metadata") {
        None | Some(Yaml::Null) => none,
        Some(meta) => meta.as_mapping_mut().expect("an object"),
    };
    for (field, key) in [(Field::Name, "name"), (Field::Namespace, "namespace")] {
        let asked = asked.iter().find(|(of, _)| *of == field).map(|(_, text)| text);
        match meta.get_mut(key) {
            None | Some(Yaml::Null) => assert_eq!(asked, None, "it has no {key}"),
            Some(text) => {
                let old = asked.expect("it has one");
                match &*text {
                    Yaml::String(text) => assert_eq!(text, old),
                    // The API server takes no such text, and we take what stands there.
                    Yaml::Bool(_) | Yaml::Number(_) => {}
                    other => panic!("{other:?}"),
                }
                *text = Yaml::String(longer(old));
            }
        }
    }
    if !asked.is_empty() {
        let renamed = own.as_ref().expect("it is renamed");
        // A character that was an escape may be none that libyaml takes.
        if let Ok(renamed) = serde_yaml::from_slice::<Yaml>(renamed) {
            assert_eq!(renamed, object);
        }
    }
}
