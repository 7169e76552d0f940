//! The names in a JSON Patch (RFC 6902), as `evanphx/json-patch` applies it.

use std::fmt;

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{BodyKind, Found, NameError, json};

/// Finds the names that operations set or test, in the patch's order. `move` and `copy` take their
/// value from the stored object and stay as they are.
pub(super) fn find(body: &str) -> Result<Vec<Found>, NameError> {
    let mut from = serde_json::Deserializer::from_str(body);
    let found =
        from.deserialize_seq(Operations { body }).and_then(|found| from.end().map(|()| found));
    found.map_err(|_| NameError::Malformed(BodyKind::JsonPatch))?
}

struct Operations<'a> {
    body: &'a str,
}

impl<'de> Visitor<'de> for Operations<'_> {
    type Value = Result<Vec<Found>, NameError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of operations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut operations: A) -> Result<Self::Value, A::Error> {
        let mut names = Vec::new();
        let mut wrong = None;
        while let Some(operation) = operations.next_element()? {
            match in_operation(self.body, operation) {
                Ok(found) => names.extend(found),
                // Later operations are read, too: a malformed body is reported first.
                Err(error) => wrong = wrong.or(Some(error)),
            }
        }
        Ok(wrong.map_or(Ok(names), Err))
    }
}

fn in_operation(body: &str, operation: &RawValue) -> Result<Option<Found>, NameError> {
    let keys = [("op", "op"), ("path", "path"), ("value", "value")];
    let [op, path, value] = json::members(operation, "an operation", keys)?;
    let (Some(op), Some(path), Some(value)) = (op, path, value) else {
        return Ok(None);
    };
    let op = json::string(op, "op")?;
    if !matches!(op.as_str(), "add" | "replace" | "test") || json::is_null(value) {
        return Ok(None);
    }
    match Target::parse(&json::string(path, "path")?) {
        Some(Target::Object) => json::in_object(body, value),
        Some(Target::Metadata) => json::in_metadata(body, value),
        Some(Target::Name) => json::in_name(body, value),
        None => Ok(None),
    }
}

/// The part of the path to the name that an operation changes.
enum Target {
    Object,
    Metadata,
    Name,
}

impl Target {
    /// Reads a JSON pointer. `~0` and `~1` stand for characters that are in neither key, so a token
    /// with an escape is another key. The text before the first `/` is dropped, as by the API
    /// server.
    fn parse(pointer: &str) -> Option<Self> {
        if pointer.is_empty() {
            return Some(Self::Object);
        }
        match pointer.split_once('/')?.1 {
            "metadata" => Some(Self::Metadata),
            "metadata/name" => Some(Self::Name),
            _ => None,
        }
    }
}
