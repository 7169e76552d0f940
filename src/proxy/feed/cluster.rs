//! The policy in the cluster: a watch of the namespace's ShardingConfigs, under the pod's own
//! ServiceAccount.

use std::{collections::BTreeMap, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use futures_util::{FutureExt, Stream, StreamExt};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject},
    runtime::{
        utils::{Backoff, ResetTimerBackoff},
        watcher::{self, Event},
    },
};
use tokio::time::{interval, sleep};

use super::{
    Feed,
    choose::{Configs, choose, parse_labels},
};
use crate::api::ShardingConfig;

/// How often the pod's labels are read anew.
const LOOK: Duration = Duration::from_secs(1);
/// The pauses before the API server is asked again double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(400);
const LAST_PAUSE: Duration = Duration::from_secs(8);
/// Without a failure for this long the pauses begin anew.
const CALM: Duration = Duration::from_secs(60);

/// Follows the ShardingConfigs of `namespace` for as long as it is polled, and puts in force the
/// one that selects the labels in `pod_labels`.
pub(in crate::proxy) async fn follow_cluster(
    client: Client,
    namespace: String,
    pod_labels: PathBuf,
    feed: Arc<Feed>,
) {
    // Objects are taken as they are, so that one that does not parse leaves the others in place.
    let kind = ApiResource::erase::<ShardingConfig>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind);
    let mut pauses = ResetTimerBackoff::new(Pauses(FIRST_PAUSE), CALM);
    let mut events = pin!(events_after(Duration::ZERO, api.clone()));
    let mut looks = interval(LOOK);
    let mut configs = Configs::new();
    let mut listed: Option<Configs> = None;
    let mut labels = Err("not read yet".to_owned());
    let mut is_complete = false;
    loop {
        tokio::select! {
            event = events.next() => match event {
                None => return,
                Some(Err(error)) => {
                    feed.reject(describe(&error));
                    listed = None;
                    // A watch that goes on says nothing of it; the end of a list does.
                    let pause = pauses.next().unwrap_or(LAST_PAUSE);
                    events.set(events_after(pause, api.clone()));
                    continue;
                }
                Some(Ok(event)) => {
                    is_complete |= matches!(event, Event::InitDone);
                    apply(event, &mut configs, &mut listed);
                }
            },
            _ = looks.tick() => {
                let now = read_labels(&pod_labels);
                if now == labels {
                    continue;
                }
                labels = now;
            }
        }
        if is_complete && listed.is_none() {
            decide(&feed, &configs, &labels, &namespace);
        }
    }
}

/// Pauses that double, each with up to as much again, so that not all proxies ask at once.
struct Pauses(Duration);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (pause * 2).min(LAST_PAUSE);
        Some(pause + pause.mul_f32(fastrand::f32()))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0 = FIRST_PAUSE;
    }
}

/// Lists and then watches, from the beginning.
fn events_after(
    pause: Duration,
    api: Api<DynamicObject>,
) -> impl Stream<Item = Result<Event<DynamicObject>, watcher::Error>> {
    let watching = async move {
        sleep(pause).await;
        watcher::watcher(api, watcher::Config::default())
    };
    watching.flatten_stream().fuse()
}

fn decide(
    feed: &Feed,
    configs: &Configs,
    labels: &Result<BTreeMap<String, String>, String>,
    namespace: &str,
) {
    let present = feed.in_force();
    let present = present.as_ref().map(|in_force| in_force.policy.shard());
    let chosen = labels
        .as_ref()
        .map_err(|what| format!("--pod-labels: {what}"))
        .and_then(|labels| choose(configs, labels, namespace, present));
    match chosen {
        Ok(policy) => feed.install(policy),
        Err(problem) => feed.reject(problem),
    }
}

fn apply(event: Event<DynamicObject>, configs: &mut Configs, listed: &mut Option<Configs>) {
    let named = |object: DynamicObject| {
        let spec = object.data.get("spec").cloned().unwrap_or_default();
        (object.metadata.name.unwrap_or_default(), spec)
    };
    match event {
        Event::Init => *listed = Some(Configs::new()),
        Event::InitApply(object) => listed.get_or_insert_default().extend([named(object)]),
        Event::InitDone => *configs = listed.take().unwrap_or_default(),
        Event::Apply(object) => configs.extend([named(object)]),
        Event::Delete(object) => drop(configs.remove(&named(object).0)),
    }
}

fn read_labels(path: &PathBuf) -> Result<BTreeMap<String, String>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse_labels(&text)
}

/// Tells what is wrong with the watch in words that lead to the remedy.
fn describe(error: &watcher::Error) -> String {
    let plural = ShardingConfig::plural(&());
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if status.code == 404 =>
        {
            format!("the cluster has no {plural}: apply the CRD (ctrlmesh crds)")
        }
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if status.code == 403 =>
        {
            format!("the pod's ServiceAccount may not list and watch {plural}: {}", status.message)
        }
        other => format!("cannot watch {plural}: {other}"),
    }
}
