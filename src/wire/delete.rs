//! `DeleteOptions`: read from a client's request, and written again for each object.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::{
    media::Encoding,
    name::BodyKind,
    object::{
        Wanted,
        walk::{Facts, Node},
        walk_one,
    },
    protobuf::number,
    query::{Query, is_true},
};

/// The client's options for each deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions(Map<String, Value>);

/// Reasons why options cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadOptions {
    #[error("the body is not DeleteOptions")]
    Unreadable,
    #[error("DeleteOptions in this encoding cannot be read: send JSON or protobuf")]
    Encoding,
    #[error("preconditions identify one object: delete it by its name")]
    Preconditions,
}

impl DeleteOptions {
    /// Reads the body of a request, or its query if the body is empty, as the API server does
    /// (`apiserver/pkg/endpoints/handlers/delete.go`).
    pub fn read(kind: Option<BodyKind>, body: &[u8], query: Query<'_>) -> Result<Self, BadOptions> {
        let fields = match kind {
            _ if body.is_empty() => of_query(query)?,
            Some(BodyKind::Json) => {
                serde_json::from_slice(body).map_err(|_| BadOptions::Unreadable)?
            }
            Some(BodyKind::Yaml) => of_yaml(body)?,
            Some(BodyKind::Protobuf) => of_protobuf(body).ok_or(BadOptions::Unreadable)?,
            _ => return Err(BadOptions::Encoding),
        };
        if fields.get("preconditions").is_some_and(|given| !given.is_null()) {
            return Err(BadOptions::Preconditions);
        }
        Ok(Self(fields))
    }

    /// The body that deletes only this version of this object, in JSON.
    pub fn only(&self, uid: &str, resource_version: &str) -> Vec<u8> {
        let mut fields = self.0.clone();
        fields.insert("kind".to_owned(), "DeleteOptions".into());
        fields.insert("apiVersion".to_owned(), "v1".into());
        let one = json!({ "uid": uid, "resourceVersion": resource_version });
        fields.insert("preconditions".to_owned(), one);
        Value::Object(fields).to_string().into_bytes()
    }
}

/// The query parameters that stand for fields, read as the API server reads them. A number that
/// does not parse is refused.
fn of_query(query: Query<'_>) -> Result<Map<String, Value>, BadOptions> {
    let mut fields = Map::new();
    if let Some(policy) = query.first("propagationPolicy") {
        fields.insert("propagationPolicy".to_owned(), policy.into());
    }
    if let Some(seconds) = query.first("gracePeriodSeconds") {
        let seconds: i64 = seconds.parse().map_err(|_| BadOptions::Unreadable)?;
        fields.insert("gracePeriodSeconds".to_owned(), seconds.into());
    }
    for name in ["orphanDependents", "ignoreStoreReadErrorWithClusterBreakingPotential"] {
        if let Some(flag) = query.first(name) {
            fields.insert(name.to_owned(), is_true(&flag).into());
        }
    }
    if let Some(dry_run) = query.first("dryRun") {
        fields.insert("dryRun".to_owned(), json!([dry_run]));
    }
    Ok(fields)
}

/// Reads JSON that is sent as YAML. A merge key is refused: the API server would see fields through
/// it that we do not, for example a dry run.
fn of_yaml(body: &[u8]) -> Result<Map<String, Value>, BadOptions> {
    let Ok(Value::Object(fields)) = serde_json::from_slice(body) else {
        return Err(BadOptions::Encoding);
    };
    if fields.contains_key("<<") {
        return Err(BadOptions::Unreadable);
    }
    Ok(fields)
}

/// `DeleteOptions` of `apimachinery/pkg/apis/meta/v1/generated.proto`, in its envelope.
fn of_protobuf(body: &[u8]) -> Option<Map<String, Value>> {
    let (mut fields, mut is_read, mut has_options) = (Map::new(), true, false);
    let mut facts = Facts::of_write(Wanted::default());
    walk_one(Encoding::Protobuf, Node::Options, body, &mut facts, &mut |node, token| {
        is_read &= match node {
            // An unknown field, which the API server might obey, must not be lost.
            Node::KnownOption => option(body, token, &mut fields).is_some(),
            Node::Options => !std::mem::replace(&mut has_options, true),
            _ => node == Node::BesideOptions,
        };
    })
    .ok()?;
    is_read.then_some(fields)
}

/// Reads an option. `None` if it has another type. `token` is the number that it is, or the length
/// in front of it.
fn option(body: &[u8], token: Range<usize>, fields: &mut Map<String, Value>) -> Option<()> {
    // The numbers of these fields fit into one byte.
    let tag = *body.get(token.start.checked_sub(1)?)?;
    let number = number(body.get(token.clone())?);
    let text = || {
        let text = body.get(token.end..)?.get(..usize::try_from(number).ok()?)?;
        str::from_utf8(text).ok().map(Value::from)
    };
    if (tag >> 3, tag & 7) == (5, 2) {
        let modes = fields.entry("dryRun").or_insert_with(|| json!([]));
        return modes.as_array_mut().zip(text()).map(|(modes, mode)| modes.push(mode));
    }
    let (name, value) = match (tag >> 3, tag & 7) {
        (1, 0) => ("gracePeriodSeconds", number.cast_signed().into()),
        (2, 2) => ("preconditions", json!({})),
        (3, 0) => ("orphanDependents", (number != 0).into()),
        (4, 2) => ("propagationPolicy", text()?),
        (6, 0) => ("ignoreStoreReadErrorWithClusterBreakingPotential", (number != 0).into()),
        _ => return None,
    };
    fields.insert(name.to_owned(), value);
    Some(())
}
