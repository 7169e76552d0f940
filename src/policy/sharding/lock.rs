//! Leader election: every shard elects its own leader, so every shard gets its own lock.

use crate::wire::{
    dns::is_subdomain,
    request::{RequestInfo, Verb},
};

/// The lock that the controller asks for and the shard's lock that replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    name: Box<str>,
    renamed: Box<str>,
    namespace: Box<str>,
}

/// The place where a request names the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockIn {
    /// The path names the lock.
    Path,
    /// The path names the lock, and perhaps the body too.
    PathAndBody,
    /// The body perhaps names the lock: a create names its object only there.
    Body,
    /// The query names the lock by `fieldSelector=metadata.name=`.
    FieldSelector,
}

/// Errors in the name of a lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadLock {
    #[error(
        "{0:?} is not an object name: give lower case letters, digits, '-' and '.', such as \"my-operator\""
    )]
    Name(String),
    #[error("{0:?} is {1} characters long: shorten it, an object name has at most 253")]
    TooLong(String, usize),
}

impl LockIn {
    /// Whether the body may name the lock.
    pub const fn is_in_body(self) -> bool {
        matches!(self, Self::Body | Self::PathAndBody)
    }
}

impl Lock {
    /// Characters in Kubernetes' longest object name.
    const MAX_NAME: usize = 253;

    /// The lock `name` of the shard `shard` in `namespace`.
    pub fn new(name: &str, shard: &str, namespace: &str) -> Result<Self, BadLock> {
        if !is_subdomain(name) {
            return Err(BadLock::Name(name.to_owned()));
        }
        let renamed = format!("{name}---{shard}");
        if renamed.len() > Self::MAX_NAME {
            let length = renamed.len();
            return Err(BadLock::TooLong(renamed, length));
        }
        Ok(Self { name: name.into(), renamed: renamed.into(), namespace: namespace.into() })
    }

    /// The name that the controller uses.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name in the cluster: `<lock>---<shard>`.
    pub fn renamed(&self) -> &str {
        &self.renamed
    }

    /// The cluster's name if `name` is the controller's name of the lock, else `None`: a client may
    /// use the name from a response, which is renamed already.
    pub fn rename(&self, name: &str) -> Option<String> {
        (name == &*self.name).then(|| self.renamed.to_string())
    }

    /// Whether a lock can be an object of this resource.
    pub fn is_kind(group: &str, resource: &str) -> bool {
        matches!(
            (group, resource),
            ("coordination.k8s.io", "leases") | ("", "configmaps" | "endpoints")
        )
    }

    /// The place where this request may name the lock, or `None` if it is about something else.
    pub fn find(&self, info: &RequestInfo<'_>) -> Option<LockIn> {
        let resource = info.resource()?;
        if !Self::is_kind(&resource.group, &resource.resource)
            || info.namespace() != Some(&*self.namespace)
            || resource.subresource.is_some()
        {
            return None;
        }
        match info.verb {
            Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => {
                let named = resource.name.as_deref();
                let place = match info.verb {
                    Verb::Update | Verb::Patch => LockIn::PathAndBody,
                    _ => LockIn::Path,
                };
                (named == Some(&*self.name) || named == Some(&*self.renamed)).then_some(place)
            }
            Verb::Create => Some(LockIn::Body),
            Verb::Watch if resource.verb_in_path && resource.name.is_some() => {
                (resource.name.as_deref() == Some(&*self.name)).then_some(LockIn::Path)
            }
            Verb::List | Verb::Watch | Verb::DeleteCollection => Some(LockIn::FieldSelector),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";

    fn found(method: Method, path: &str, query: Option<&str>) -> Option<LockIn> {
        let lock = Lock::new("op", "blue", "ns").unwrap();
        let info = RequestInfo::parse(&method, path, query).unwrap();
        lock.find(&info)
    }

    #[test]
    fn t72_every_verb_of_the_lock_is_found() {
        let one = format!("{LEASES}/op");
        for method in [Method::GET, Method::DELETE] {
            assert_eq!(found(method, &one, None), Some(LockIn::Path));
        }
        for method in [Method::PUT, Method::PATCH] {
            assert_eq!(found(method, &one, None), Some(LockIn::PathAndBody));
        }
        assert_eq!(found(Method::POST, LEASES, None), Some(LockIn::Body));
        for (method, query) in [
            (Method::GET, "fieldSelector=metadata.name%3Dop"),
            (Method::GET, "watch=1&fieldSelector=metadata.name%3Dop"),
            (Method::DELETE, "fieldSelector=metadata.name%3Dop"),
        ] {
            assert_eq!(found(method, LEASES, Some(query)), Some(LockIn::FieldSelector));
        }
        let all = "/apis/coordination.k8s.io/v1/leases";
        let query = "fieldSelector=metadata.namespace%3Dns,metadata.name%3Dop";
        for query in [query, &format!("watch=1&{query}")] {
            assert_eq!(found(Method::GET, all, Some(query)), Some(LockIn::FieldSelector));
        }
        let watch = "/apis/coordination.k8s.io/v1/watch/namespaces/ns/leases/op";
        assert_eq!(found(Method::GET, watch, None), Some(LockIn::Path));
        for kind in ["configmaps", "endpoints"] {
            let path = format!("/api/v1/namespaces/ns/{kind}/op");
            assert_eq!(found(Method::GET, &path, None), Some(LockIn::Path));
        }
    }

    #[test]
    fn t72_what_is_no_lock_of_ours_is_left_alone() {
        for path in [
            "/apis/coordination.k8s.io/v1/namespaces/other/leases/op",
            "/apis/coordination.k8s.io/v1/namespaces/ns/leases/op2",
            "/apis/coordination.k8s.io/v1/namespaces/ns/leases/op---green",
            "/api/v1/namespaces/ns/pods/op",
            "/api/v1/namespaces/ns/configmaps/op/status",
        ] {
            assert_eq!(found(Method::GET, path, None), None, "{path}");
        }
        // Locks of this name in other namespaces may be listed too, and are not ours to rename.
        let all = "/apis/coordination.k8s.io/v1/leases";
        for fields in ["metadata.name%3Dop", "metadata.name%3Dop,metadata.namespace%3Dother"] {
            let query = format!("fieldSelector={fields}");
            assert_eq!(found(Method::GET, all, Some(&query)), None, "{query}");
        }
    }

    #[test]
    fn t72_a_name_is_renamed_once() {
        let lock = Lock::new("op", "blue", "ns").unwrap();
        assert_eq!(lock.rename("op").as_deref(), Some("op---blue"));
        assert_eq!(lock.rename("op---blue"), None);
        assert_eq!(lock.rename("op---green"), None);
        let suffixed = found(Method::PUT, &format!("{LEASES}/op---blue"), None);
        assert_eq!(suffixed, Some(LockIn::PathAndBody), "its body may still say the short name");
    }

    #[test]
    fn a_lock_has_an_object_name() {
        for name in ["", "Op", "a b", "-a", "a.", "a..b"] {
            assert!(matches!(Lock::new(name, "s", "ns"), Err(BadLock::Name(_))), "{name}");
        }
        let long = "a".repeat(250);
        assert!(matches!(Lock::new(&long, "shard", "ns"), Err(BadLock::TooLong(..))));
    }
}
