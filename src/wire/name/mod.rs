//! The `metadata.name` of the object in the body of a write: found and replaced in any encoding,
//! with every other byte unchanged.
//!
//! A body that the API server might read differently is refused, never guessed at: a lock that
//! keeps its name is a lock that two shards share.

mod find;
mod kind;
mod patch;
mod write;

#[cfg(test)]
mod tests;

pub use self::kind::{BodyKind, MAX_BODY, NameError};
use self::{
    find::{Found, Places},
    kind::check_json,
};
use super::object::walk::Node;

/// Replaces each name that the body gives its object by `rename` of the decoded one (a JSON Patch
/// may give several), and returns the new body; `None` if no name changes. Takes time in proportion
/// to the body: milliseconds for the worst 3 MiB.
pub fn rename(
    kind: BodyKind,
    body: &[u8],
    rename: impl Fn(&str) -> Option<String>,
) -> Result<Option<Vec<u8>>, NameError> {
    if body.len() > MAX_BODY {
        return Err(NameError::TooLarge(body.len()));
    }
    let found = match kind {
        BodyKind::JsonPatch => patch::find(body)?,
        _ => Vec::from_iter(in_object(kind, body)?),
    };
    let mut edits = Vec::new();
    for found in found {
        if let Some(new) = rename(&found.name).filter(|new| *new != found.name) {
            write::edit(kind, body, &found, &new, &mut edits);
        }
    }
    Ok(write::splice(body, edits))
}

/// The name of the object that is the body.
fn in_object(kind: BodyKind, body: &[u8]) -> Result<Option<Found>, NameError> {
    match kind {
        BodyKind::Protobuf | BodyKind::Cbor => {
            let way = Places::walk(kind, Node::Written, body, 0)?;
            if way.end < body.len() { Err(NameError::Malformed(kind)) } else { way.name() }
        }
        BodyKind::Yaml => match in_object(BodyKind::Json, body) {
            Err(NameError::Malformed(_)) => Err(NameError::NotJson),
            Ok(Some(found)) if write::has_line_break(body, &found) => Err(NameError::LineBreak),
            found => found,
        },
        _ => {
            check_json(kind, body)?;
            Places::walk(kind, Node::Written, body, 0)?.name()
        }
    }
}
