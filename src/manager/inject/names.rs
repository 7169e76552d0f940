//! The names of our containers.

/// The container that programs the redirect rules and ends.
pub(super) const INIT: &str = "ctrlmesh-init";
/// The container that runs the proxy.
pub(super) const PROXY: &str = "ctrlmesh-proxy";
