//! Shared parts of the in-process suites: a scripted API server, the proxy before it, clients.
//!
//! Everything waits for events. A value without events is polled by [`until`] until it is right,
//! for [`PATIENCE`] at most.

#![allow(dead_code, unreachable_pub, reason = "each suite uses a part of it")]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that fails fails its test"
)]

pub mod client;
pub mod cluster;
pub mod events;
pub mod golden;
pub mod log;
pub mod manager;
pub mod pki;
pub mod policies;
pub mod process;
pub mod proxy;
pub mod scrape;
pub mod upstream;

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use tokio::time::{interval, timeout};

use self::{
    client::{Client, Http},
    proxy::Proxy,
    upstream::Upstream,
};

/// The time limit of every step of a test. Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// The token that every client sends. It must appear only in the upstream's requests.
pub const TOKEN: &str = "fixture-token-9f2c71e4";

/// A resource that the usual policy limits.
pub const CONFIGMAPS: &str = "/api/v1/namespaces/ns/configmaps";

/// The usual proxy before an upstream of both HTTP versions, and a client of this version.
pub async fn scene(http: Http) -> (Upstream, Proxy, Client) {
    scene_before(Upstream::start().await, http).await
}

/// The same with an upstream of this HTTP version only.
pub async fn scene_speaking(http: Http) -> (Upstream, Proxy, Client) {
    scene_before(Upstream::speaking(http).await, http).await
}

/// The same with this upstream.
pub async fn scene_before(upstream: Upstream, http: Http) -> (Upstream, Proxy, Client) {
    let proxy = Proxy::start(&upstream).await;
    let client = Client::new(&proxy, http).await;
    (upstream, proxy, client)
}

/// Waits for `event`, and panics with its name if it does not come.
pub async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, event).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not come within {PATIENCE:?}"),
    }
}

/// Waits until floods have begun and no one has read more of them for a while.
pub async fn stand_still(taken: &AtomicUsize) {
    const LOOKS: usize = 20;
    let (before, still) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let look = || async {
        let now = taken.load(SeqCst);
        let is_still = now > 1 << 18 && before.swap(now, SeqCst) == now;
        still.store(if is_still { still.load(SeqCst) + 1 } else { 0 }, SeqCst);
        (now, still.load(SeqCst))
    };
    until("the floods stand", look, |(_, still)| *still == LOOKS).await;
}

/// Polls a value until it is right.
pub async fn until<T, F: Future<Output = T>>(
    what: &str,
    mut look: impl FnMut() -> F,
    is_right: impl Fn(&T) -> bool,
) -> T
where
    T: std::fmt::Debug,
{
    let mut looks = interval(Duration::from_millis(10));
    let start = tokio::time::Instant::now();
    loop {
        looks.tick().await;
        let value = look().await;
        if is_right(&value) {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: still {value:?} after {PATIENCE:?}");
    }
}
