//! Operators of others, from their own charts, on a node where ours is installed.

mod cert_manager;
mod charts;
