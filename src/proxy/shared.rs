//! State that connections share.

use std::{
    rc::Rc,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use super::{
    config::{OnChange, Pushdown},
    feed::Feed,
    listen::Outages,
    metrics::Metrics,
    request::Room,
    streams::{LiveStreams, StreamTable, Turns, Unread},
    tls::Tls,
};
use crate::net::Clock;

/// The time before a drain's deadline when connections and watches that came during the drain are
/// asked to finish.
pub(super) const LAST_CALL: Duration = Duration::from_secs(1);

/// State shared by all threads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) metrics: Arc<Metrics>,
    pub(super) tls: Tls,
    pub(super) feed: Arc<Feed>,
    pub(super) streams: Arc<StreamTable>,
    pub(super) turns: Arc<Turns>,
    pub(super) bodies: Arc<Room>,
    pub(super) unread: Arc<Unread>,
    pub(super) outages: Outages,
    pub(super) pushdown: Pushdown,
    pub(super) on_change: OnChange,
    pub(super) clock: Clock,
    pub(super) connections: AtomicU64,
}

/// State shared by the connections of one data thread.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) live: Rc<LiveStreams>,
}
