//! The `metadata.name` and `metadata.namespace` of the object in the body of a write: found and
//! replaced in any encoding, with every other byte unchanged.
//!
//! A body that the API server might read differently is refused, never guessed at: a lock that
//! keeps its name is a lock that two shards share.

mod find;
mod kind;
mod patch;
mod write;

#[cfg(test)]
mod tests;

pub use self::{
    find::Field,
    kind::{BodyKind, MAX_BODY, NameError},
};
use self::{
    find::{Found, Places},
    kind::check_json,
};
use super::object::walk::Node;

/// Replaces each name and namespace that the body gives its object by `rename` of the decoded one. A
/// JSON Patch may give several. Returns the new body; `None` if none changes. `rename` sees them in
/// the order of the body. Takes time in proportion to the body: milliseconds for the worst 3 MiB.
pub fn rename(
    kind: BodyKind,
    body: &[u8],
    mut rename: impl FnMut(Field, &str) -> Option<String>,
) -> Result<Option<Vec<u8>>, NameError> {
    if body.len() > MAX_BODY {
        return Err(NameError::TooLarge(body.len()));
    }
    let found = match kind {
        BodyKind::JsonPatch => patch::find(body)?,
        _ => in_object(kind, body)?,
    };
    let renamed = found.into_iter().filter_map(|found| {
        let new = rename(found.field, &found.text).filter(|new| *new != found.text)?;
        Some((found, new))
    });
    Ok(write::splice(body, write::edits(kind, body, renamed)))
}

/// The name of the object that a body gives. `None` if it gives none, or a patch gives several.
pub fn name_of(kind: BodyKind, body: &[u8]) -> Result<Option<String>, NameError> {
    let mut names = Vec::new();
    rename(kind, body, |field, text| {
        if field == Field::Name {
            names.push(text.to_owned());
        }
        None
    })?;
    Ok(names.pop().filter(|_| names.is_empty()))
}

/// The name and namespace of the object that is the body.
fn in_object(kind: BodyKind, body: &[u8]) -> Result<Vec<Found>, NameError> {
    match kind {
        BodyKind::Protobuf | BodyKind::Cbor => {
            let way = Places::walk(kind, Node::Written, body, 0)?;
            if way.end < body.len() { Err(NameError::Malformed(kind)) } else { way.names() }
        }
        BodyKind::Yaml => match in_object(BodyKind::Json, body) {
            Err(NameError::Malformed(_)) => Err(NameError::NotJson),
            Ok(found) => match found.iter().find(|found| write::has_line_break(body, found)) {
                Some(broken) => Err(NameError::LineBreak(broken.field.path())),
                None => Ok(found),
            },
            failed => failed,
        },
        _ => {
            check_json(kind, body)?;
            Places::walk(kind, Node::Written, body, 0)?.names()
        }
    }
}
