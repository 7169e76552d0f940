//! The shards that a root has at a moment, and the pods of its workload.
//!
//! Hides how many shards there are, by which numbers, and which pod is of which. Knows neither lots nor
//! configs. Words: the *share* of a shard is the number of pods that it is to have.

use super::root::{Root, Shard, Shards};
use ctrlmesh_api::TargetKind;

/// The most shards of a root, next to its canary.
pub(crate) const MOST_SHARDS: u32 = 32;

/// A pod of a Deployment, by what counts for its shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPod {
    /// Its name.
    pub name: String,
    /// The hash of its template.
    pub template: String,
    /// The shard that its label says.
    pub shard: Option<Shard>,
    /// Whether it is being deleted, or has ended.
    pub is_going: bool,
    /// The time of its creation, in seconds: the API server says no more.
    pub created: i64,
}

impl Root {
    /// The number of shards next to the canary, if the workload has so many replicas. `None` if it has none, or
    /// their number is not known.
    pub fn size(&self, replicas: Option<u32>) -> Option<u32> {
        if self.size.is_some() {
            return self.size;
        }
        let canary = self.canary.as_ref().map_or(0, |canary| canary.pods);
        let replicas = replicas.filter(|replicas| *replicas > 0)?;
        Some((replicas.saturating_sub(canary) / self.pods_each).clamp(1, self.most()))
    }

    /// The shards, where so many are needed next to the canary. A shard is what has pods: those of a
    /// Deployment have the numbers that its pods have, and one goes once its last pod does.
    pub fn shards(&self, size: u32, with_pods: &Shards, with_child: &Shards) -> Shards {
        let canary = || self.canary.iter().map(|_| Shard::Canary);
        let first = (1..=MOST_SHARDS).map(Shard::Normal);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if self.target.kind == TargetKind::StatefulSet {
            // The ordinals of its pods tell the shards: those of none of our making are beyond.
            let stay = with_pods.intersection(with_child).copied().filter(|_| self.size.is_none());
            return canary().chain(first.take(size)).chain(stay.filter(is_normal)).collect();
        }
        let mut shards: Shards = with_pods.iter().copied().filter(is_normal).collect();
        for other in with_child.iter().copied().filter(is_normal).chain(first) {
            if shards.len() < size {
                shards.insert(other);
            }
        }
        shards.extend(canary());
        shards
    }

    /// The shards that there may be, whatever pods there are.
    pub fn possible_shards(&self) -> Shards {
        let most = match self.target.kind {
            TargetKind::StatefulSet => self.size.unwrap_or(MOST_SHARDS),
            TargetKind::Deployment => MOST_SHARDS,
        };
        let canary = self.canary.iter().map(|_| Shard::Canary);
        canary.chain((1..=most).map(Shard::Normal)).collect()
    }

    /// The number of pods that a shard is to have.
    fn share(&self, shard: Shard) -> u32 {
        match shard {
            Shard::Canary => self.canary.as_ref().map_or(0, |canary| canary.pods),
            Shard::Normal(_) => self.pods_each,
        }
    }

    /// The shards of pods of a Deployment that have none, each by its place among them. They are as
    /// [`Self::shards`] says.
    pub fn place(&self, shards: &Shards, pods: &[TargetPod]) -> Vec<(usize, Shard)> {
        let mut placed: Vec<(&TargetPod, Shard)> =
            pods.iter().filter_map(|pod| Some((pod, pod.shard?))).collect();
        placed.retain(|(pod, shard)| !pod.is_going && shards.contains(shard));
        let mut new: Vec<(usize, &TargetPod)> = pods.iter().enumerate().collect();
        new.retain(|(_, pod)| pod.shard.is_none() && !pod.is_going);
        new.sort_by_key(|(_, pod)| (pod.created, &pod.name));
        let mut chosen = Vec::new();
        for (at, pod) in new {
            let is_same = |other: &TargetPod| other.template == pod.template;
            let rank = |shard: &Shard| {
                let of = || placed.iter().filter(|(_, is)| is == shard);
                let same = of().filter(|(other, _)| is_same(other)).count();
                (self.lack(*shard, same), self.lack(*shard, of().count()), *shard)
            };
            let Some(shard) = shards.iter().copied().max_by_key(rank) else { return Vec::new() };
            placed.push((pod, shard));
            chosen.push((at, shard));
        }
        chosen
    }

    /// The part of its share that a shard lacks with so many pods, in millionths. Negative if it has more.
    fn lack(&self, shard: Shard, pods: usize) -> i64 {
        let (share, pods) = (i64::from(self.share(shard)), i64::try_from(pods).unwrap_or(i64::MAX));
        share.saturating_sub(pods).saturating_mul(1_000_000) / share.max(1)
    }

    /// The index of the youngest pod of the fullest shard. `None` unless that shard has more than its share
    /// while another shard has no pod.
    pub fn surplus(&self, shards: &Shards, pods: &[TargetPod]) -> Option<usize> {
        let stays = || pods.iter().enumerate().filter(|(_, pod)| !pod.is_going);
        // One that has no label yet may be of any.
        if stays().any(|(_, pod)| pod.shard.is_none()) {
            return None;
        }
        let count = |shard: Shard| stays().filter(|(_, pod)| pod.shard == Some(shard)).count();
        let is_one_bare = shards.iter().any(|shard| count(*shard) == 0);
        let full = shards.iter().copied().min_by_key(|shard| self.lack(*shard, count(*shard)))?;
        let is_too_full = self.lack(full, count(full)) < 0;
        let of_full = stays().filter(|(_, pod)| pod.shard == Some(full));
        let youngest = of_full.max_by_key(|(_, pod)| (pod.created, &pod.name));
        youngest.filter(|_| is_too_full && is_one_bare).map(|(at, _)| at)
    }

    /// Whether its pods are those of a Deployment of this name.
    pub fn is_of_deployment(&self, name: &str) -> bool {
        self.target.kind == TargetKind::Deployment && self.target.name == name
    }

    /// The most shards next to the canary.
    fn most(&self) -> u32 {
        self.most_shards.min(MOST_SHARDS)
    }
}

impl Shard {
    /// The cost of the deletion of its pods: of those that are ready, a ReplicaSet deletes the cheapest first.
    /// So the pods that go are those of the highest number, whose successor is the first to come.
    pub fn deletion_cost(self) -> i32 {
        match self {
            Self::Canary => 0,
            Self::Normal(number) => i32::try_from(number).map_or(i32::MIN, |number| -number),
        }
    }
}

fn is_normal(shard: &Shard) -> bool {
    matches!(shard, Shard::Normal(_))
}

#[cfg(test)]
mod tests;
