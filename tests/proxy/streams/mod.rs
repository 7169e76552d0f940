//! Lists and watches.

mod changes;
mod deletes;
mod judged;
mod large;
mod lists;
mod named;
mod pushdown;
mod restarts;
mod returning;
mod shared;
mod shown;
mod watches;
mod websocket;
