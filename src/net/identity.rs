//! The identity of a pod in the mesh, and its URI (SPIFFE-ID section 2).

use std::str::FromStr;

/// The URI up to the namespace.
const PREFIX: &str = "spiffe://ctrlmesh/ns/";

/// Longest name of a namespace: a DNS label (RFC 1035 section 2.3.4).
const MAX_NAMESPACE: usize = 63;
/// Longest name of a pod: a DNS subdomain, as Kubernetes bounds it.
const MAX_NAME: usize = 253;
/// Longest uid. Kubernetes makes UUIDs, of 36 characters, and hashes for static pods.
const MAX_UID: usize = 128;

/// The identity of a pod. Its text is the URI in the leaf of the pod's proxy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{PREFIX}{namespace}/pod/{name}/{uid}")]
pub struct PodIdentity {
    namespace: Box<str>,
    name: Box<str>,
    uid: Box<str>,
}

/// The reason why a text is no identity, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadIdentity {
    #[error("{0:?} is not {PREFIX}NAMESPACE/pod/NAME/UID")]
    Uri(String),
    #[error("{0:?} is not the name of a namespace")]
    Namespace(String),
    #[error("{0:?} is not the name of a pod")]
    Name(String),
    #[error("{0:?} is not the uid of a pod")]
    Uid(String),
}

impl PodIdentity {
    /// The identity of the pod with these parts. Fails with [`BadIdentity`] if Kubernetes has no such
    /// names: with them no part of the URI could be taken for another.
    pub fn new(namespace: &str, name: &str, uid: &str) -> Result<Self, BadIdentity> {
        if !is_name(namespace, MAX_NAMESPACE) || namespace.contains('.') {
            return Err(BadIdentity::Namespace(namespace.to_owned()));
        }
        if !is_name(name, MAX_NAME) {
            return Err(BadIdentity::Name(name.to_owned()));
        }
        let is_of_uid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if !(1..=MAX_UID).contains(&uid.len()) || !uid.bytes().all(is_of_uid) {
            return Err(BadIdentity::Uid(uid.to_owned()));
        }
        Ok(Self { namespace: namespace.into(), name: name.into(), uid: uid.into() })
    }

    /// The pod's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The pod's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pod's uid.
    pub fn uid(&self) -> &str {
        &self.uid
    }
}

impl FromStr for PodIdentity {
    type Err = BadIdentity;

    /// Reads exactly what [`PodIdentity`] writes: a URI that is merely equivalent is no identity.
    fn from_str(uri: &str) -> Result<Self, BadIdentity> {
        let parts = uri.strip_prefix(PREFIX).map(|rest| rest.split('/').collect::<Vec<_>>());
        match parts.as_deref() {
            Some([namespace, "pod", name, uid]) => Self::new(namespace, name, uid),
            _ => Err(BadIdentity::Uri(uri.to_owned())),
        }
    }
}

/// Whether a text is a DNS subdomain (RFC 1123) of at most `longest` characters.
fn is_name(text: &str, longest: usize) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        [bytes.first(), bytes.last()].iter().all(|end| end.is_some_and(is_alphanumeric))
            && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
    };
    text.len() <= longest && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "0d5e2b0c-7c4c-4a57-9a3e-0e7a0a3c6a2b";

    #[test]
    fn an_identity_is_its_uri() {
        for (namespace, name, uid) in [
            ("a", "op-0", UID),
            ("kube-system", "etcd.node-1", "8f4fa2e2e8f4c1d35d1bb2a4e8e6f4b1"),
            ("0", "a", "u-1"),
        ] {
            let pod = PodIdentity::new(namespace, name, uid).unwrap();
            let uri = pod.to_string();
            assert_eq!(uri, format!("spiffe://ctrlmesh/ns/{namespace}/pod/{name}/{uid}"));
            assert_eq!(uri.parse(), Ok(pod.clone()));
            assert_eq!((pod.namespace(), pod.name(), pod.uid()), (namespace, name, uid));
        }
    }

    #[test]
    fn a_part_is_what_kubernetes_has() {
        let long = "a".repeat(254);
        let is_of = |kind: fn(String) -> BadIdentity, namespace: &str, name: &str, uid: &str| {
            let part = [namespace, name, uid].into_iter().find(|part| !["a", "u"].contains(part));
            let wanted = kind(part.unwrap().to_owned());
            assert_eq!(PodIdentity::new(namespace, name, uid), Err(wanted));
        };
        for bad in ["", "A", "a.b", "a/b", "-a", "a-", "a b", "ä", "a%2fb", "..", &long[..64]] {
            is_of(BadIdentity::Namespace, bad, "a", "u");
        }
        for bad in
            ["", "A", "a/b", ".a", "a.", "a..b", "a.-b", "a_b", "a?b", "a#", "é", "a%", &long]
        {
            is_of(BadIdentity::Name, "a", bad, "u");
        }
        for bad in ["", "/", "u/", "u?", "u#", "u ", "u\n", "ü", "u.", &long[..129]] {
            is_of(BadIdentity::Uid, "a", "a", bad);
        }
    }

    #[test]
    fn a_uri_that_is_not_exact_is_none() {
        let good = format!("spiffe://ctrlmesh/ns/a/pod/op-0/{UID}");
        good.parse::<PodIdentity>().unwrap();
        for bad in [
            String::new(),
            good.replace("spiffe:", "SPIFFE:"),
            good.replace("spiffe:", "https:"),
            good.replace("ctrlmesh", "Ctrlmesh"),
            good.replace("ctrlmesh", "ctrlmesh.example"),
            good.replace("ctrlmesh", "x@ctrlmesh"),
            good.replace("ctrlmesh", "ctrlmesh:443"),
            good.replace("/ns/", "/sa/"),
            good.replace("/ns/", "//ns/"),
            good.replace("/pod/", "/sa/"),
            good.replace("/pod/", "/"),
            good.replace("/a/", "//"),
            good.replace("op-0", "../op-0"),
            good.replace("op-0", "op%2D0"),
            format!(" {good}"),
            format!("{good}/"),
            format!("{good}/x"),
            format!("{good}?x"),
            format!("{good}#x"),
            format!("{good}\n"),
            good[..good.len() - UID.len()].to_owned(),
        ] {
            bad.parse::<PodIdentity>().unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_again(
            text in prop_oneof![
                any::<String>(),
                "spiffe://ctrlmesh/ns/[a-c.A/-]{0,4}/pod/[a-c./%-]{0,4}/[a-cA./-]{0,4}",
            ]
        ) {
            if let Ok(pod) = text.parse::<PodIdentity>() {
                prop_assert_eq!(pod.to_string(), text);
            }
        }
    }
}
