//! The kinds of bodies, and the reasons why the name in one cannot be relied on.

use serde::de::IgnoredAny;

/// Most bytes of a body: the API server's limit (`MaxRequestBodyBytes`, 3 MiB).
pub const MAX_BODY: usize = 3 << 20;

/// The form of the object in the body of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "UPPERCASE")]
pub enum BodyKind {
    /// An object in JSON, or a merge or strategic merge patch, which has the object's shape.
    Json,
    /// `application/json-patch+json` (RFC 6902): a list of operations.
    #[strum(serialize = "JSON Patch")]
    JsonPatch,
    /// An object in YAML, or applied as YAML: read only if it is JSON, as most clients send it.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`: the magic and a `runtime.Unknown`.
    #[strum(serialize = "Kubernetes protobuf")]
    Protobuf,
    /// An object in CBOR, or applied as CBOR.
    Cbor,
}

impl BodyKind {
    /// The kind of a body with this `Content-Type`; `None` if the API server takes no object in it.
    /// Without the header it is JSON, the API server's first serializer
    /// (`NegotiateInputSerializer`); a patch without the header is refused there, so here it does
    /// not matter.
    pub fn of_content_type(content_type: Option<&str>) -> Option<Self> {
        let Some(content_type) = content_type.filter(|value| !value.is_empty()) else {
            return Some(Self::Json);
        };
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        [
            ("application/json", Self::Json),
            ("application/merge-patch+json", Self::Json),
            ("application/strategic-merge-patch+json", Self::Json),
            ("application/json-patch+json", Self::JsonPatch),
            ("application/yaml", Self::Yaml),
            ("application/apply-patch+yaml", Self::Yaml),
            ("application/vnd.kubernetes.protobuf", Self::Protobuf),
            ("application/cbor", Self::Cbor),
            ("application/apply-patch+cbor", Self::Cbor),
        ]
        .into_iter()
        .find_map(|(name, kind)| essence.eq_ignore_ascii_case(name).then_some(kind))
    }
}

/// Reasons why the name in a body cannot be relied on. Contains nothing of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum NameError {
    #[error("request body: {0} bytes; at most {MAX_BODY} are taken")]
    TooLarge(usize),
    #[error("request body: not well-formed {0}")]
    Malformed(BodyKind),
    #[error("request body: nested too deeply")]
    TooDeep,
    /// A repeated field: Go takes the last value, other readers the first.
    #[error("request body: {0} stands there more than once; it must stand there once")]
    Repeated(&'static str),
    #[error("request body: {field} must be {expected}")]
    WrongType { field: &'static str, expected: &'static str },
    #[error("request body: {0} must be written out: no tag, and no key that is not a string")]
    Indirect(&'static str),
    #[error("request body: YAML that is no JSON is not read where it may name the lock; send JSON")]
    NotJson,
    /// The text has characters that are line breaks in YAML 1.1, which the API server reads, but
    /// not in JSON.
    #[error(
        "request body: {0} in YAML has U+0085, U+2028 or U+2029; they must be written as escapes"
    )]
    LineBreak(&'static str),
}

/// Checks that the whole body is one JSON value: the walkers do not validate what they skip.
pub(super) fn check_json(kind: BodyKind, body: &[u8]) -> Result<(), NameError> {
    let text = std::str::from_utf8(body).ok();
    match text.map(serde_json::from_str::<IgnoredAny>) {
        Some(Ok(IgnoredAny)) => Ok(()),
        _ => Err(NameError::Malformed(kind)),
    }
}
