//! Bodies of lists and watches, scanned or filtered while they pass.
//!
//! A scanner is fed the chunks of a body, cut anywhere, and never changes them. [`WatchScanner`]
//! reports the end and the facts of each event; [`ListScanner`] reports the list's own metadata.
//! Each needs memory of fixed size whatever the body, and stops with a named [`FrameError`] at a
//! malformed one. Both parse only what they report: the rest is measured, not validated.
//!
//! One walker per encoding (`object::walk`) descends along few paths and skips everything else. A
//! body with a `Content-Encoding` has to be decoded first.

mod bookmark;
mod event;
mod filter;
mod items;
mod leaving;
mod limits;
mod list;
mod watch;

pub use bookmark::Bookmark;
pub use event::{Listed, TypeMeta, object_event};
pub use filter::{Counts, Judge, JudgedEvent, ListFilter, Verdict, WatchFilter};
pub use items::{Item, ListHead, ListItems};
pub use leaving::Leaving;
pub use list::{ListScanner, OnObject};
pub use watch::{EventEnd, Events, WatchScanner};

pub use super::object::walk::{Continue, Event, EventKind, Fault, FrameError, ListMeta, MAGIC};
