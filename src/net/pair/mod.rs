//! The operator's own serving certificate, from a directory that others write.
//!
//! Hides which files it has. It reloads them when they change, and tolerates half-written updates. A *pair* is a chain of certificates and the key of its
//! first; the pair *shown* is the last good one; *held* is what was shown before, too, also by a
//! process before this one.

mod directory;
mod held;
mod operator;
mod server;

pub use self::{
    directory::{BadPair, PairNames},
    held::NotKept,
    operator::{ForeignCertificate, OperatorTls},
    server::WebhookCert,
};

#[cfg(test)]
mod tests;
