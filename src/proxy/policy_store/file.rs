//! The policy in a file of several YAML documents.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use super::{active::PolicyStore, namespaces::Resolver};
use ctrlmesh_base::cluster::{OwnAccess, chain};
use ctrlmesh_policy as policy;
use ctrlmesh_policy::{BadDocument, Checked, ShardingDraft};

/// Bytes of a policy file at most: people or tools write it, and a larger one is a mistake.
const MAX_BYTES: u64 = 1 << 20;
/// Interval between reads of the file. A mounted ConfigMap changes by a swap of links, which no
/// file-change notice reports for the file itself.
const LOOK: Duration = Duration::from_millis(500);

/// A file, and the name of one document in it.
#[derive(Clone, Debug)]
pub(crate) struct PolicyFile {
    pub(crate) path: PathBuf,
    pub(crate) shard: String,
    pub(crate) namespace: Option<String>,
}

/// The reason why the file gives no policy.
#[derive(Debug, thiserror::Error)]
#[error("--policy {}", .path.display())]
pub(crate) struct BadPolicyFile {
    path: PathBuf,
    #[source]
    what: FileFault,
}

/// The fault of a policy file.
#[derive(Debug, thiserror::Error)]
enum FileFault {
    #[error("cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("is larger than 1 MiB")]
    TooLarge,
    #[error(transparent)]
    Document(#[from] BadDocument),
}

impl PolicyFile {
    pub(crate) fn read(&self) -> Result<ShardingDraft, BadPolicyFile> {
        let read = self.bytes().and_then(|bytes| self.parse(&bytes));
        read.map(|(draft, _)| draft).map_err(|what| self.bad(what))
    }

    /// Puts every change of the file in force.
    pub(crate) async fn follow(self, policy_store: Arc<PolicyStore>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        let mut resolver = Resolver::new(Arc::clone(&policy_store), OwnAccess::Environment, false);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = resolver.keep_up() => continue,
            }
            let now = self.bytes();
            if let (Ok(now), Some(last)) = (&now, &last)
                && now == last
            {
                continue;
            }
            last = now.as_ref().ok().cloned();
            match now.and_then(|bytes| self.parse(&bytes)) {
                Ok((draft, configs)) => resolver.take(draft, &configs),
                Err(what) => policy_store.reject(chain(&self.bad(what))),
            }
        }
    }

    fn bad(&self, what: FileFault) -> BadPolicyFile {
        BadPolicyFile { path: self.path.clone(), what }
    }

    fn bytes(&self) -> Result<Vec<u8>, FileFault> {
        if fs::metadata(&self.path).map_err(FileFault::Unreadable)?.len() > MAX_BYTES {
            return Err(FileFault::TooLarge);
        }
        fs::read(&self.path).map_err(FileFault::Unreadable)
    }

    /// The draft of the shard, and all configs next to it.
    fn parse(&self, bytes: &[u8]) -> Result<(ShardingDraft, Vec<Checked>), FileFault> {
        let namespace = self.namespace.as_deref();
        let draft = policy::from_documents(bytes, &self.shard, namespace)?;
        Ok((draft, policy::all_of(bytes, &self.shard, namespace)?))
    }
}
