//! The page `/observed` of a proxy's admin port: what the pod's controller has asked of the API server.

use serde::{Deserialize, Serialize};

use super::lease::Elections;

/// The requests of a pod's controller since its proxy started, as far as they help to write limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedRequests {
    /// The resources, in their order.
    pub resources: Vec<ObservedResource>,
    /// The elections.
    pub elections: Elections,
}

/// A resource that a controller has named in its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObservedResource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural name.
    pub resource: String,
    /// The verbs, as the API server spells them, in their order.
    pub verbs: Vec<String>,
    /// Whether a limit names it.
    pub is_limited: bool,
}
