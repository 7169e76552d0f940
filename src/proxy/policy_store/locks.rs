//! The locks that the pod follows: those that its config named when the pod started.
//!
//! Hides the file that keeps them over a restart of the process. Two proxies of a shard that change
//! their locks at two moments make two leaders, so a later change waits for a new pod.

use std::{fs, io, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};

use ctrlmesh_policy::{LockName, Locks, Policy};

/// Bytes of the file for the most locks with the longest names, and more.
const MAX_BYTES: u64 = 1 << 16;

/// The locks of the pod's first config, by shard.
#[derive(Debug, Default)]
pub(super) struct KeptLocks {
    path: Option<PathBuf>,
    kept: Option<LocksFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LocksFile {
    shard: String,
    /// Each as `namespace/name`.
    locks: Vec<String>,
}

/// The locks of a config are not those that the pod follows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the locks of the ShardingConfig have changed, and this pod goes by those of its start ({kept}): \
     restart the pods of the shard"
)]
pub(super) struct LocksChanged {
    kept: String,
}

impl KeptLocks {
    /// The locks that an earlier process of the pod kept in its state directory. A file that cannot
    /// be read counts as none.
    pub(super) fn open(state_dir: Option<PathBuf>) -> Self {
        let Some(path) = state_dir.map(|dir| dir.join("locks.json")) else {
            return Self::default();
        };
        let kept = match read(&path) {
            Ok(kept) => Some(kept),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot read the locks of the pod");
                None
            }
        };
        Self { path: Some(path), kept }
    }

    /// The policy with the locks that the pod follows. A pod that comes to another shard takes that
    /// one's. Returns too whether they are not those of the policy.
    pub(super) fn keep(&mut self, policy: Policy) -> (Policy, Option<LocksChanged>) {
        let sharding = &policy.sharding;
        let new = LocksFile {
            shard: sharding.shard().to_owned(),
            locks: sharding.locks().names().map(ToString::to_string).collect(),
        };
        match &self.kept {
            Some(kept) if *kept == new => (policy, None),
            Some(kept) if kept.shard == new.shard => match kept.locks(sharding.namespace()) {
                Some(locks) => {
                    let changed = LocksChanged { kept: kept.to_string() };
                    let sharding = Arc::new(sharding.with_locks(locks));
                    (Policy { sharding, ..policy }, Some(changed))
                }
                None => (self.replace(new, policy), None),
            },
            _ => (self.replace(new, policy), None),
        }
    }

    fn replace(&mut self, new: LocksFile, policy: Policy) -> Policy {
        if let Some(path) = &self.path {
            let written = serde_json::to_vec(&new).map_err(io::Error::from);
            if let Err(error) = written.and_then(|bytes| fs::write(path, bytes)) {
                tracing::error!(%error, path = %path.display(), "cannot write the locks of the pod");
            }
        }
        self.kept = Some(new);
        policy
    }
}

impl LocksFile {
    /// The locks, for pods of this namespace. `None` if one of them is none.
    fn locks(&self, own: &str) -> Option<Locks> {
        let names = self.locks.iter().map(|lock| {
            let (namespace, name) = lock.split_once('/')?;
            match namespace == own {
                true => LockName::beside_the_pods(name, namespace).ok(),
                false => LockName::new(name, namespace).ok(),
            }
        });
        Locks::new(names.collect::<Option<Vec<_>>>()?, &self.shard, own).ok()
    }
}

impl std::fmt::Display for LocksFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.locks.as_slice() {
            [] => f.write_str("none"),
            locks => f.write_str(&locks.join(", ")),
        }
    }
}

fn read(path: &PathBuf) -> io::Result<LocksFile> {
    if fs::metadata(path)?.len() > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ctrlmesh_policy::from_documents;

    fn policy(shard: &str, locks: &str) -> Policy {
        let yaml = format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
             metadata: {{name: {shard}}}\n\
             spec: {{selector: {{matchLabels: {{app: op}}}}, controller: {{locks: [{locks}]}}}}\n"
        );
        from_documents(yaml.as_bytes(), shard, Some("ns")).unwrap().resolve(None).unwrap()
    }

    fn names(policy: &Policy) -> Vec<String> {
        policy.sharding.locks().own_names().collect()
    }

    #[test]
    fn bad_locks_that_change_under_a_pod_wait_for_another_pod() {
        let dir = tempfile::tempdir().unwrap();
        let open = || KeptLocks::open(Some(dir.path().to_owned()));
        let far = "{name: op, namespace: kube-system}";
        let mut kept = open();
        let (first, changed) = kept.keep(policy("blue", far));
        assert_eq!((names(&first), changed), (vec!["ns/op.kube-system---blue".to_owned()], None));
        // Also for another process of the pod.
        for mut kept in [kept, open()] {
            let (later, changed) = kept.keep(policy("blue", "{name: other}"));
            assert_eq!(later.sharding, first.sharding);
            let changed = changed.unwrap().to_string();
            assert!(changed.contains("(kube-system/op): restart the pods"), "{changed}");
            assert_eq!(kept.keep(policy("blue", far)).1, None, "it is taken back");
        }
        let (other, changed) = open().keep(policy("green", "{name: other}"));
        assert_eq!((names(&other), changed), (vec!["ns/other---green".to_owned()], None));
        assert_eq!(open().keep(policy("green", "{name: other}")).1, None);
        // A new pod has another state directory.
        assert_eq!(KeptLocks::open(None).keep(policy("green", far)).1, None);
    }

    #[test]
    fn bad_file_of_locks_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        for content in ["", "{", "{\"shard\":\"blue\",\"locks\":[\"op\"]}", &"x".repeat(1 << 17)] {
            fs::write(dir.path().join("locks.json"), content).unwrap();
            let (taken, changed) =
                KeptLocks::open(Some(dir.path().to_owned())).keep(policy("blue", "{name: op}"));
            assert_eq!(
                (names(&taken), changed),
                (vec!["ns/op---blue".to_owned()], None),
                "{content}"
            );
        }
    }
}
