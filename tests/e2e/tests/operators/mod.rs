//! Operators of others, from their own charts, on a node where ours is installed.

mod argo_rollouts;
mod cert_manager;
mod charts;
mod eck;
mod sharded;
