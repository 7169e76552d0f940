//! The names of our containers, and the path that all containers share.

/// The container that programs the redirect rules and ends.
pub(super) const INIT: &str = "ctrlmesh-init";
/// The container that runs the proxy.
pub(super) const PROXY: &str = "ctrlmesh-proxy";

/// The directory in which every official client looks for token and CA.
pub(super) const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
