//! The positions that clients were shown before, and the one that a client resumes from.

use std::collections::HashMap;

use super::{floor::Floor, former::Former};
use ctrlmesh_policy::GroupResource;
use ctrlmesh_wire::rv::ResourceVersion;

/// The positions that clients were shown before this process, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Past {
    /// The floors at the end of the last process.
    pub(crate) floors: HashMap<GroupResource, Floor>,
    /// Whether clients may have been shown anything of resources that `floors` lacks.
    pub(crate) unknown: bool,
    /// Whether there was a process before this one. Under its last policy it may have shown any
    /// position above the floors: at the next change, all of these are of an older scope.
    pub(crate) had_process: bool,
    /// The shardings under which positions at or below the floors were shown.
    pub(crate) former: Former,
}

/// The position from which a client resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resume {
    /// A position that can be compared.
    Number(u64),
    /// A position that an aggregated API made up, or that is too large for etcd.
    Opaque,
}

impl Resume {
    /// The position in a request's `resourceVersion`, or `None` if the request does not resume.
    pub(crate) fn at(version: ResourceVersion) -> Option<Self> {
        match version {
            ResourceVersion::Unset | ResourceVersion::Zero => None,
            ResourceVersion::Opaque => Some(Self::Opaque),
            ResourceVersion::At(rv) => Some(u64::try_from(rv).map_or(Self::Opaque, Self::Number)),
        }
    }
}

impl Past {
    /// The past of a new pod: no client was shown anything.
    pub(crate) fn none() -> Self {
        Self {
            floors: HashMap::new(),
            unknown: false,
            had_process: false,
            former: Former::default(),
        }
    }

    /// A past in which clients may have been shown anything.
    pub(crate) fn unknown() -> Self {
        let former = Former::unknown();
        Self { floors: HashMap::new(), unknown: true, had_process: true, former }
    }

    pub(super) fn floor(&self, resource: &GroupResource) -> Floor {
        let other = if self.unknown { Floor::Unknown } else { Floor::At(0) };
        self.floors.get(resource).copied().unwrap_or(other)
    }
}
