//! The names and namespaces in a JSON Patch (RFC 6902), as `evanphx/json-patch` applies it.

use super::{
    find::{Field, Found, Places, Type},
    kind::{BodyKind, NameError, check_json},
};
use crate::object::walk::Node;

/// Finds the names and namespaces that operations set or test, in the patch's order. `move` and `copy` take their
/// value from the stored object and stay as they are.
pub(super) fn find(body: &[u8]) -> Result<Vec<Found>, NameError> {
    const KIND: BodyKind = BodyKind::JsonPatch;
    check_json(KIND, body)?;
    let opening = body.trim_ascii_start().strip_prefix(b"[");
    let mut rest = opening.ok_or(NameError::Malformed(KIND))?;
    let mut names = Vec::new();
    loop {
        // Between the operations of well-formed JSON are commas and white space.
        while let [b',' | b' ' | b'\t' | b'\r' | b'\n', behind @ ..] = rest {
            rest = behind;
        }
        if let [] | [b']', ..] = rest {
            return Ok(names);
        }
        let operation = Places::walk(KIND, Node::Operation, body, body.len() - rest.len())?;
        names.extend(in_operation(body, &operation)?);
        rest = body.get(operation.end..).unwrap_or_default();
    }
}

fn in_operation(body: &[u8], operation: &Places<'_>) -> Result<Vec<Found>, NameError> {
    let [op, path, value] =
        [Node::Op, Node::OpPath, Node::OpValue].map(|node| operation.place(node));
    let (Some(op), Some(path), Some(value)) = (op, path, value) else { return Ok(Vec::new()) };
    let op = operation.text(op, Node::Op)?.0;
    if !matches!(op.as_str(), "add" | "replace" | "test") || value.is == Type::Null {
        return Ok(Vec::new());
    }
    match target(&operation.text(path, Node::OpPath)?.0) {
        Some(Node::WrittenName) => operation.named(Field::Name, value).map(|found| vec![found]),
        Some(Node::WrittenNamespace) => {
            operation.named(Field::Namespace, value).map(|found| vec![found])
        }
        Some(root) => Places::walk(BodyKind::JsonPatch, root, body, value.token.start)?.names(),
        None => Ok(Vec::new()),
    }
}

/// The part of the way to the name and namespace that an operation changes, by its JSON pointer. `~0` and `~1`
/// stand for characters that are in none of the keys, so a token with an escape is another key. The text
/// before the first `/` is dropped, as by the API server.
fn target(pointer: &str) -> Option<Node> {
    if pointer.is_empty() {
        return Some(Node::Written);
    }
    match pointer.split_once('/')?.1 {
        "metadata" => Some(Node::WrittenMeta),
        "metadata/name" => Some(Node::WrittenName),
        "metadata/namespace" => Some(Node::WrittenNamespace),
        _ => None,
    }
}
