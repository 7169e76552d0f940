//! What Kubernetes puts on the wire, sans-IO.
