//! ctrlmesh runs any Kubernetes controller as several shards without changing a line of it.

pub mod wire;
