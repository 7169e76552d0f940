//! Admission reviews: what one is about, read while its body arrives.
//!
//! Hides JSON, the order of its keys and the two versions of `admission.k8s.io`. Only facts come out:
//! the body goes on byte for byte, to whom it concerns. Whether the facts so far decide is asked of
//! the policy. [`response()`] is the review that answers where no webhook server does.

mod facts;
mod limit;
mod reader;
mod response;

pub use self::{
    facts::{NotReview, Operation, Review, Stated},
    limit::limit,
    reader::Reader,
    response::response,
};

#[cfg(test)]
mod tests;
