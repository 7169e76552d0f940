//! The names that injection gives to containers and variables.

/// The container that programs the redirect rules and ends.
pub const INIT: &str = "ctrlmesh-init";
/// The container that runs the proxy.
pub const PROXY: &str = "ctrlmesh-proxy";

/// The variables by which clients find the API server.
pub(super) const ADDRESS: [&str; 3] =
    ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"];

/// The variables of our containers about their pod.
pub(super) const POD: [&str; 3] = ["POD_NAME", "POD_NAMESPACE", "POD_IP"];
/// The variable of a proxy that shows which pod it is in.
pub(super) const POD_UID: &str = "POD_UID";
