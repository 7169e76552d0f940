//! The name in JSON, and in patches that have the object's shape. Keys are case-sensitive, as in
//! `sigs.k8s.io/json`.

use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{BodyKind, Found, METADATA, NAME, NameError, OBJECT};

/// Finds the object's name. Other values are skipped without recursion.
pub(super) fn find(body: &str) -> Result<Option<Found>, NameError> {
    let object: &RawValue = serde_json::from_str(body).map_err(|_| malformed())?;
    in_object(body, object)
}

/// Finds the name of an object within `body`.
pub(super) fn in_object(body: &str, object: &RawValue) -> Result<Option<Found>, NameError> {
    let [metadata] = members(object, OBJECT, [("metadata", METADATA)])?;
    metadata.map_or(Ok(None), |metadata| in_metadata(body, metadata))
}

/// Finds the name in the value of `metadata`; null is an absent field.
pub(super) fn in_metadata(body: &str, metadata: &RawValue) -> Result<Option<Found>, NameError> {
    if is_null(metadata) {
        return Ok(None);
    }
    let [name] = members(metadata, METADATA, [("name", NAME)])?;
    name.map_or(Ok(None), |name| in_name(body, name))
}

/// Finds the name in the value of `metadata.name`.
pub(super) fn in_name(body: &str, name: &RawValue) -> Result<Option<Found>, NameError> {
    if is_null(name) {
        return Ok(None);
    }
    // The value borrows from the body, so its address gives its offset.
    let start = name.get().as_ptr().addr() - body.as_ptr().addr();
    Ok(Some(Found { name: string(name, NAME)?, at: start..start + name.get().len() }))
}

/// The members of these keys, each of which is given with its path for errors.
pub(super) fn members<'a, const N: usize>(
    object: &'a RawValue,
    field: &'static str,
    keys: [(&'static str, &'static str); N],
) -> Result<[Option<&'a RawValue>; N], NameError> {
    if !object.get().starts_with('{') {
        return Err(NameError::WrongType { field, expected: "an object" });
    }
    Members(keys)
        .deserialize(&mut serde_json::Deserializer::from_str(object.get()))
        .map_err(|_| malformed())?
}

/// The decoded string.
pub(super) fn string(value: &RawValue, field: &'static str) -> Result<String, NameError> {
    if !value.get().starts_with('"') {
        return Err(NameError::WrongType { field, expected: "a string" });
    }
    serde_json::from_str(value.get()).map_err(|_| malformed())
}

/// A string in JSON.
pub(super) fn quote(_old: &[u8], new: &str) -> Vec<u8> {
    text(new).into_bytes()
}

pub(super) fn text(new: &str) -> String {
    serde_json::Value::from(new).to_string()
}

pub(super) fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

const fn malformed() -> NameError {
    NameError::Malformed(BodyKind::Json)
}

/// Finds members by key, and discards the others.
struct Members<const N: usize>([(&'static str, &'static str); N]);

impl<'de, const N: usize> DeserializeSeed<'de> for Members<N> {
    type Value = Result<[Option<&'de RawValue>; N], NameError>;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Members<N> {
    type Value = Result<[Option<&'de RawValue>; N], NameError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; N];
        let mut repeated = None;
        while let Some(known) = map.next_key_seed(Key(&self.0))? {
            let value: &RawValue = map.next_value()?;
            let slot = known.and_then(|at| Some((found.get_mut(at)?, self.0.get(at)?)));
            if let Some((slot, (_, field))) = slot
                && slot.replace(value).is_some()
            {
                repeated = Some(NameError::Repeated { field });
            }
        }
        Ok(repeated.map_or(Ok(found), Err))
    }
}

/// The index of a key among the known ones.
struct Key<'k>(&'k [(&'static str, &'static str)]);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<usize>;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|(known, _)| *known == key))
    }
}
