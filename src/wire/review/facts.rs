//! The facts of a review, and the reasons why a body is none.

use crate::object::{Fault, Object};

/// The facts of a review: what it is about. Texts that it does not have are empty.
#[derive(Debug, Clone, Copy)]
pub struct Review<'a> {
    /// `apiVersion`: that of the response, too.
    pub api_version: &'a str,
    /// `request.uid`, which the response repeats.
    pub uid: &'a str,
    /// `request.operation`.
    pub operation: Operation,
    /// The API group of the resource; the core group is `""`.
    pub group: &'a str,
    /// The plural name of the resource.
    pub resource: &'a str,
    /// The subresource, as far as it was read: it may stand behind what decides.
    pub subresource: &'a str,
    /// The namespace; empty if the object is in none. That of a Namespace is its own name.
    pub namespace: &'a str,
    /// The name, as far as it was read. It is empty where the API server has yet to generate it, and
    /// in a deletecollection.
    pub name: &'a str,
    /// Whether the object is of the kind that a subresource has (Scale, Eviction, Binding,
    /// TokenRequest): its labels are not those of the resource.
    pub is_of_subresource: bool,
    /// The facts of the object by which the owner is found.
    pub object: Stated<'a>,
}

/// The operation of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Operation {
    /// An object is created.
    #[display("CREATE")]
    Create,
    /// An object is changed: update, patch, apply.
    #[display("UPDATE")]
    Update,
    /// An object is deleted, alone or as one of a collection.
    #[display("DELETE")]
    Delete,
    /// A connection to a subresource: exec, attach, port-forward, proxy.
    #[display("CONNECT")]
    Connect,
    /// An operation that is not known here.
    #[display("an unknown operation")]
    Other,
}

/// The facts of the object of a review: of `oldObject`, which says who owns it now, and of `object`
/// where that is created.
#[derive(Debug, Clone, Copy)]
pub enum Stated<'a> {
    /// The object's metadata is still to come.
    Coming,
    /// The object is not there, or cannot be read in one way.
    Unknown,
    /// The object.
    Is(Object<'a>),
}

/// The reason why a body is not a review that can be read. The webhook server itself judges it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReview {
    /// The body is not one JSON object.
    #[error("it is not JSON: {0}")]
    Malformed(Fault),
    /// The body ends in the middle.
    #[error("it ends in the middle")]
    Truncated,
    /// An object of another kind, such as a ConversionReview.
    #[error("its kind is not AdmissionReview")]
    Kind,
    /// A review of another version.
    #[error("its apiVersion is neither admission.k8s.io/v1 nor admission.k8s.io/v1beta1")]
    Version,
    /// A part that every review has is missing.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// A key that stands twice: decoders take the first value, the last, or both.
    #[error("{0} stands twice")]
    Repeated(&'static str),
    /// A text stands twice, has another type, or is longer than any name.
    #[error("a text of its request stands twice, is no text, or is too long")]
    Ambiguous,
}

impl Operation {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "CREATE" => Self::Create,
            "UPDATE" => Self::Update,
            "DELETE" => Self::Delete,
            "CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }
}
