//! Admission of pods, and of ShardingConfigs: a function of the review, the [`Settings`] and a snapshot
//! of the ShardingConfigs and of the namespaces only.
//!
//! An AdmissionReview (admission.k8s.io/v1) is answered by the known facts already: nothing is called or
//! kept, so a dry run differs in nothing, and a second call is answered as the first
//! (`reinvocationPolicy: IfNeeded`) unless a config has changed in between. A pod that no one config
//! selects is injected all the same, without the reviews of a webhook server. The objects that pods
//! need next to them are made elsewhere.

mod running;
mod siblings;
mod target;
mod wire;

use serde_json::Value;

use self::target::take_label_off;
use self::wire::{Patch, Response, Review};
pub use self::{
    running::{PodMeta, RUNS, RunningPod},
    siblings::{Config, Found, review_config},
    wire::BadReview,
};
use ctrlmesh_inject::{Injected, NotInjected, Settings, inject};

use super::configs::Configs;

/// The answer to a review.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The AdmissionReview to send, as JSON.
    pub body: Vec<u8>,
    /// The pod, for people: namespace, and name or `generateName`.
    pub pod: String,
    /// The verdict.
    pub verdict: Verdict,
}

/// The decision about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pod is created as it is.
    Unchanged,
    /// The pod becomes part of the mesh.
    Injected,
    /// The pod is not created.
    Refused(NotInjected),
}

impl Verdict {
    /// A word for metrics and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unchanged => "Unchanged",
            Self::Injected => "Injected",
            Self::Refused(reason) => reason.reason(),
        }
    }
}

/// Answers a review of a pod that is to be created. Fails with [`BadReview`] if the body is none.
pub fn review(body: &[u8], settings: &Settings, configs: &Configs) -> Result<Answer, BadReview> {
    let Review { uid, namespace, object: mut pod, .. } = Review::parse(body, &wire::PODS)?;
    let name = ["/metadata/name", "/metadata/generateName"]
        .iter()
        .find_map(|at| pod.pointer(at).and_then(Value::as_str))
        .unwrap_or_default();
    let named = format!("{namespace}/{name}");
    let config = configs.of_pod(&namespace, &pod);
    let injected = inject(&mut pod, settings, config);
    let injected = injected.and_then(|done| Ok((done, take_label_off(&mut pod)?)));
    let (response, verdict) = match injected {
        Ok((Injected::NotAsked, _)) => (Response::allowed(uid), Verdict::Unchanged),
        Ok((Injected::Done { mut notes, .. }, taken)) => {
            let is_other = taken.is_some();
            notes.extend(taken);
            (Response::patched(uid, &Patch::of(&mut pod, is_other), notes), Verdict::Injected)
        }
        Err(reason) => (Response::refused(uid, &reason.to_string()), Verdict::Refused(reason)),
    };
    Ok(Answer { body: response.into_body(), pod: named, verdict })
}
