//! The listener of the leg, which exists only while the operator's does.
//!
//! A proxy that accepts for an operator that sleeps makes a `tcpSocket` probe succeed too early, and
//! the API server tries no other pod. Whether the operator listens is asked of the kernel: nothing is
//! dialled. The listener outlives the operator's by a moment: the API server calls a pod that
//! ends until its endpoint is gone, and another pod can answer.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::future::OptionFuture;
use nix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep_until, timeout};

use super::state::Webhook;
use crate::{
    config::Inbound,
    listen::{self, Dispatcher, Leads, Listener},
    shared::Shared,
};
use ctrlmesh_base::cluster::chain;
use ctrlmesh_net::{
    listening::{Search, Wanted},
    pair::PairNames,
    socket,
};
use ctrlmesh_policy::CertFiles;

/// Least and greatest time between two looks at the operator's port.
const LOOK: Duration = Duration::from_millis(100);
const LATEST_LOOK: Duration = Duration::from_secs(1);
/// Rest after a look, as a multiple of its CPU time: where `/proc` has to be read, the kernel walks its
/// table of all connections if no one listens, which takes 10 ms on a large node. On a busy node a look
/// takes longer without being dear.
const REST: u32 = 50;
/// Time after the operator's end in which connections are still taken. Services lose a pod's endpoint
/// a second or two after its deletion (the least interval of kube-proxy's syncs is one); probes that open
/// a port come once a second at most.
const LINGER: Duration = Duration::from_secs(2);
/// Interval of looks at its certificate.
const CERTIFICATE_LOOK: Duration = Duration::from_secs(1);

/// Accepts while the operator listens, and deals to the data threads. Never returns.
pub(crate) async fn keep(webhook: Arc<Webhook>, hands: Dispatcher, shared: Arc<Shared>) {
    let (mut look_due, mut certificate_due) = (Instant::now(), Instant::now());
    let mut search = Search::default();
    let mut door = Door::default();
    let mut accepting: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
    loop {
        tokio::select! {
            () = sleep_until(look_due) => {}
            Some(()) = OptionFuture::from(accepting.as_mut()) => {}
        }
        if Instant::now() >= certificate_due {
            webhook.read_certificate();
            certificate_due = Instant::now() + CERTIFICATE_LOOK;
        }
        let (began, used) = (Instant::now(), cpu_time());
        let listens = webhook.operator_listens(&mut search);
        let used = cpu_time().saturating_sub(used);
        let is_open =
            door.is_open(listens, accepting.is_some(), began) && webhook.pair.current().is_some();
        look_due = Instant::now() + (REST * used).clamp(LOOK, LATEST_LOOK);
        if !is_open {
            accepting = None;
        } else if accepting.is_none() {
            accepting = webhook.listen().map(|listener| {
                let (hands, shared) = (hands.clone(), Arc::clone(&shared));
                let accept = async move {
                    listen::accept(listener, hands, &shared.accept_backoff, &shared.metrics).await;
                };
                Box::pin(accept) as _
            });
        }
        webhook.show(accepting.is_some(), &shared);
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Resolves when no connections are taken, or after the time in which they still are after the
/// operator's end.
pub(crate) async fn closed(webhook: Arc<Webhook>) {
    let mut is_open = webhook.is_open.subscribe();
    let _ = timeout(LINGER, is_open.wait_for(|is_open| !is_open)).await;
}

/// Whether connections are taken, by when the operator listened last. It opens for an operator that
/// listens, and never in the moment after one.
#[derive(Debug, Default)]
struct Door {
    last_listened: Option<Instant>,
}

impl Door {
    fn is_open(&mut self, listens: bool, was_open: bool, now: Instant) -> bool {
        if listens {
            self.last_listened = Some(now);
        }
        let lingers = self.last_listened.is_some_and(|last| now.duration_since(last) < LINGER);
        listens || (was_open && lingers)
    }
}

impl Webhook {
    /// Reads the operator's certificate again, and the roots of peers, if they have changed.
    fn read_certificate(&self) {
        let files = self.siblings().and_then(|siblings| siblings.webhook().files.clone());
        self.pair.rename(files.map(|CertFiles { cert, key }| PairNames { cert, key }));
        if let Ok(true) = self.pair.refresh() {
            tracing::info!("webhook certificate loaded");
        }
        let problem = self.pair.problem(&self.clock).map(|bad| chain(&bad));
        let mut problems = self.problems.lock();
        if let Some(problem) = problem.as_ref().filter(|_| problem != problems.certificate) {
            let last_good_stays = self.pair.current().is_some();
            tracing::warn!(problem, last_good_stays, "webhook certificate invalid");
        }
        problems.certificate = problem;
        let held = self.pair.not_kept().map(|bad| bad.to_string());
        if let Some(problem) = held.as_ref().filter(|_| held != problems.held) {
            tracing::warn!(problem, "former webhook certificates invalid");
        }
        problems.held = held;
        let roots = self.tls.as_ref().map_or(Ok(false), |tls| tls.refresh());
        if let Ok(true) = roots {
            tracing::info!("the CAs of peers were read again");
        }
        problems.roots = roots.err().map(|bad| chain(&bad));
    }

    fn operator_listens(&self, search: &mut Search) -> bool {
        let Inbound { port, server, .. } = self.config;
        let wanted = server.map_or(Wanted::OfPod(port), Wanted::At);
        let listens = search.finds(wanted);
        let problem = listens.as_ref().err().map(|error| format!("/proc/net/tcp: {error}"));
        self.problems.lock().table = problem;
        listens.unwrap_or(false)
    }

    fn listen(&self) -> Option<Listener> {
        let bound = socket::listen_on_all(self.config.listen);
        let problem =
            bound.as_ref().err().map(|error| format!("--inbound {}: {error}", self.config.listen));
        let mut problems = self.problems.lock();
        if let Some(problem) = problem.as_ref().filter(|_| problem != problems.listener) {
            tracing::warn!(problem, "webhook listener");
        }
        problems.listener = problem;
        let socket = bound.ok()?;
        Some(Listener { socket, leads: Leads::Inbound(self.config.server) })
    }

    /// Tells connections and metrics whether the operator listens.
    fn show(&self, is_open: bool, shared: &Shared) {
        let peers = self.peers.table().peers().count();
        shared.metrics.webhook_peers.set(i64::try_from(peers).unwrap_or(i64::MAX));
        shared.metrics.webhook_listening.set(is_open.into());
        let port = self.config.port.get();
        self.is_open.send_if_modified(|shown| {
            let is_other = *shown != is_open;
            if is_other {
                match is_open {
                    true => tracing::info!(port, "webhook listener opened"),
                    false => tracing::info!(port, "webhook listener closed"),
                }
            }
            *shown = is_open;
            is_other
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i13_connections_are_taken_for_a_moment_after_the_end_of_the_operator() {
        let (mut door, start) = (Door::default(), Instant::now());
        // The time; whether it listens; whether connections were taken; whether they are.
        let looks = [
            (0, false, false, false),
            (100, true, false, true),
            (200, false, true, true),
            (2_099, false, true, true),
            (2_100, false, true, false),
            (9_000, false, false, false),
            (9_100, true, false, true),
            // It was closed by another lack meanwhile, such as that of a certificate.
            (9_200, false, false, false),
        ];
        for (millis, listens, was_open, wanted) in looks {
            let now = start + Duration::from_millis(millis);
            assert_eq!(door.is_open(listens, was_open, now), wanted, "{millis}");
        }
    }
}
