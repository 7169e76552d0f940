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

/// The first and the last delay of the backoff, which doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(400);
const LAST_PAUSE: Duration = Duration::from_secs(8);
/// The time without a failure after which the backoff starts from the first.
const CALM: Duration = Duration::from_secs(60);

/// The reason why a watch fails.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error(transparent)]
    NoAccess(#[from] NoAccess),
    #[error(transparent)]
    Watch(#[from] watcher::Error),
}

impl WatchError {
    /// Whether the API server serves no such kind.
    pub fn is_unknown(&self) -> bool {
        let Self::Watch(
            watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status)),
        ) = self
        else {
            return false;
        };
        status.code == 404
    }
}

/// A cache of the objects of one kind, by name, which a list and a watch fill.
pub struct Reflector<K, V> {
    access: OwnAccess,
    watch: StartWatch<K>,
    named: fn(K) -> (String, V),
    events: EventStream<K, WatchError>,
    backoff: ResetTimerBackoff<ExponentialBackoff>,
    known: Option<BTreeMap<String, V>>,
    listed: Option<BTreeMap<String, V>>,
    /// Most objects that are known.
    most: usize,
    is_cut: bool,
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
    Failed(WatchError),
}

impl<K: Send + 'static, V: PartialEq> Reflector<K, V> {
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
            backoff: ResetTimerBackoff::new(ExponentialBackoff::default(), CALM),
            known: None,
            listed: None,
            most: usize::MAX,
            is_cut: false,
        }
    }

    /// Knows so many objects at most.
    pub fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Whether there were more objects than may be known, since the last list began.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// All objects, or `None` before the first complete list.
    pub fn known(&self) -> Option<&BTreeMap<String, V>> {
        self.known.as_ref()
    }

    /// Takes the next event. Dropping it loses nothing.
    pub async fn next(&mut self) -> Update {
        match self.events.next().await {
            Some(Ok(event)) => self.apply(event),
            Some(Err(error)) => {
                self.begin_anew();
                Update::Failed(error)
            }
            None => {
                self.begin_anew();
                Update::Listing
            }
        }
    }

    /// Starts over with a list. A resumed watch does not prove that we have recovered; a completed
    /// list does.
    fn begin_anew(&mut self) {
        let pause = self.backoff.next().unwrap_or(LAST_PAUSE);
        self.listed = None;
        self.events = begin(pause, self.access.clone(), Arc::clone(&self.watch));
    }

    fn apply(&mut self, event: Event<K>) -> Update {
        match event {
            Event::Init => {
                self.listed = Some(BTreeMap::new());
                self.is_cut = false;
                Update::Listing
            }
            Event::InitApply(object) => {
                let (name, value) = (self.named)(object);
                let listed = self.listed.get_or_insert_default();
                self.is_cut |= !insert(listed, name, value, self.most);
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
                let is_known = insert(known, name, value, self.most);
                self.is_cut |= !is_known;
                Update::Whole { is_other: is_other && is_known }
            }
            Event::Delete(object) => {
                let (name, _) = (self.named)(object);
                let gone = self.known.get_or_insert_default().remove(&name);
                Update::Whole { is_other: gone.is_some() }
            }
        }
    }
}

/// Inserts an object, unless `most` others are there. Returns whether it did.
fn insert<V>(into: &mut BTreeMap<String, V>, name: String, value: V, most: usize) -> bool {
    let has_room = into.len() < most || into.contains_key(&name);
    if has_room {
        into.insert(name, value);
    }
    has_room
}

fn begin<K: 'static>(
    pause: Duration,
    access: OwnAccess,
    watch: StartWatch<K>,
) -> EventStream<K, WatchError> {
    let watching = async move {
        sleep(pause).await;
        Ok(watch(access.client().await?).map_err(WatchError::from))
    };
    watching.try_flatten_stream().boxed()
}

/// Pauses between attempts, which double, each with up to as much again, so that not all pods call
/// at once.
#[derive(Debug)]
pub struct ExponentialBackoff(Duration);

impl Default for ExponentialBackoff {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl ExponentialBackoff {
    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LAST_PAUSE);
        pause + pause.mul_f32(fastrand::f32())
    }
}

impl Iterator for ExponentialBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.pause())
    }
}

impl Backoff for ExponentialBackoff {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Describes a failure of the watch of `plural` in words that lead to the remedy. `remedy` is for a
/// missing right.
pub fn describe(error: &WatchError, plural: &str, remedy: &str) -> String {
    match error {
        WatchError::Watch(
            watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status)),
        ) if status.code == 403 => {
            format!(
                "the pod's ServiceAccount may not list and watch {plural}{remedy}: {}",
                status.message
            )
        }
        WatchError::Watch(error) => format!("cannot watch {plural}: {error}"),
        WatchError::NoAccess(error) => format!("cannot watch {plural}: {}", chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{iter, pending};

    use super::*;

    type Events = Vec<Event<u32>>;

    fn reflector(events: fn() -> Events) -> Reflector<u32, u32> {
        let client = Client::try_from(kube::Config::new("http://localhost".parse().unwrap()));
        let watch = move |_| iter(events()).map(Ok).chain(pending());
        let named = |object: u32| ((object % 10).to_string(), object);
        Reflector::new(OwnAccess::Client(client.unwrap()), watch, named).at_most(2)
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_as_many_objects_as_may_be_known() {
        use Event::{Apply, Delete, Init, InitApply, InitDone};
        let mut reflector = reflector(|| {
            vec![
                Init,
                InitApply(1),
                InitApply(2),
                InitApply(3),
                InitDone,
                Apply(11),
                Apply(4),
                Delete(4),
                Delete(2),
                Apply(4),
                Init,
                InitApply(5),
                InitDone,
            ]
        });
        let mut told = Vec::new();
        for _ in 0..13 {
            let is_other = match reflector.next().await {
                Update::Whole { is_other } => is_other,
                Update::Listing => continue,
                Update::Failed(error) => panic!("{error}"),
            };
            let known: Vec<_> = reflector.known().unwrap().values().copied().collect();
            told.push((known, is_other, reflector.is_cut()));
        }
        let expected = [
            (vec![1, 2], true, true),
            (vec![11, 2], true, true),
            (vec![11, 2], false, true),
            (vec![11, 2], false, true),
            (vec![11], true, true),
            (vec![11, 4], true, true),
            (vec![5], true, false),
        ];
        assert_eq!(told, expected);
    }
}
