//! Live watches and the policies that decided them. When the policy changes, the affected ones are
//! brought over: by difference if possible, else their clients have to list again. The others are
//! not touched.

mod body;
mod change;
mod error;
mod list;
mod live;
mod machine;
mod passing;
mod shown;
mod stall;
mod turns;
mod watch;

pub(super) use self::{
    body::{Backing, ReplyBody},
    error::BodyError,
    list::{ListBody, judged::JudgedList},
    live::{LiveStreams, StreamTable, Subject},
    passing::Treatment,
    stall::{Stalls, Unread},
    turns::Turns,
    watch::WatchBody,
};
