//! The abilities of an API server, as far as they were found out, by resource.

use std::{cell::RefCell, collections::HashMap};

use crate::policy::GroupResource;

/// Knowledge of the API server at the end of one connection.
#[derive(Debug, Default)]
pub(super) struct Understood(pub(super) RefCell<HashMap<GroupResource, Knowledge>>);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Knowledge {
    pub(super) hashes: Option<bool>,
    pub(super) namespaces: Option<bool>,
}

/// Whether each resource is namespaced, for the API server at the end of one connection.
#[derive(Debug, Default)]
pub(super) struct Discovered(pub(super) RefCell<HashMap<GroupResource, bool>>);
