//! Bodies of lists and watches, scanned or filtered while they pass.
//!
//! A scanner is fed the chunks of a body, cut anywhere, and never changes them. [`WatchScanner`]
//! reports the end and the facts of each event; [`ListScanner`] reports the list's own metadata.
//! Each needs memory of fixed size whatever the body, and stops with a named [`FrameError`] at a
//! malformed one. Both parse only what they report: the rest is measured, not validated.
//!
//! One walker per encoding (`walk`) descends along the few paths of `place` and skips everything
//! else. A body with a `Content-Encoding` has to be decoded first.

mod bookmark;
mod event;
mod facts;
mod fault;
mod filter;
mod items;
mod limits;
mod list;
mod place;
mod step;
mod walk;
mod watch;

pub use bookmark::Bookmark;
pub use event::{Listed, TypeMeta, object_event};
pub use facts::{Continue, Event, EventKind, ListMeta, Object};
pub use fault::{Fault, FrameError};
pub use filter::{Counts, Judge, ListFilter, Passed, Verdict, WatchFilter};
pub use items::{Item, ListHead, ListItems};
pub use list::ListScanner;
pub use walk::MAGIC;
pub use watch::{EventEnd, Events, WatchScanner};
