//! The Events about problems of pods and ShardingConfigs.
//!
//! Hides for how long a problem may last before its Event, and how often that is written. Does not know how
//! configs are chosen.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::reconcile::{
    key::WorkKey,
    observed::{ChosenPod, PodFacts},
    problem::{About, Problem, ProblemEvent},
    reconciler::{Reconciler, Round, Work},
    view::ClusterView,
};
use ctrlmesh_inject::{CaptureMode, note_on_reviews};
use ctrlmesh_policy::{NotChosen, ShardingDraft};

/// The time that a pod may wait unreported: `kubectl apply -f DIRECTORY` keeps no order, so its
/// config may come seconds after it.
const GRACE: Duration = Duration::from_secs(5);
/// The age at which an Event is written again: API servers delete Events after an hour unless configured
/// otherwise (`--event-ttl`).
const AGAIN: Duration = Duration::from_secs(30 * 60);
/// The longest message in bytes that every version of the Events API accepts (`noteLengthLimit` of the API
/// server's validation).
const MESSAGE: usize = 1024;

/// Writes the Events.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The problems that last.
    waits: BTreeMap<(About, String), Wait>,
    /// The messages of the Events that are due.
    due: BTreeMap<WorkKey, (About, String)>,
}

/// The key of the Event about an object.
fn work_key(about: About, key: &str) -> WorkKey {
    let part = match about {
        About::Pod => "",
        About::Config(of) => of,
    };
    WorkKey::new("Event", part, key)
}

impl Reconciler for Events {
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)> {
        let replica = &round.shared.config.objects.replica;
        let of_pods = round.chosen.iter().filter_map(of_pod);
        let problems =
            of_pods.chain(round.view.problems(round.rings)).chain(round.roots.problems());
        let events = self.events(problems, round.now, round.view.now(), replica);
        let send = |(key, event): (WorkKey, ProblemEvent)| {
            (key, round.work(async move |client| event.send(&client).await))
        };
        events.into_iter().map(send).collect()
    }

    fn written(&mut self, key: &WorkKey, _view: &mut ClusterView, now: Instant) {
        if let Some((about, message)) = self.due.get(key)
            && let Some(wait) = self.waits.get_mut(&(*about, key.object.clone()))
        {
            wait.reported = Some((message.clone(), now));
        }
    }

    /// When a problem has lasted for long enough.
    fn next(&self, latest: Instant) -> Instant {
        let unreported = self.waits.values().filter(|wait| wait.reported.is_none());
        let ends = unreported.map(|wait| wait.since + GRACE);
        ends.filter(|end| *end > Instant::now()).chain([latest]).min().unwrap_or(latest)
    }
}

#[derive(Debug)]
struct Wait {
    uid: String,
    since: Instant,
    /// The message of the Event, and when it was written.
    reported: Option<(String, Instant)>,
}

/// The problem of a pod.
#[derive(Debug)]
enum PodProblem {
    /// One config, by which its proxy would have a policy.
    Config(NotChosen),
    /// Rules that lead reviews to its proxy, as its config asks; with a note that says so.
    Rules(String),
}

impl Events {
    /// The Events that are due. Forgets problems that are over.
    fn events<'a>(
        &mut self,
        problems: impl Iterator<Item = Problem<'a>>,
        now: Instant,
        time: Timestamp,
        replica: &str,
    ) -> Vec<(WorkKey, ProblemEvent)> {
        let mut before = std::mem::take(&mut self.waits);
        self.due.clear();
        let mut due = Vec::new();
        for problem in problems {
            let at = (problem.about, problem.key.to_owned());
            let wait = before.remove(&at).filter(|wait| wait.uid == problem.uid);
            let new = || Wait { uid: problem.uid.to_owned(), since: now, reported: None };
            let wait = wait.unwrap_or_else(new);
            if wait.since + GRACE <= now && !wait.has_reported(&problem.message, now) {
                let key = work_key(at.0, &at.1);
                self.due.insert(key.clone(), (at.0, problem.message.clone()));
                due.push((key, ProblemEvent::new(problem, time, replica)));
            }
            self.waits.insert(at, wait);
        }
        due
    }
}

impl Wait {
    fn has_reported(&self, message: &str, now: Instant) -> bool {
        self.reported
            .as_ref()
            .is_some_and(|(reported, at)| reported == message && now < *at + AGAIN)
    }
}

/// The problem of a pod, if it has one.
fn of_pod<'a>(chosen: &ChosenPod<'a>) -> Option<Problem<'a>> {
    let ChosenPod { key, pod, config } = chosen;
    let problem = PodProblem::of(pod, config)?;
    let (reason, message) = (problem.reason(), problem.message());
    Some(Problem { about: About::Pod, key, uid: &pod.uid, reason, message })
}

impl PodProblem {
    /// The problem of a pod with this config. `None` if it has none.
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

    fn problem<'a>(pod: &'a PodFacts, configs: &'a [Checked]) -> Option<Problem<'a>> {
        let config = choose(configs, pod.labels.as_ref()?, "ns", None);
        of_pod(&ChosenPod { key: "ns/one", pod, config })
    }

    /// The message of the one Event that is due.
    fn due(events: &mut Events, pod: &PodFacts, configs: &[Checked]) -> Option<String> {
        let problems = problem(pod, configs).into_iter();
        let mut due = events.events(problems, Instant::now(), Timestamp::UNIX_EPOCH, "manager-0");
        assert!(due.len() <= 1);
        due.pop().map(|(key, event)| {
            assert_eq!(key, work_key(About::Pod, "ns/one"));
            event.0.message.unwrap()
        })
    }

    /// Notes that the Event of the pod was written.
    fn written(events: &mut Events) {
        let (about, message) = events.due[&work_key(About::Pod, "ns/one")].clone();
        let wait = events.waits.get_mut(&(about, "ns/one".to_owned())).unwrap();
        wait.reported = Some((message, Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn i12_a_pod_is_reported_when_it_has_waited_for_long_enough_and_not_again() {
        let mut events = Events::default();
        let pod = pod("a");
        assert_eq!(due(&mut events, &pod, &[]), None, "its config may be on its way");
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(events.next(later), Instant::now() + GRACE);
        tokio::time::advance(GRACE).await;
        let message = due(&mut events, &pod, &[]).expect("an Event");
        assert_eq!(
            message,
            "the proxy waits for a policy: no ShardingConfig in namespace ns selects the pod's \
             labels; write a ShardingConfig whose selector matches the pods' labels, or change \
             the labels"
        );
        // It was not written, so it is due.
        assert_eq!(due(&mut events, &pod, &[]).as_ref(), Some(&message));
        written(&mut events);
        assert_eq!(due(&mut events, &pod, &[]), None);
        assert_eq!(events.next(later), later, "no one is to be reported");
        tokio::time::advance(AGAIN).await;
        assert_eq!(due(&mut events, &pod, &[]), Some(message), "the API server forgets Events");
    }

    #[tokio::test(start_paused = true)]
    async fn i12_another_cause_is_reported_and_a_config_ends_the_wait() {
        let mut events = Events::default();
        let waits = pod("a");
        due(&mut events, &waits, &[]);
        tokio::time::advance(GRACE).await;
        due(&mut events, &waits, &[]).unwrap();
        written(&mut events);
        let two = configs(&["blue", "green"], "Exists");
        let message = due(&mut events, &waits, &two).expect("another cause");
        assert!(message.contains("selected by ShardingConfig ns/blue, "), "{message}");
        assert!(message.ends_with("one of these configs alone selects the pods"), "{message}");
        let bad = due(&mut events, &waits, &configs(&["blue"], "Exist")).expect("another cause");
        assert!(bad.contains("invalid: ShardingConfig ns/blue: spec: unknown"), "{bad}");

        assert_eq!(due(&mut events, &waits, &configs(&["blue"], "Exists")), None);
        assert!(events.waits.is_empty(), "it does not wait, and is forgotten");
        assert_eq!(due(&mut events, &waits, &[]), None, "it begins to wait");
        tokio::time::advance(GRACE).await;
        assert_eq!(due(&mut events, &pod("b"), &[]), None, "another pod of that name");
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
            PodProblem::of(&pod, &choose(&configs, pod.labels.as_ref().unwrap(), "ns", None))
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
        let problem = problem(&pod, &configs).unwrap();
        assert_eq!(problem.message.len(), MESSAGE);
        assert!(problem.message.ends_with("alone selects the pods"), "{}", problem.message);
        let report = ProblemEvent::new(problem, Timestamp::UNIX_EPOCH, "manager-0");
        let event = serde_json::to_value(&*report.0).unwrap();
        assert_eq!(event["metadata"], json!({ "namespace": "ns", "name": "ctrlmesh.a" }));
        assert_eq!(event["reason"], "NoShardingConfig");
        let of = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "one", "uid": "a",
        });
        assert_eq!(event["involvedObject"], of);
    }
}
