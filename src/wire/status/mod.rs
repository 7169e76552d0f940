//! `metav1.Status`: our refusals in the client's encoding, as one body or as the last event of a
//! watch.

mod proto;
mod tree;

/// The parts of a Status writer that other objects use, too.
pub(super) mod write {
    pub(crate) use super::{
        proto::{enveloped, framed, message, number, text},
        tree::{cbor, cbor_event, cbor_text, head as cbor_head, json, json_event},
    };
}

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use strum::IntoStaticStr;

use self::{
    proto::{enveloped, framed, message, number, text},
    tree::{cbor, cbor_event, json, json_event, yaml},
};
use super::{media::Encoding, object::walk::SELF_DESCRIBED};

/// A failure in the API server's form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The message, for people.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub message: Cow<'static, str>,
    /// The reason, for programs.
    pub reason: Reason,
    /// The object of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    /// HTTP status code.
    pub code: u16,
}

/// All fields of a Status, in the API server's order for JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusObject<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: BTreeMap<(), ()>,
    status: &'static str,
    #[serde(flatten)]
    failure: &'a Status,
}

/// `StatusDetails`. An empty string is an absent one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "upstream's fields, by upstream's names")]
pub struct Details {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub group: String,
    /// The resource (`pods`), despite the name, as in the API server's errors.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Seconds after which to retry. client-go obeys the `Retry-After` header, others obey this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// `StatusCause`. An empty string is an absent one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[allow(missing_docs, reason = "upstream's fields, by upstream's names")]
pub struct Cause {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: Cow<'static, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub field: String,
}

impl Status {
    /// A failure with the API server's code for the reason.
    pub fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: reason.code(), reason, message: message.into(), details: None }
    }

    /// The body of a response with [`Encoding::content_type`], byte for byte as the API server
    /// writes it. YAML is the exception: the API server quotes less there.
    pub fn encode(&self, encoding: Encoding) -> Bytes {
        let mut out = Vec::with_capacity(512);
        match encoding {
            Encoding::Json => {
                json(&self.object(), &mut out);
                out.push(b'\n');
            }
            Encoding::Yaml => {
                if let Value::Object(fields) = self.value() {
                    yaml(&fields, 0, &mut out);
                }
            }
            Encoding::Protobuf => self.proto_object(&mut out),
            Encoding::Cbor => self.cbor_object(&mut out),
        }
        out.into()
    }

    /// A framed event of type ERROR for a stream with [`Encoding::stream_content_type`]. After a
    /// JSON event without a final newline it must begin with one: see `WatchScanner::separator`.
    pub fn error_event(&self, encoding: Encoding) -> Bytes {
        let mut out = Vec::with_capacity(512);
        match encoding {
            Encoding::Json | Encoding::Yaml => json_event("ERROR", &self.object(), &mut out),
            Encoding::Protobuf => framed("ERROR", &mut out, |raw| self.proto_object(raw)),
            Encoding::Cbor => {
                out.extend_from_slice(SELF_DESCRIBED);
                cbor_event("ERROR", &mut out);
                self.cbor_object(&mut out);
            }
        }
        out.into()
    }

    fn object(&self) -> StatusObject<'_> {
        let metadata = BTreeMap::new();
        StatusObject {
            kind: "Status",
            api_version: "v1",
            metadata,
            status: "Failure",
            failure: self,
        }
    }

    fn value(&self) -> Value {
        serde_json::to_value(self.object()).unwrap_or_default()
    }

    fn cbor_object(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(SELF_DESCRIBED);
        cbor(&self.value(), out);
    }

    /// Appends the protobuf in its envelope.
    fn proto_object(&self, out: &mut Vec<u8>) {
        enveloped("v1", "Status", out, |raw| self.proto(raw));
    }

    /// Appends the protobuf, field for field as the generated code of `apimachinery` writes it:
    /// also empty strings, unless they are pointers.
    fn proto(&self, out: &mut Vec<u8>) {
        message(1, out, |list_meta| {
            text(1, "", list_meta);
            text(2, "", list_meta);
            text(3, "", list_meta);
        });
        text(2, "Failure", out);
        text(3, &self.message, out);
        text(4, self.reason.as_str(), out);
        if let Some(details) = &self.details {
            message(5, out, |out| details.proto(out));
        }
        number(6, self.code.into(), out);
    }
}

impl Details {
    fn proto(&self, out: &mut Vec<u8>) {
        text(1, &self.name, out);
        text(2, &self.group, out);
        text(3, &self.kind, out);
        for cause in &self.causes {
            message(4, out, |out| cause.proto(out));
        }
        number(5, self.retry_after_seconds.unwrap_or_default(), out);
        text(6, &self.uid, out);
    }
}

impl Cause {
    fn proto(&self, out: &mut Vec<u8>) {
        text(1, &self.reason, out);
        text(2, &self.message, out);
        text(3, &self.field, out);
    }
}

/// `StatusReason`: the ones that we send, each with its HTTP code by apimachinery's `api/errors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, Serialize)]
#[allow(missing_docs, reason = "upstream's reasons, by upstream's names")]
pub enum Reason {
    BadRequest,
    Unauthorized,
    Forbidden,
    /// Of our own. Programs that do not know it take it for `Forbidden`, by its code (`reasonAndCodeForError`
    /// in apimachinery's `api/errors`).
    NotInShard,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    Conflict,
    /// The resourceVersion or continue token is too old: list again.
    Expired,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    TooManyRequests,
    InternalError,
    ServiceUnavailable,
    Timeout,
}

impl Reason {
    /// The API server's spelling.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The HTTP code.
    pub const fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden | Self::NotInShard => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::Conflict => 409,
            Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::TooManyRequests => 429,
            Self::InternalError => 500,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
        }
    }
}
