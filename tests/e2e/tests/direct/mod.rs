//! The real proxy in direct mode between unmodified clients and a real API server.
//!
//! One API server for all tests that run at the same time; each test has a namespace and proxies
//! of its own. Figures are printed (`--nocapture` shows them).

mod absence;
pub(crate) mod bed;
mod changes;
mod clients;
mod encodings;
mod explain;
mod families;
mod figures;
mod identity;
mod kubectl;
mod locks;
mod requests;
mod restart;
mod stores;
mod websocket;
