//! Injected pods that wait for a ShardingConfig, or whose reviews do not come to the proxy as theirs
//! says, and configs whose ring is not as it should be: an Event says so to whoever describes the
//! object.
//!
//! Hides when an object has waited for long enough to be reported, and how often. Does not know how
//! configs are chosen.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use tokio::time::Instant;

use super::{
    found::{ChosenPod, PodFacts, namespace},
    subject::{About, NotWritten, Subject},
};
use crate::configs::name;
use ctrlmesh_api::ShardingConfig;
use ctrlmesh_inject::{CaptureMode, note_on_reviews};
use ctrlmesh_policy::{NotChosen, ShardingDraft};

/// The time that a pod may wait unreported: `kubectl apply -f DIRECTORY` keeps no order, so its
/// config may come seconds after it.
const GRACE: Duration = Duration::from_secs(5);
/// The age at which an Event is written again: API servers delete Events after an hour unless configured
/// otherwise (`--event-ttl`).
const AGAIN: Duration = Duration::from_secs(30 * 60);
/// The length of a message, in bytes, that each version of the Events API takes
/// (`noteLengthLimit` of the API server's validation).
const MESSAGE: usize = 1024;

const COMPONENT: &str = "ctrlmesh-manager";

/// The objects that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<(About, String), Wait>);

#[derive(Debug)]
struct Wait {
    uid: String,
    since: Instant,
    /// The message of the Event, and when it was written.
    reported: Option<(String, Instant)>,
}

/// An object that lacks something.
pub(super) struct Lacking<'a> {
    pub(super) about: About,
    pub(super) key: &'a str,
    pub(super) uid: &'a str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The thing that a pod lacks.
#[derive(Debug)]
enum Lack {
    /// One config, by which its proxy would have a policy.
    Config(NotChosen),
    /// Rules that lead reviews to its proxy, as its config asks; with a note that says so.
    Rules(String),
}

/// An Event to write.
pub(super) struct Report(Box<Event>);

impl Waiting {
    /// The Events that are due. Forgets objects that no longer wait.
    pub(super) fn due<'a>(
        &mut self,
        lacking: impl Iterator<Item = Lacking<'a>>,
        now: Instant,
        time: Timestamp,
        replica: &str,
    ) -> Vec<(Subject, Report)> {
        let mut before = std::mem::take(&mut self.0);
        let mut due = Vec::new();
        for lacking in lacking {
            let at = (lacking.about, lacking.key.to_owned());
            let wait = before.remove(&at).filter(|wait| wait.uid == lacking.uid);
            let new = || Wait { uid: lacking.uid.to_owned(), since: now, reported: None };
            let wait = wait.unwrap_or_else(new);
            if wait.since + GRACE <= now && !wait.has_reported(&lacking.message, now) {
                let report = Report::new(lacking, time, replica);
                due.push((Subject::Event(at.0, at.1.clone()), report));
            }
            self.0.insert(at, wait);
        }
        due
    }

    /// Notes that an Event was written.
    pub(super) fn reported(&mut self, (about, key): (About, &str), message: String, now: Instant) {
        if let Some(wait) = self.0.get_mut(&(about, key.to_owned())) {
            wait.reported = Some((message, now));
        }
    }

    /// The time of the next round: when a pod has waited for long enough, and no later than
    /// `latest`.
    pub(super) fn next(&self, latest: Instant) -> Instant {
        let unreported = self.0.values().filter(|wait| wait.reported.is_none());
        let ends = unreported.map(|wait| wait.since + GRACE);
        ends.filter(|end| *end > Instant::now()).chain([latest]).min().unwrap_or(latest)
    }
}

impl Wait {
    fn has_reported(&self, message: &str, now: Instant) -> bool {
        self.reported
            .as_ref()
            .is_some_and(|(reported, at)| reported == message && now < *at + AGAIN)
    }
}

impl<'a> Lacking<'a> {
    /// The pod, if it lacks something.
    pub(super) fn of(chosen: &ChosenPod<'a>) -> Option<Self> {
        let ChosenPod { key, pod, config } = chosen;
        let lack = Lack::of(pod, config)?;
        let (reason, message) = (lack.reason(), lack.message());
        Some(Self { about: About::Pod, key, uid: &pod.uid, reason, message })
    }
}

impl Lack {
    /// The thing that a pod with this config lacks. `None` if it lacks nothing.
    fn of(pod: &PodFacts, config: &Result<&ShardingDraft, NotChosen>) -> Option<Self> {
        let mode = if pod.is_in_env_mode { CaptureMode::Env } else { CaptureMode::Iptables };
        match config {
            Ok(config) => note_on_reviews(config, mode).map(Self::Rules),
            Err(why) => Some(Self::Config(why.clone())),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Config(_) => "NoShardingConfig",
            Self::Rules(_) => "WebhookNotRedirected",
        }
    }

    /// The fault and its remedy, cut to the length of a message.
    fn message(&self) -> String {
        let (mut fault, remedy) = match self {
            Self::Config(why) => (format!("the proxy waits for a policy: {why}"), why.remedy()),
            Self::Rules(note) => {
                (note.clone(), "have the pod injected with redirect rules, or remove spec.webhook")
            }
        };
        fault.truncate(fault.floor_char_boundary(MESSAGE - "; ".len() - remedy.len()));
        format!("{fault}; {remedy}")
    }
}

impl Report {
    /// The Event: its name is of the object's uid, so that another leader writes the same one.
    pub(super) fn new(lacking: Lacking<'_>, time: Timestamp, replica: &str) -> Self {
        let Lacking { about, key, uid, reason, message } = lacking;
        let (api_version, kind, suffix) = match about {
            About::Pod => ("v1".into(), "Pod".into(), String::new()),
            About::Config(of) => (
                ShardingConfig::api_version(&()),
                ShardingConfig::kind(&()),
                format!(".{}", of.to_ascii_lowercase()),
            ),
        };
        let namespace = namespace(key);
        let object = ObjectReference {
            api_version: Some(api_version.into_owned()),
            kind: Some(kind.into_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name(key).to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let meta = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(format!("ctrlmesh.{uid}{suffix}")),
            ..ObjectMeta::default()
        };
        Self(Box::new(Event {
            metadata: meta,
            involved_object: object,
            type_: Some("Warning".to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_timestamp: Some(Time(time)),
            count: Some(1),
            source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(replica.to_owned()),
            ..Event::default()
        }))
    }

    pub(super) fn message(&self) -> String {
        self.0.message.clone().unwrap_or_default()
    }

    pub(super) async fn send(self, client: &Client) -> Result<(), NotWritten> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let [namespace, name] = [&self.0.metadata.namespace, &self.0.metadata.name].map(text);
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let params = PatchParams::apply(COMPONENT).force();
        api.patch(&name, &params, &Patch::Apply(&self.0)).await.map(drop)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use ctrlmesh_policy::{Checked, Kind, choose, draft};

    fn pod(uid: &str) -> PodFacts {
        let pod = json!({
            "metadata": {
                "uid": uid,
                "labels": { "shard": "blue" },
                "annotations": { "ctrlmesh.kusionstack.io/injected": "{}" },
            },
        });
        PodFacts::of(serde_json::from_value(pod).unwrap())
    }

    fn configs(names: &[&str], operator: &str) -> Vec<Checked> {
        let config = |name: &&str| {
            let expression = json!({ "key": "shard", "operator": operator });
            let object = json!({
                "metadata": { "namespace": "ns", "name": name },
                "spec": { "selector": { "matchExpressions": [expression] } },
            });
            draft(Kind::ShardingConfig, &serde_json::from_value(object).unwrap())
        };
        names.iter().map(config).collect()
    }

    fn lacking<'a>(pod: &'a PodFacts, configs: &'a [Checked]) -> Option<Lacking<'a>> {
        let config = choose(configs, pod.labels.as_ref()?, "ns", None);
        Lacking::of(&ChosenPod { key: "ns/one", pod, config })
    }

    /// The message of the one Event that is due.
    fn due(waiting: &mut Waiting, pod: &PodFacts, configs: &[Checked]) -> Option<String> {
        let lacking = lacking(pod, configs).into_iter();
        let mut due = waiting.due(lacking, Instant::now(), Timestamp::UNIX_EPOCH, "manager-0");
        assert!(due.len() <= 1);
        due.pop().map(|(subject, report)| {
            assert_eq!(subject, Subject::Event(About::Pod, "ns/one".to_owned()));
            report.message()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn i12_a_pod_is_reported_when_it_has_waited_for_long_enough_and_not_again() {
        let mut waiting = Waiting::default();
        let pod = pod("a");
        assert_eq!(due(&mut waiting, &pod, &[]), None, "its config may be on its way");
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(waiting.next(later), Instant::now() + GRACE);
        tokio::time::advance(GRACE).await;
        let message = due(&mut waiting, &pod, &[]).expect("an Event");
        assert_eq!(
            message,
            "the proxy waits for a policy: no ShardingConfig in namespace ns selects the pod's \
             labels; write a ShardingConfig whose selector matches the pods' labels, or change \
             the labels"
        );
        // It was not written, so it is due.
        assert_eq!(due(&mut waiting, &pod, &[]).as_ref(), Some(&message));
        waiting.reported((About::Pod, "ns/one"), message.clone(), Instant::now());
        assert_eq!(due(&mut waiting, &pod, &[]), None);
        assert_eq!(waiting.next(later), later, "nobody is to be reported");
        tokio::time::advance(AGAIN).await;
        assert_eq!(due(&mut waiting, &pod, &[]), Some(message), "the API server forgets Events");
    }

    #[tokio::test(start_paused = true)]
    async fn i12_another_cause_is_reported_and_a_config_ends_the_wait() {
        let mut waiting = Waiting::default();
        let waits = pod("a");
        due(&mut waiting, &waits, &[]);
        tokio::time::advance(GRACE).await;
        let message = due(&mut waiting, &waits, &[]).unwrap();
        waiting.reported((About::Pod, "ns/one"), message, Instant::now());
        let two = configs(&["blue", "green"], "Exists");
        let message = due(&mut waiting, &waits, &two).expect("another cause");
        assert!(message.contains("selected by ShardingConfig ns/blue, "), "{message}");
        assert!(message.ends_with("one of these configs alone selects the pods"), "{message}");
        let bad = due(&mut waiting, &waits, &configs(&["blue"], "Exist")).expect("another cause");
        assert!(bad.contains("invalid: ShardingConfig ns/blue: spec: unknown"), "{bad}");

        assert_eq!(due(&mut waiting, &waits, &configs(&["blue"], "Exists")), None);
        assert!(waiting.0.is_empty(), "it does not wait, and is forgotten");
        assert_eq!(due(&mut waiting, &waits, &[]), None, "it begins to wait");
        tokio::time::advance(GRACE).await;
        assert_eq!(due(&mut waiting, &pod("b"), &[]), None, "another pod of that name");
    }

    #[test]
    fn i13_a_pod_in_env_mode_lacks_the_rules_that_its_webhook_asks_for() {
        let of = |mode: &str, webhook: serde_json::Value| {
            let pod = json!({
                "metadata": {
                    "labels": { "shard": "blue" },
                    "annotations": { "ctrlmesh.kusionstack.io/injected": mode },
                },
            });
            let pod = PodFacts::of(serde_json::from_value(pod).unwrap());
            let object = json!({
                "metadata": { "namespace": "ns", "name": "blue" },
                "spec": {
                    "selector": { "matchLabels": { "shard": "blue" } },
                    "webhook": webhook,
                },
            });
            let config = draft(Kind::ShardingConfig, &serde_json::from_value(object).unwrap());
            assert!(config.is_ok(), "{config:?}");
            let configs = [config];
            Lack::of(&pod, &choose(&configs, pod.labels.as_ref().unwrap(), "ns", None))
        };
        let webhook = || json!({ "certDir": "/certs", "port": 9443 });
        let lack = of("env", webhook()).unwrap();
        assert_eq!(lack.reason(), "WebhookNotRedirected");
        assert_eq!(
            lack.message(),
            "ShardingConfig ns/blue: spec.webhook has no effect on the pod: nothing is redirected in \
             env mode, so its reviews are answered by the pod that gets them; have the pod injected \
             with redirect rules, or remove spec.webhook"
        );
        assert!(of("iptables", webhook()).is_none());
        assert!(of("env", json!(null)).is_none());
    }

    #[test]
    fn i12_nobody_waits_for_a_pod_that_is_not_injected_has_ended_or_goes() {
        let waits = |change: fn(&mut serde_json::Value)| {
            let mut pod = json!({
                "metadata": { "annotations": { "ctrlmesh.kusionstack.io/injected": "{}" } },
            });
            change(&mut pod);
            PodFacts::of(serde_json::from_value(pod).unwrap()).labels.is_some()
        };
        assert!(waits(|_| {}));
        assert!(!waits(|pod| pod["metadata"]["annotations"] = json!({})));
        assert!(!waits(|pod| pod["status"]["phase"] = json!("Failed")));
        assert!(!waits(|pod| pod["status"]["phase"] = json!("Succeeded")));
        assert!(!waits(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")));
    }

    #[test]
    fn a_message_is_cut_to_the_length_that_the_api_takes_and_keeps_its_remedy() {
        let names: Vec<_> = (0..200).map(|number| format!("a-name-{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let pod = pod("a");
        let configs = configs(&names, "Exists");
        let lacking = lacking(&pod, &configs).unwrap();
        assert_eq!(lacking.message.len(), MESSAGE);
        assert!(lacking.message.ends_with("alone selects the pods"), "{}", lacking.message);
        let report = Report::new(lacking, Timestamp::UNIX_EPOCH, "manager-0");
        let event = serde_json::to_value(&*report.0).unwrap();
        assert_eq!(event["metadata"], json!({ "namespace": "ns", "name": "ctrlmesh.a" }));
        assert_eq!(event["reason"], "NoShardingConfig");
        let of = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "one", "uid": "a",
        });
        assert_eq!(event["involvedObject"], of);
    }
}
