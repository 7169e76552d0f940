//! The `envFrom` entries that can give a pod's containers another API server's address.
//!
//! An `envFrom` takes precedence over the kubelet's variables of the API server. The objects it
//! refers to are not at hand at injection, and may change until the pod starts. So the init
//! container gets the relevant entries, if they exist, under names of our own.

/// The prefix of the variables' names.
const PREFIX: &str = "CTRLMESH_ENV_FROM_";

/// One entry of an object that an `envFrom` refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{source} `{name}` with the key {key}")]
pub struct EnvFrom {
    /// The kind of object.
    pub source: EnvSource,
    /// The object's `metadata.name`.
    pub name: String,
    /// The key of the entry, without dots.
    pub key: String,
}

/// The kinds of object that `envFrom` may refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumString)]
pub enum EnvSource {
    /// `configMapRef`.
    ConfigMap,
    /// `secretRef`.
    Secret,
}

impl EnvFrom {
    /// The name of the init container's variable for the entry's value.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}.{}.{}", self.source, self.name, self.key)
    }

    /// The entry of a variable. `None` if the variable is not for an entry.
    pub fn of_variable(variable: &str) -> Option<Self> {
        let (source, rest) = variable.strip_prefix(PREFIX)?.split_once('.')?;
        let (name, key) = rest.rsplit_once('.')?;
        Some(Self { source: source.parse().ok()?, name: name.to_owned(), key: key.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_says_which_entry_it_is() {
        for (source, name) in [(EnvSource::ConfigMap, "shared"), (EnvSource::Secret, "a.b-c.d")] {
            let key = "SERVICE_HOST".to_owned();
            let entry = EnvFrom { source, name: name.to_owned(), key };
            assert_eq!(EnvFrom::of_variable(&entry.variable()), Some(entry));
        }
        for other in ["CTRLMESH_ENV_FROM_", "CTRLMESH_ENV_FROM_Node.a.b", "CTRLMESH_UPSTREAM", ""] {
            assert_eq!(EnvFrom::of_variable(other), None);
        }
    }
}
