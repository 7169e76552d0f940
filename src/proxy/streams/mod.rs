//! The bodies of responses on their way to the client: lists, watches, and all that pass as they are.
//! A watch whose policy has changed is brought over here, by difference if possible.

mod body;
mod change;
mod difference;
mod error;
mod list;
mod passing;
mod refusal;
mod shown;
mod watch;
mod websocket;

pub(super) use self::{
    body::{Backing, ReplyBody},
    difference::{Lists, Moved, Prelude},
    error::BodyError,
    list::{ListBody, judged::JudgedList},
    passing::Treatment,
    refusal::refuse,
    watch::WatchBody,
    websocket::{WebSocket, send_events},
};
