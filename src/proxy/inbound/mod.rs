//! The inbound leg: a review on its way to the pod whose shard owns the object.
//!
//! Hides who answers a review from both ends: the API server calls any pod behind a webhook's
//! Service, and the webhook server sees its own shard's reviews as if they had come to it. The life
//! of a connection:
//!
//! 1. [`port`]: the listener exists while the webhook server itself listens, so that no one takes
//!    the proxy for it.
//! 2. [`connection`]: a client that names `peer.ctrlmesh` is another pod of the namespace, and proves which one.
//!    All other clients are shown the webhook server's own certificate.
//! 3. [`review`]: one request; a review is held until its owner is known ([`held`]).
//! 4. [`operator`], [`peers`](super::peers): the two places where it is answered.
//!
//! Words: the operator is the controller of this pod, as the server of its webhooks; a peer is
//! another pod of the namespace.

mod connection;
mod head;
mod held;
mod operator;
mod page;
mod port;
mod review;
mod state;

pub(super) use self::{
    connection::serve,
    page::{peers as peers_page, ready},
    port::{closed, keep as keep_port},
    state::{Inbound, Webhook},
};
