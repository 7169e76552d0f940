//! The mode of an injected pod.

/// The way in which a pod's requests reach the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Redirect rules, which `ctrlmesh-init` puts in place.
    Iptables,
    /// The address of the API server in the containers' environment. Needs no privilege, but misses
    /// clients that take the address from elsewhere.
    Env,
}

impl CaptureMode {
    /// The value of the annotation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Env => "env",
        }
    }
}
