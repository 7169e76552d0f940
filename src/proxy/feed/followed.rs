//! What our own calls list and watch, held by name.
//!
//! Hides how a list and a watch begin, fail, pause and begin anew. Does not know what is followed,
//! or what for.

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

/// The pauses before the API server is asked again double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(400);
const LAST_PAUSE: Duration = Duration::from_secs(8);
/// Without a failure for this long the pauses begin anew.
const CALM: Duration = Duration::from_secs(60);

/// How our own calls reach the API server: under the pod's ServiceAccount and our own name, never
/// with anything of the controller's.
#[derive(Clone)]
pub(in crate::proxy) enum Access {
    /// By this client.
    Client(Client),
    /// By what the environment says when it is asked for.
    Environment,
}

/// Why our own calls cannot be made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(in crate::proxy) struct NoAccess(Box<dyn std::error::Error + Send + Sync>);

/// Why nothing comes from the API server.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// It cannot be asked.
    #[error(transparent)]
    NoAccess(#[from] NoAccess),
    /// It does not answer as it should.
    #[error(transparent)]
    Watch(#[from] watcher::Error),
}

/// The objects of one kind, by name.
pub(super) struct Followed<K, V> {
    access: Access,
    watch: Watch<K>,
    named: fn(K) -> (String, V),
    events: Events<K, Trouble>,
    pauses: ResetTimerBackoff<Pauses>,
    known: Option<BTreeMap<String, V>>,
    listed: Option<BTreeMap<String, V>>,
}

type Events<K, E> = BoxStream<'static, Result<Event<K>, E>>;
type Watch<K> = Arc<dyn Fn(Client) -> Events<K, watcher::Error> + Send + Sync>;

/// What became of what is known.
#[derive(Debug)]
pub(super) enum Step {
    /// It is whole.
    Whole {
        /// It is other than before.
        is_other: bool,
    },
    /// It is being listed. What was known before is known still.
    Listing,
    /// Nothing comes for now. What was known before is known still.
    Failed(Trouble),
}

impl Access {
    /// The client.
    pub(in crate::proxy) async fn client(self) -> Result<Client, NoAccess> {
        match self {
            Self::Client(client) => Ok(client),
            Self::Environment => infer().await.map_err(NoAccess),
        }
    }
}

async fn infer() -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    let mut config = kube::Config::infer().await?;
    let agent = concat!("ctrlmesh/", env!("CARGO_PKG_VERSION"));
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
    // What is refused is told at once, and asked again after our own pauses. The client's own
    // repetition would hide 429, 503 and 504 fifteen times over.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

impl<K: Send + 'static, V: PartialEq> Followed<K, V> {
    /// `watch` lists and then watches; `named` says what is kept of an object, and its name.
    pub(super) fn new<S>(
        access: Access,
        watch: impl Fn(Client) -> S + Send + Sync + 'static,
        named: fn(K) -> (String, V),
    ) -> Self
    where
        S: Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
    {
        let watch: Watch<K> = Arc::new(move |client| watch(client).boxed());
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

    /// All of them; nothing before the first list was whole.
    pub(super) fn known(&self) -> Option<&BTreeMap<String, V>> {
        self.known.as_ref()
    }

    /// Takes the next event. Nothing is lost when it is dropped.
    pub(super) async fn next(&mut self) -> Step {
        match self.events.next().await {
            Some(Ok(event)) => self.apply(event),
            Some(Err(trouble)) => {
                self.begin_anew();
                Step::Failed(trouble)
            }
            None => {
                self.begin_anew();
                Step::Listing
            }
        }
    }

    /// A watch that goes on says nothing of a failure before it; the end of a list does.
    fn begin_anew(&mut self) {
        let pause = self.pauses.next().unwrap_or(LAST_PAUSE);
        self.listed = None;
        self.events = begin(pause, self.access.clone(), Arc::clone(&self.watch));
    }

    fn apply(&mut self, event: Event<K>) -> Step {
        match event {
            Event::Init => {
                self.listed = Some(BTreeMap::new());
                Step::Listing
            }
            Event::InitApply(object) => {
                self.listed.get_or_insert_default().extend([(self.named)(object)]);
                Step::Listing
            }
            Event::InitDone => {
                let listed = Some(self.listed.take().unwrap_or_default());
                let is_other = self.known != listed;
                self.known = listed;
                Step::Whole { is_other }
            }
            Event::Apply(object) => {
                let (name, value) = (self.named)(object);
                let known = self.known.get_or_insert_default();
                let is_other = known.get(&name) != Some(&value);
                known.insert(name, value);
                Step::Whole { is_other }
            }
            Event::Delete(object) => {
                let (name, _) = (self.named)(object);
                let gone = self.known.get_or_insert_default().remove(&name);
                Step::Whole { is_other: gone.is_some() }
            }
        }
    }
}

fn begin<K: 'static>(pause: Duration, access: Access, watch: Watch<K>) -> Events<K, Trouble> {
    let watching = async move {
        sleep(pause).await;
        Ok(watch(access.client().await?).map_err(Trouble::from))
    };
    watching.try_flatten_stream().boxed()
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

/// Tells what is wrong with the watch of `plural` in words that lead to the remedy: what to do
/// where the right to it is missing.
pub(super) fn describe(trouble: &Trouble, plural: &str, remedy: &str) -> String {
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
        Trouble::NoAccess(error) => format!("cannot watch {plural}: {}", super::chain(error)),
    }
}
