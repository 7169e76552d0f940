//! Objects that our own calls list and watch, by name.
//!
//! Hides how a list and a watch begin, fail, pause and restart. Does not know the kind of the
//! objects, or the purpose.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, TryFutureExt, TryStreamExt, stream::BoxStream};
use kube::{
    Client,
    runtime::{
        utils::{Backoff, ResetTimerBackoff},
        watcher::{self, Event},
    },
};
use tokio::time::sleep;

use super::access::{NoAccess, OwnAccess, chain};

/// Pauses between attempts, which double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(400);
const LAST_PAUSE: Duration = Duration::from_secs(8);
/// The time without a failure after which pauses start from the first.
const CALM: Duration = Duration::from_secs(60);

/// The reason why nothing arrives from the API server.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Trouble {
    #[error(transparent)]
    NoAccess(#[from] NoAccess),
    #[error(transparent)]
    Watch(#[from] watcher::Error),
}

/// The objects of one kind, by name.
pub struct Followed<K, V> {
    access: OwnAccess,
    watch: StartWatch<K>,
    named: fn(K) -> (String, V),
    events: EventStream<K, Trouble>,
    pauses: ResetTimerBackoff<Pauses>,
    known: Option<BTreeMap<String, V>>,
    listed: Option<BTreeMap<String, V>>,
}

type EventStream<K, E> = BoxStream<'static, Result<Event<K>, E>>;
type StartWatch<K> = Arc<dyn Fn(Client) -> EventStream<K, watcher::Error> + Send + Sync>;

/// A change of the known objects.
#[derive(Debug)]
pub enum Update {
    /// The known objects are complete.
    Whole {
        /// Whether they differ from before.
        is_other: bool,
    },
    /// The objects are being listed. Those known before are still known.
    Listing,
    /// The watch failed. Those known before are still known.
    Failed(Trouble),
}

impl<K: Send + 'static, V: PartialEq> Followed<K, V> {
    /// `watch` lists and then watches; `named` returns an object's name and the part to keep.
    pub fn new<S>(
        access: OwnAccess,
        watch: impl Fn(Client) -> S + Send + Sync + 'static,
        named: fn(K) -> (String, V),
    ) -> Self
    where
        S: Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
    {
        let watch: StartWatch<K> = Arc::new(move |client| watch(client).boxed());
        Self {
            events: begin(Duration::ZERO, access.clone(), Arc::clone(&watch)),
            access,
            watch,
            named,
            pauses: ResetTimerBackoff::new(Pauses(FIRST_PAUSE), CALM),
            known: None,
            listed: None,
        }
    }

    /// All objects, or `None` before the first complete list.
    pub fn known(&self) -> Option<&BTreeMap<String, V>> {
        self.known.as_ref()
    }

    /// Takes the next event. Dropping it loses nothing.
    pub async fn next(&mut self) -> Update {
        match self.events.next().await {
            Some(Ok(event)) => self.apply(event),
            Some(Err(trouble)) => {
                self.begin_anew();
                Update::Failed(trouble)
            }
            None => {
                self.begin_anew();
                Update::Listing
            }
        }
    }

    /// A resumed watch does not prove that we have recovered; a completed list does, so we start
    /// over with a list.
    fn begin_anew(&mut self) {
        let pause = self.pauses.next().unwrap_or(LAST_PAUSE);
        self.listed = None;
        self.events = begin(pause, self.access.clone(), Arc::clone(&self.watch));
    }

    fn apply(&mut self, event: Event<K>) -> Update {
        match event {
            Event::Init => {
                self.listed = Some(BTreeMap::new());
                Update::Listing
            }
            Event::InitApply(object) => {
                self.listed.get_or_insert_default().extend([(self.named)(object)]);
                Update::Listing
            }
            Event::InitDone => {
                let listed = Some(self.listed.take().unwrap_or_default());
                let is_other = self.known != listed;
                self.known = listed;
                Update::Whole { is_other }
            }
            Event::Apply(object) => {
                let (name, value) = (self.named)(object);
                let known = self.known.get_or_insert_default();
                let is_other = known.get(&name) != Some(&value);
                known.insert(name, value);
                Update::Whole { is_other }
            }
            Event::Delete(object) => {
                let (name, _) = (self.named)(object);
                let gone = self.known.get_or_insert_default().remove(&name);
                Update::Whole { is_other: gone.is_some() }
            }
        }
    }
}

fn begin<K: 'static>(
    pause: Duration,
    access: OwnAccess,
    watch: StartWatch<K>,
) -> EventStream<K, Trouble> {
    let watching = async move {
        sleep(pause).await;
        Ok(watch(access.client().await?).map_err(Trouble::from))
    };
    watching.try_flatten_stream().boxed()
}

/// Pauses that double, each with up to as much again, so that not all pods call at once.
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

/// Describes a failure of the watch of `plural` in words that lead to the remedy. `remedy` is for a
/// missing right.
pub fn describe(trouble: &Trouble, plural: &str, remedy: &str) -> String {
    match trouble {
        Trouble::Watch(
            watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status)),
        ) if status.code == 403 => {
            format!(
                "the pod's ServiceAccount may not list and watch {plural}{remedy}: {}",
                status.message
            )
        }
        Trouble::Watch(error) => format!("cannot watch {plural}: {error}"),
        Trouble::NoAccess(error) => format!("cannot watch {plural}: {}", chain(error)),
    }
}
