//! The Lease of a pod: the object in which a pod says what it may write.
//!
//! Hides the names of labels and annotations. Knows neither what a claim means nor when it is
//! written.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube_core::ObjectMeta;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Except, Resources, keys::OURS_LABEL};

/// Label of the Lease of a pod: its ring, or a digest of a name that is no label value.
pub const RING: &str = "ctrlmesh.kusionstack.io/ring";
/// Annotation: the name of the ring.
const RING_NAME: &str = "ctrlmesh.kusionstack.io/ring-name";
/// Annotation: the config of the pod's shard.
const SHARD: &str = "ctrlmesh.kusionstack.io/shard";
/// Annotation: the config's uid.
const CONFIG_UID: &str = "ctrlmesh.kusionstack.io/config-uid";
/// Annotation: the number of the config's spec.
const GENERATION: &str = "ctrlmesh.kusionstack.io/generation";
/// Annotation: the claim.
const CLAIM: &str = "ctrlmesh.kusionstack.io/claim";
/// Annotation: the time since when this is claimed.
const CLAIMED: &str = "ctrlmesh.kusionstack.io/claimed";
/// Annotation: the number of requests without a known end.
const UNDER_WAY: &str = "ctrlmesh.kusionstack.io/under-way";
/// Annotation: the format that the pod speaks.
const SPEAKS: &str = "ctrlmesh.kusionstack.io/speaks";
/// Annotation: the elections of the pod's controller, as JSON.
const ELECTIONS: &str = "ctrlmesh.kusionstack.io/elections";
/// Annotation: the foreign writes of the pod's controller, as JSON.
const FOREIGN_WRITES: &str = "ctrlmesh.kusionstack.io/foreign-writes";
/// Annotation: the related resources of the pod's controller that no limit names, as JSON.
const RELATED_RESOURCES: &str = "ctrlmesh.kusionstack.io/related-resources";
/// Beginning of the name of the Lease of a pod; its uid follows.
const PREFIX: &str = "ctrlmesh-";
/// Most bytes of a label's value.
const LABEL_VALUE: usize = 63;

/// The Lease of a pod, as it is written. A text that it does not have is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLease {
    /// The uid of the pod.
    pub pod_uid: String,
    /// The name of the pod.
    pub holder: String,
    /// The ring.
    pub ring: String,
    /// The config of the pod's shard. `None` if it does not say.
    pub shard: Option<String>,
    /// The config's uid.
    pub config_uid: String,
    /// The number of the config's spec.
    pub generation: i64,
    /// The claim. `None` if it does not say.
    pub claim: Option<String>,
    /// The time since when the pod's present process claims this. `None` if it does not say.
    pub claimed: Option<Timestamp>,
    /// The number of requests without a known end.
    pub under_way: usize,
    /// The elections of the pod's controller. `None` if it does not say.
    pub elections: Option<Elections>,
    /// The foreign writes of the pod's controller. `None` if it does not say.
    pub foreign_writes: Option<ForeignWrites>,
    /// The related resources of the pod's controller. `None` if it does not say.
    pub related: Option<RelatedResources>,
    /// The format that the pod speaks.
    pub speaks: u32,
    /// The time of the last renewal.
    pub renewed: Timestamp,
}

/// The elections of a pod's controller: the locks as `namespace/name`, by the names of the config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Elections {
    /// The locks that it has written within the last minute.
    pub held: Vec<String>,
    /// The locks that its account may not write.
    pub forbidden: Vec<String>,
    /// The objects that it renews as locks, and that the config does not name, such as
    /// `leases kube-system/operator`.
    pub unnamed: Vec<String>,
    /// Whether the locks of its config have changed since it started.
    pub waits_for_restart: bool,
}

/// The writes of a pod's controller into namespaces of other shards within the last ten minutes. They are
/// given as the entries of `spec.fence.except` that let them pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForeignWrites {
    /// Those that were refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Except>,
    /// Those that have passed, and that the mode Enforce would refuse.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warned: Vec<Except>,
    /// One of them, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub example: String,
}

/// Resources that the pod's controller watches, that no limit names, and that belong to limited objects: their
/// objects belong to some, or the controller writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RelatedResources {
    /// The resources, in their order.
    pub resources: Vec<RelatedResource>,
}

/// A related resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RelatedResource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural name.
    pub resource: String,
    /// The reason for people: `secrets a/x belongs to Kibana y`.
    pub because: String,
}

impl RelatedResources {
    /// The problem for people. `None` if there are no such resources.
    pub fn problem(&self) -> Option<String> {
        let first = self.resources.first()?;
        let mut by_group: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for one in &self.resources {
            by_group.entry(&one.group).or_default().push(one.resource.clone());
        }
        let entries = by_group.into_iter().map(|(group, resources)| {
            Resources { api_groups: vec![group.to_owned()], resources }.to_string()
        });
        let names = self.resources.iter().map(|one| match &*one.group {
            "" => one.resource.clone(),
            group => format!("{}.{group}", one.resource),
        });
        Some(format!(
            "the controller watches {}, which no limit names: each shard sees those of all shards, and may take \
             them for leftovers, for example: {}; add to relateResources of a limit: {}, or give a root \
             no resourceSelector",
            names.collect::<Vec<_>>().join(", "),
            first.because,
            entries.collect::<Vec<_>>().join(", ")
        ))
    }
}

impl ForeignWrites {
    /// The problem, in one word and for people. `None` if there are no such writes.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let list = |entries: &[Except]| {
            let entries: Vec<_> = entries.iter().map(ToString::to_string).collect();
            format!("[{}]", entries.join(", "))
        };
        let example = &self.example;
        if !self.refused.is_empty() {
            let message = format!(
                "writes into namespaces of other shards were refused, for example: {example}; name the \
                 resource in a limit, or let them pass by spec.fence.except: {}",
                list(&self.refused)
            );
            return Some(("NotInShard", message));
        }
        let message = || {
            format!(
                "writes into namespaces of other shards have passed, since spec.fence.mode is Warn, for \
                 example: {example}; name the resource in a limit, or set the mode to Enforce, with \
                 spec.fence.except: {} if they are meant",
                list(&self.warned)
            )
        };
        (!self.warned.is_empty()).then(|| ("Warned", message()))
    }
}

impl Elections {
    /// The reason why the shard may have no leader, in one word and for people.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if !self.forbidden.is_empty() {
            let message = format!(
                "the account of the pod may not write the lock {}: `ctrlmesh doctor` says which right it \
                 lacks (D33, D35)",
                self.forbidden.join(", ")
            );
            return Some(("Forbidden", message));
        }
        if !self.unnamed.is_empty() {
            let message = format!(
                "the controller renews {}, which the ShardingConfig does not name, so one pod of all \
                 shards has it: if it is a lock, name it in spec.controller.locks",
                self.unnamed.join(", ")
            );
            return Some(("NotNamed", message));
        }
        let message = "the locks of the ShardingConfig have changed since the pod started: restart the \
                       pods of the shard";
        self.waits_for_restart.then(|| ("Changed", message.to_owned()))
    }
}

impl PodLease {
    /// The name of the Lease of the pod with this uid.
    pub fn name_of(pod_uid: &str) -> String {
        format!("{PREFIX}{pod_uid}")
    }

    /// The selector of the Leases of a ring.
    pub fn selector_of(ring: &str) -> String {
        format!("{RING}={}", label_value(ring))
    }

    /// The uid of the pod whose Lease has this name. `None` if it is no such Lease.
    pub fn pod_of(name: &str) -> Option<&str> {
        name.strip_prefix(PREFIX)
    }

    /// Reads a Lease. `None` if it is none of a pod.
    pub fn read(lease: &Lease) -> Option<Self> {
        let ObjectMeta { name, labels, annotations, .. } = &lease.metadata;
        let label = labels.as_ref()?.get(RING)?;
        let pod_uid = Self::pod_of(name.as_deref()?)?.to_owned();
        let none = BTreeMap::new();
        let annotations = annotations.as_ref().unwrap_or(&none);
        let text = |key| annotations.get(key).cloned();
        let spec = lease.spec.clone().unwrap_or_default();
        // Who writes the one only counts for what the other says.
        let ring = text(RING_NAME).filter(|ring| label_value(ring) == *label);
        Some(Self {
            pod_uid,
            holder: spec.holder_identity.unwrap_or_default(),
            ring: ring.unwrap_or_else(|| label.clone()),
            shard: text(SHARD),
            config_uid: text(CONFIG_UID).unwrap_or_default(),
            generation: number(text(GENERATION)),
            claim: text(CLAIM),
            claimed: text(CLAIMED).and_then(|time| time.parse().ok()),
            under_way: number(text(UNDER_WAY)),
            elections: text(ELECTIONS).and_then(|text| serde_json::from_str(&text).ok()),
            foreign_writes: text(FOREIGN_WRITES).and_then(|text| serde_json::from_str(&text).ok()),
            related: text(RELATED_RESOURCES).and_then(|text| serde_json::from_str(&text).ok()),
            speaks: number(text(SPEAKS)),
            renewed: spec.renew_time.map(|MicroTime(at)| at).unwrap_or_default(),
        })
    }

    /// The object, in a version that it replaces. `None` if there is no such object yet.
    pub fn object(&self, namespace: &str, replaces: Option<&str>) -> Lease {
        let (managed_by, us) = OURS_LABEL;
        let labels = [(RING, label_value(&self.ring)), (managed_by, us.to_owned())];
        let annotations = [
            (RING_NAME, Some(self.ring.clone())),
            (SHARD, self.shard.clone()),
            (CONFIG_UID, Some(self.config_uid.clone())),
            (GENERATION, Some(self.generation.to_string())),
            (CLAIM, self.claim.clone()),
            (CLAIMED, self.claimed.map(|time| time.to_string())),
            (UNDER_WAY, Some(self.under_way.to_string())),
            (ELECTIONS, written(self.elections.as_ref())),
            (FOREIGN_WRITES, written(self.foreign_writes.as_ref())),
            (RELATED_RESOURCES, written(self.related.as_ref())),
            (SPEAKS, Some(self.speaks.to_string())),
        ];
        let annotations = annotations.into_iter().filter_map(|(key, value)| Some((key, value?)));
        Lease {
            metadata: ObjectMeta {
                name: Some(Self::name_of(&self.pod_uid)),
                namespace: Some(namespace.to_owned()),
                resource_version: replaces.map(str::to_owned),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
                annotations: Some(
                    annotations.map(|(key, value)| (key.to_owned(), value)).collect(),
                ),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.clone()),
                renew_time: Some(MicroTime(self.renewed)),
                ..LeaseSpec::default()
            }),
        }
    }
}

fn written<T: Serialize>(said: Option<&T>) -> Option<String> {
    said.and_then(|said| serde_json::to_string(said).ok())
}

fn number<N: std::str::FromStr + Default>(text: Option<String>) -> N {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The value of the label that stands for a ring.
fn label_value(ring: &str) -> String {
    let is_value = ring.len() <= LABEL_VALUE
        && ring.starts_with(|c: char| c.is_ascii_alphanumeric())
        && ring.ends_with(|c: char| c.is_ascii_alphanumeric())
        && ring.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if is_value {
        return ring.to_owned();
    }
    let digest = Sha256::digest(ring);
    let digest: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("sha256-{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ring: &str) -> PodLease {
        PodLease {
            pod_uid: "3f9c".into(),
            holder: "op-0".into(),
            ring: ring.into(),
            shard: Some("blue".into()),
            config_uid: "c-1".into(),
            generation: 3,
            claim: Some("{}".into()),
            claimed: Some(Timestamp::from_second(1_699_999_990).unwrap()),
            under_way: 2,
            elections: Some(Elections { held: vec!["ns/op".into()], ..Elections::default() }),
            foreign_writes: Some(ForeignWrites {
                example: "one".into(),
                ..ForeignWrites::default()
            }),
            related: Some(RelatedResources { resources: vec![related("", "secrets")] }),
            speaks: 1,
            renewed: Timestamp::from_second(1_700_000_000).unwrap(),
        }
    }

    fn related(group: &str, resource: &str) -> RelatedResource {
        let because = format!("{resource} a/x belongs to Kibana y");
        RelatedResource { group: group.into(), resource: resource.into(), because }
    }

    #[test]
    fn related_resources_are_told_with_the_entries_that_limit_them() {
        let of = |resources: &[(&str, &str)]| {
            let resources = resources.iter().map(|(group, name)| related(group, name)).collect();
            RelatedResources { resources }.problem()
        };
        assert_eq!(of(&[]), None);
        let told = of(&[("", "secrets"), ("", "services"), ("apps", "deployments")]).unwrap();
        assert_eq!(
            told,
            "the controller watches secrets, services, deployments.apps, which no limit names: each shard sees \
             those of all shards, and may take them for leftovers, for example: secrets a/x belongs to Kibana y; \
             add to relateResources of a limit: {apiGroups: [\"\"], resources: [secrets, services]}, \
             {apiGroups: [apps], resources: [deployments]}, or give a root no resourceSelector"
        );
    }

    #[test]
    fn a_lease_reads_as_it_was_written_whatever_the_ring_is_called() {
        let long = "long.".repeat(40);
        for ring in ["op", "op.example.com", "a_B-9", "-op", "", &long] {
            let object = lease(ring).object("ns", Some("7"));
            assert_eq!(PodLease::read(&object).unwrap(), lease(ring), "{ring}");
            let label = &object.metadata.labels.as_ref().unwrap()[RING];
            assert_eq!(PodLease::selector_of(ring), format!("{RING}={label}"));
            assert!((1..=LABEL_VALUE).contains(&label.len()), "{label}");
            assert_eq!(object.metadata.resource_version.as_deref(), Some("7"));
            assert_eq!(object.metadata.owner_references, None);
        }
        let labels = ["long.a", "long.b"].map(|ring| label_value(&ring.repeat(20)));
        assert_ne!(labels[0], labels[1]);
    }

    #[test]
    fn a_lease_that_says_less_is_read_as_far_as_it_goes() {
        let bare = |name: &str, label: Option<&str>| {
            let labels = label.map(|ring| [(RING.to_owned(), ring.to_owned())].into());
            let metadata = ObjectMeta { name: Some(name.into()), labels, ..Default::default() };
            PodLease::read(&Lease { metadata, spec: None })
        };
        let read = bare("ctrlmesh-3f9c", Some("op")).unwrap();
        assert_eq!((&*read.pod_uid, &*read.ring), ("3f9c", "op"));
        assert_eq!((read.shard, read.claim, read.speaks), (None, None, 0));
        assert_eq!(read.claimed, None);
        assert_eq!(bare("ctrlmesh-3f9c", None), None);
        assert_eq!(bare("op", Some("op")), None);
        // A name that is not the label's does not lead into another ring.
        let mut object = lease("other").object("ns", None);
        object.metadata.labels = Some([(RING.to_owned(), "op".to_owned())].into());
        assert_eq!(PodLease::read(&object).unwrap().ring, "op");
    }
}
