//! The answers that we give instead of the upstream's. A closed list: each has a Status, a metric
//! label, a log field and a row in the documentation.

use std::fmt;

use strum::{IntoStaticStr, VariantArray};

use ctrlmesh_wire::{
    delete::BadOptions,
    name::NameError,
    status::{Details, Reason, Status},
    websocket::BadHandshake,
};

/// The reason why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Refusal {
    /// No policy is in force yet, so the shard's objects are not known.
    NoPolicy,
    /// The API server might read the path or query otherwise than we do.
    BadRequestLine,
    /// A selector cannot be read, so it cannot be narrowed.
    BadSelector,
    /// The position belongs to an older policy: the client must list again.
    Expired,
    /// The handshake of a watch over WebSocket cannot be accepted.
    #[strum(serialize = "websocket_handshake")]
    WebSocketHandshake,
    /// The handshake of a watch over WebSocket has no origin.
    #[strum(serialize = "websocket_origin")]
    WebSocketOrigin,
    /// The token in the handshake of a watch over WebSocket cannot be used.
    #[strum(serialize = "websocket_token")]
    WebSocketToken,
    /// The upstream answers a watch or list in an encoding that we cannot follow.
    UnknownEncoding,
    /// A list cannot be judged item by item.
    UnreadableList,
    /// A body that may name the lock cannot be read.
    BadBody,
    /// A body that may name the lock is larger than the API server takes.
    BodyTooLarge,
    /// A body that must be parsed is in an encoding that we do not parse.
    UnsupportedBody,
    /// The buffered bodies fill the room for them.
    NoRoom,
    /// A body that must be parsed did not arrive whole in time.
    BodyTimeout,
    /// The API server has no such verb for this resource, or not over all namespaces.
    MethodNotAllowed,
    /// The scope changed while a request was carried out object by object.
    ScopeChanged,
    /// A write into a namespace that is not the shard's.
    NotInShard,
    /// A write into a moved namespace that the client decided on what it was shown before. Either the
    /// namespace has just left the shard; or it has just come, and the write is a delete or a create without
    /// a name.
    NamespaceMoved,
    /// A write took longer than an API server allows, while the boundary moved.
    HandedOver,
    /// No pod of the shard that owns the object of a review answers.
    OwnerDown,
    /// The shard that owns the object of a review is unknown.
    OwnerUnknown,
    /// The webhook server of this pod does not answer, nor does another pod of its shard.
    WebhookDown,
    /// The reviews that are held until their owner is known fill the room for them.
    NoReviewRoom,
    /// The time that the API server gives a review is over.
    ReviewTimeout,
    /// The webhook server of the review's shard broke off.
    ReviewBroken,
}

/// A refusal with its answer: [`Refusal::because`] fills in the defaults of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The kind of refusal.
    pub refusal: Refusal,
    /// The reason, for a person. It contains nothing of a body.
    pub why: String,
    /// The Status for the client.
    pub status: Box<Status>,
    /// The `Retry-After` header, in seconds. `None` sends none.
    pub retry_after: Option<u32>,
}

impl Refusal {
    /// The metric label and log field.
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// The Status's reason, which implies its HTTP code. client-go retries a 503 or 429 that has a
    /// `Retry-After`, and lists again after `Expired`.
    const fn reason(self) -> Reason {
        match self {
            Self::NoPolicy => Reason::ServiceUnavailable,
            Self::BadRequestLine | Self::BadSelector | Self::BadBody | Self::WebSocketHandshake => {
                Reason::BadRequest
            }
            Self::WebSocketOrigin => Reason::Forbidden,
            Self::WebSocketToken => Reason::Unauthorized,
            Self::Expired => Reason::Expired,
            Self::UnknownEncoding => Reason::NotAcceptable,
            Self::UnreadableList => Reason::InternalError,
            Self::BodyTooLarge => Reason::RequestEntityTooLarge,
            Self::UnsupportedBody => Reason::UnsupportedMediaType,
            Self::NoRoom => Reason::TooManyRequests,
            Self::BodyTimeout | Self::HandedOver => Reason::Timeout,
            Self::MethodNotAllowed => Reason::MethodNotAllowed,
            Self::ScopeChanged | Self::NamespaceMoved => Reason::Conflict,
            Self::NotInShard => Reason::NotInShard,
            // A failed call, so that the webhook's failurePolicy decides. Never a `Retry-After`: the
            // API server obeys it, uses up the timeout, and hides the message.
            Self::OwnerDown
            | Self::OwnerUnknown
            | Self::WebhookDown
            | Self::NoReviewRoom
            | Self::ReviewTimeout
            | Self::ReviewBroken => Reason::ServiceUnavailable,
        }
    }

    /// Seconds after which a retry makes sense.
    const fn retry_after(self) -> Option<u32> {
        match self {
            Self::NoPolicy | Self::NoRoom => Some(1),
            _ => None,
        }
    }

    /// This refusal for the reason `why`.
    pub fn because(self, why: impl fmt::Display) -> Refused {
        let why = why.to_string();
        let mut status = Box::new(Status::new(self.reason(), format!("ctrlmesh: {why}")));
        let retry_after = self.retry_after();
        status.details = retry_after
            .map(|seconds| Details { retry_after_seconds: Some(seconds), ..Details::default() });
        Refused { refusal: self, why, status, retry_after }
    }
}

/// A body in which the name of the lock cannot be relied on.
impl From<NameError> for Refused {
    fn from(error: NameError) -> Self {
        let refusal = match error {
            NameError::TooLarge(_) => Refusal::BodyTooLarge,
            NameError::NotJson => Refusal::UnsupportedBody,
            _ => Refusal::BadBody,
        };
        refusal.because(error)
    }
}

/// A handshake that the API server refuses, too.
impl From<BadHandshake> for Refused {
    fn from(error: BadHandshake) -> Self {
        let refusal = match error {
            BadHandshake::NoKey | BadHandshake::Version | BadHandshake::Protocols => {
                Refusal::WebSocketHandshake
            }
            BadHandshake::Origin => Refusal::WebSocketOrigin,
            BadHandshake::Token => Refusal::WebSocketToken,
        };
        refusal.because(error)
    }
}

/// Errors in the options of a judged deletecollection.
impl From<BadOptions> for Refused {
    fn from(error: BadOptions) -> Self {
        let refusal = match error {
            BadOptions::Encoding => Refusal::UnsupportedBody,
            BadOptions::Unreadable | BadOptions::Preconditions => Refusal::BadBody,
        };
        refusal.because(error)
    }
}
