//! The mode of an injected pod.

use strum::IntoStaticStr;

/// The way in which a pod's requests reach the proxy, by the value of its annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum CaptureMode {
    /// Redirect rules, which `ctrlmesh-init` puts in place.
    Iptables,
    /// The address of the API server in the containers' environment. Needs no privilege, but misses
    /// clients that take the address from elsewhere.
    Env,
}
