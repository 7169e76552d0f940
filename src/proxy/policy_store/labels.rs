//! The pod's own labels, as the kubelet writes them, and the label of its shard, which may come late.
//!
//! Hides from where the labels come. The kubelet's file is up to a minute old, and a pod of a Deployment gets
//! its shard once it exists: a pod without a config watches itself. Enrolment would not tell it: a pod
//! enrols before it has a shard, and a certificate says nothing of one. The first shard stays for as long
//! as the process runs: a pod that runs gets no other lock and no other objects.

use std::{
    collections::BTreeMap,
    fs,
    future::pending,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::PartialObjectMeta,
    runtime::watcher::{Config, watcher},
};
use tokio::time::{Interval, interval};

use ctrlmesh_api::keys;
use ctrlmesh_base::cluster::{OwnAccess, Reflector, Update, WatchError};

/// Interval between reads of the file.
const LOOK: Duration = Duration::from_secs(1);

/// Labels, by their keys.
type PodLabels = BTreeMap<String, String>;

/// The pod of this process.
#[derive(Clone, Debug)]
pub(crate) struct OwnPod {
    /// The file with its labels.
    pub(crate) labels: PathBuf,
    pub(crate) namespace: String,
    /// Its name. Without it a label that comes late is learnt from the file alone.
    pub(crate) name: Option<String>,
}

/// The labels of the pod of this process.
pub(super) struct OwnLabels {
    access: OwnAccess,
    pod: OwnPod,
    looks: Interval,
    of_file: Result<PodLabels, String>,
    /// The pod as the API server has it, while it waits for a config.
    own: Option<Reflector<PartialObjectMeta<Pod>, Option<String>>>,
    /// The child that has the pod's shard.
    shard: Option<String>,
}

impl OwnLabels {
    pub(super) fn new(access: OwnAccess, pod: OwnPod) -> Self {
        let of_file = Err("not read yet".to_owned());
        Self { access, pod, looks: interval(LOOK), of_file, own: None, shard: None }
    }

    /// Waits until the labels are others, or the watch of the pod fails. Dropping it loses nothing.
    pub(super) async fn changed(&mut self) -> Result<(), WatchError> {
        loop {
            let own = async {
                match &mut self.own {
                    Some(own) => own.next().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                _ = self.looks.tick() => {
                    let now = read(&self.pod.labels);
                    if now != self.of_file {
                        self.of_file = now;
                        let of_file = self.of_file.as_ref().ok();
                        let shard = of_file.and_then(|labels| labels.get(keys::SHARD).cloned());
                        self.shard = self.shard.take().or(shard);
                        return Ok(());
                    }
                }
                update = own => match update {
                    Update::Whole { .. } => {
                        let known = self.own.as_ref().and_then(Reflector::known);
                        let shard = known.and_then(|known| known.values().next().cloned().flatten());
                        if self.shard.is_none() && shard.is_some() {
                            self.shard = shard;
                            return Ok(());
                        }
                    }
                    Update::Listing => {}
                    Update::Failed(error) => return Err(error),
                },
            }
        }
    }

    /// The labels. Fails with a message for the administrator.
    pub(super) fn get(&self) -> Result<PodLabels, String> {
        let mut labels = self.of_file.clone()?;
        if let Some(shard) = &self.shard {
            labels.insert(keys::SHARD.to_owned(), shard.clone());
        }
        Ok(labels)
    }

    /// The other shard that the label names already. The pod keeps its own.
    pub(super) fn other_shard(&self) -> Option<String> {
        let named = self.of_file.as_ref().ok()?.get(keys::SHARD)?;
        let own = self.shard.as_ref().filter(|own| *own != named)?;
        Some(format!(
            "the label {} of the pod names {named}, and the pod keeps {own} while it runs: set it back, or \
             delete the pod",
            keys::SHARD
        ))
    }

    /// Has a pod without a config watch itself, and no other.
    pub(super) fn wait_for_shard(&mut self, waits: bool) {
        let (namespace, name) = (&self.pod.namespace, self.pod.name.as_ref());
        let follow = || Some(follow(&self.access, namespace, name?));
        self.own = match (waits && self.shard.is_none(), self.own.take()) {
            (false, _) => None,
            (true, Some(own)) => Some(own),
            (true, None) => follow(),
        };
    }
}

/// The child that the label of a pod names.
fn follow(
    access: &OwnAccess,
    namespace: &str,
    name: &str,
) -> Reflector<PartialObjectMeta<Pod>, Option<String>> {
    let config = Config::default().fields(&format!("metadata.name={name}"));
    let namespace = namespace.to_owned();
    let watch = move |client: Client| {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client, &namespace);
        watcher(api, config.clone())
    };
    Reflector::new(access.clone(), watch, |pod: PartialObjectMeta<Pod>| {
        let meta = pod.metadata;
        let shard = meta.labels.and_then(|labels| labels.get(keys::SHARD).cloned());
        (meta.name.unwrap_or_default(), shard)
    })
}

/// Reads the file. Fails with a message for the administrator.
fn read(path: &Path) -> Result<PodLabels, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&text)
}

/// Parses labels as a downwardAPI volume writes them: one `key="value"` per line, the value quoted
/// as in Go, which for the characters of labels is as in JSON.
fn parse(text: &str) -> Result<PodLabels, String> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let bad = || format!("{line:?} is not KEY=\"VALUE\"");
            let (key, value) = line.split_once('=').ok_or_else(bad)?;
            let value = serde_json::from_str(value).map_err(|_| bad())?;
            Ok((key.to_owned(), value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_as_the_kubelet_writes_them() {
        let labels = parse("a.io/b=\"c\"\nempty=\"\"\n").unwrap();
        assert_eq!(labels["a.io/b"], "c");
        assert_eq!(labels["empty"], "");
        assert!(parse("a").is_err() && parse("a=b").is_err());
    }
}
