//! Resources as they are stored.

use std::fmt;

use ctrlmesh_wire::request::Resource;

/// A resource as it is stored: group and plural name, no version. Two groups that serve the same
/// storage are one resource here, under the name of the first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    group: Box<str>,
    resource: Box<str>,
}

impl GroupResource {
    /// Characters in a DNS subdomain.
    const MAX_NAME: usize = 253;

    /// The core group is `""`.
    pub fn new(group: &str, resource: &str) -> Self {
        Self { group: storing(group, resource).into(), resource: resource.into() }
    }

    /// The resource of a request.
    pub fn of(resource: &Resource<'_>) -> Self {
        Self::new(&resource.group, &resource.resource)
    }

    /// Whether a name is too long for any API server: a group is a DNS subdomain, a resource a
    /// label (RFC 1123).
    pub fn is_too_long(&self) -> bool {
        self.group.len().max(self.resource.len()) > Self::MAX_NAME
    }

    /// Whether its objects are Namespaces.
    pub fn are_namespaces(&self) -> bool {
        (&*self.group, &*self.resource) == ("", "namespaces")
    }

    /// The API group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The plural name.
    pub fn resource(&self) -> &str {
        &self.resource
    }
}

/// The group that names the storage of a resource. Events are stored in the core group and served
/// by both: the only pair of `AddCohabitatingResources` (Kubernetes 1.37,
/// `pkg/kubeapiserver/default_storage_factory_builder.go`) whose groups are both still served.
pub(super) fn storing<'a>(group: &'a str, resource: &str) -> &'a str {
    if (group, resource) == ("events.k8s.io", "events") { "" } else { group }
}

impl fmt::Display for GroupResource {
    /// Writes `pods`, or `deployments.apps`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}
