//! `metav1.Status`: our refusals in the client's encoding, as one body or as the last event of a
//! watch.

mod proto;
mod tree;

/// The parts of a Status writer that other objects use, too.
pub(super) mod write {
    pub(in crate::wire) use super::{
        proto::{enveloped, framed, message, text},
        tree::{Node, head as cbor_head},
    };
}

use std::borrow::Cow;

use bytes::Bytes;
use strum::IntoStaticStr;

use self::{
    proto::{enveloped, framed, message, number, text},
    tree::Node,
};
use super::media::Encoding;

/// A failure in the API server's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// The reason, for programs.
    pub reason: Reason,
    /// The message, for people.
    pub message: Cow<'static, str>,
    /// The object of the failure.
    pub details: Option<Details>,
}

/// `StatusDetails`. An empty string is an absent one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "upstream's fields, by upstream's names")]
pub struct Details {
    pub name: String,
    pub group: String,
    /// The resource (`pods`), despite the name, as in the API server's errors.
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    /// Seconds after which to retry; 0 is absent. client-go obeys the `Retry-After` header, others
    /// obey this.
    pub retry_after_seconds: u32,
}

/// `StatusCause`. An empty string is an absent one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "upstream's fields, by upstream's names")]
pub struct Cause {
    pub reason: Cow<'static, str>,
    pub message: String,
    pub field: String,
}

impl Status {
    /// A failure with the API server's code for the reason.
    pub fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code: reason.code(), reason, message: message.into(), details: None }
    }

    /// The body of a response with [`Encoding::content_type`], byte for byte as the API server
    /// writes it (except YAML, where it quotes less).
    pub fn encode(&self, encoding: Encoding) -> Bytes {
        let mut out = Vec::with_capacity(512);
        match encoding {
            Encoding::Json => {
                self.tree().json(&mut out);
                out.push(b'\n');
            }
            Encoding::Yaml => self.tree().yaml(&mut out),
            Encoding::Protobuf => self.proto_object(&mut out),
            Encoding::Cbor => self.tree().cbor(&mut out),
        }
        out.into()
    }

    /// A framed event of type ERROR for a stream with [`Encoding::stream_content_type`]. After a
    /// JSON event without a final newline it must begin with one: see `WatchScanner::separator`.
    pub fn error_event(&self, encoding: Encoding) -> Bytes {
        let mut out = Vec::with_capacity(512);
        let event = || Node::Object(vec![("type", Node::Text("ERROR")), ("object", self.tree())]);
        match encoding {
            Encoding::Json | Encoding::Yaml => {
                event().json(&mut out);
                out.push(b'\n');
            }
            Encoding::Protobuf => framed("ERROR", &mut out, |raw| self.proto_object(raw)),
            Encoding::Cbor => event().cbor(&mut out),
        }
        out.into()
    }

    /// The fields in the API server's order for JSON.
    fn tree(&self) -> Node<'_> {
        let mut fields = vec![
            ("kind", Node::Text("Status")),
            ("apiVersion", Node::Text("v1")),
            ("metadata", Node::Map(Vec::new())),
            ("status", Node::Text("Failure")),
        ];
        push_text(&mut fields, "message", &self.message);
        push_text(&mut fields, "reason", self.reason.as_str());
        if let Some(details) = &self.details {
            fields.push(("details", details.tree()));
        }
        fields.push(("code", Node::Number(self.code.into())));
        Node::Object(fields)
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
    fn tree(&self) -> Node<'_> {
        let mut fields = Vec::new();
        push_text(&mut fields, "name", &self.name);
        push_text(&mut fields, "group", &self.group);
        push_text(&mut fields, "kind", &self.kind);
        push_text(&mut fields, "uid", &self.uid);
        if !self.causes.is_empty() {
            fields.push(("causes", Node::List(self.causes.iter().map(Cause::tree).collect())));
        }
        if self.retry_after_seconds > 0 {
            fields.push(("retryAfterSeconds", Node::Number(self.retry_after_seconds)));
        }
        Node::Map(fields)
    }

    fn proto(&self, out: &mut Vec<u8>) {
        text(1, &self.name, out);
        text(2, &self.group, out);
        text(3, &self.kind, out);
        for cause in &self.causes {
            message(4, out, |out| cause.proto(out));
        }
        number(5, self.retry_after_seconds, out);
        text(6, &self.uid, out);
    }
}

impl Cause {
    fn tree(&self) -> Node<'_> {
        let mut fields = Vec::new();
        push_text(&mut fields, "reason", &self.reason);
        push_text(&mut fields, "message", &self.message);
        push_text(&mut fields, "field", &self.field);
        Node::Map(fields)
    }

    fn proto(&self, out: &mut Vec<u8>) {
        text(1, &self.reason, out);
        text(2, &self.message, out);
        text(3, &self.field, out);
    }
}

fn push_text<'a>(fields: &mut Vec<(&'static str, Node<'a>)>, name: &'static str, text: &'a str) {
    if !text.is_empty() {
        fields.push((name, Node::Text(text)));
    }
}

/// `StatusReason`: the ones that we send, each with its HTTP code by apimachinery's `api/errors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
#[repr(u16)]
#[allow(missing_docs, reason = "upstream's reasons, by upstream's names")]
pub enum Reason {
    BadRequest = 400,
    MethodNotAllowed = 405,
    NotAcceptable = 406,
    Conflict = 409,
    /// The resourceVersion or continue token is too old: list again.
    Expired = 410,
    RequestEntityTooLarge = 413,
    UnsupportedMediaType = 415,
    TooManyRequests = 429,
    InternalError = 500,
    ServiceUnavailable = 503,
    Timeout = 504,
}

impl Reason {
    /// The API server's spelling.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The HTTP code.
    pub const fn code(self) -> u16 {
        self as u16
    }
}
