//! `DeleteOptions`: read from a client's request, and written again for each object.

use serde_json::{Map, Value, json};

use super::{
    frames::MAGIC,
    name::BodyKind,
    protobuf::{Delimited, Fields, Payload},
    query::{Query, is_true},
};

/// The client's options for each deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions(Map<String, Value>);

/// Why options cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadOptions {
    /// The body or the query is not `DeleteOptions`.
    #[error("the body is not DeleteOptions")]
    Unreadable,
    /// The body's encoding is not supported.
    #[error("DeleteOptions in this encoding cannot be read: send JSON or protobuf")]
    Encoding,
    /// The options have preconditions, which are for one object.
    #[error("preconditions identify one object: delete it by its name")]
    Preconditions,
}

impl DeleteOptions {
    /// Reads the body of a request, or its query if the body is empty, as the API server does
    /// (`apiserver/pkg/endpoints/handlers/delete.go`).
    ///
    /// # Errors
    /// [`BadOptions`].
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
    #[must_use]
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
    let envelope = body.starts_with(MAGIC).then_some(MAGIC.len()..body.len())?;
    let mut raw = 0..0;
    for field in Fields::new(body, &envelope) {
        match field.ok()? {
            (2, Payload::Bytes(bytes)) => raw = bytes.content,
            (_, Payload::Fixed) => return None,
            _ => {}
        }
    }
    let mut fields = Map::new();
    let mut dry_run = Vec::new();
    for field in Fields::new(body, &raw) {
        let text =
            |bytes: Delimited| std::str::from_utf8(body.get(bytes.content)?).ok().map(Value::from);
        match field.ok()? {
            (1, Payload::Number(seconds)) => {
                fields.insert("gracePeriodSeconds".to_owned(), seconds.cast_signed().into());
            }
            (2, Payload::Bytes(_)) => drop(fields.insert("preconditions".to_owned(), json!({}))),
            (3, Payload::Number(orphan)) => {
                fields.insert("orphanDependents".to_owned(), (orphan != 0).into());
            }
            (4, Payload::Bytes(policy)) => {
                fields.insert("propagationPolicy".to_owned(), text(policy)?);
            }
            (5, Payload::Bytes(mode)) => dry_run.push(text(mode)?),
            (6, Payload::Number(ignore)) => {
                let name = "ignoreStoreReadErrorWithClusterBreakingPotential";
                fields.insert(name.to_owned(), (ignore != 0).into());
            }
            // An unknown field, which the API server might obey, must not be lost.
            _ => return None,
        }
    }
    if !dry_run.is_empty() {
        fields.insert("dryRun".to_owned(), dry_run.into());
    }
    Some(fields)
}
