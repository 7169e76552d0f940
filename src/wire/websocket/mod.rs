//! A watch over WebSocket (RFC 6455), as API server 1.37 serves it (`apiserver/pkg/util/httpstream/wsstream`
//! and `golang.org/x/net/websocket`).
//!
//! - [`Offer`]: the client's handshake, taken out of a request that is a plain watch without it.
//! - [`Events`]: the body of that watch, one event a frame.
//! - [`ClientFrames`]: the client's frames, of which few matter.

mod client;
mod events;
mod frame;
mod handshake;

pub use self::{
    client::{ClientFrames, Heard},
    events::Events,
    frame::{Close, put_close, put_pong},
    handshake::{BadHandshake, Offer},
};

#[cfg(test)]
mod tests;
