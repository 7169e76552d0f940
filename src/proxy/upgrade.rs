//! exec, attach, port-forward: the two connections are spliced after a 101 of the upstream, and
//! after nothing else.

use std::{rc::Rc, sync::Arc};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::{
    metrics::{KindLabel, Metrics},
    outcome::{Access, Ended},
    pair::Pair,
};

/// Copies both ways, half-closes included, until both directions have ended.
pub(super) fn splice(pair: &Rc<Pair>, client: OnUpgrade, upstream: OnUpgrade, access: Access) {
    let open = LiveStreamCount::new(&pair.worker.shared.metrics, "upgrade");
    pair.tasks.spawn(async move {
        let _open = open;
        let mut access = access;
        let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else {
            return;
        };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        match copy_bidirectional(&mut client, &mut upstream).await {
            Ok((_, sent)) => {
                access.bytes_out = sent;
                access.ended = Ended::Complete;
            }
            Err(_) => access.ended = Ended::Reset,
        }
    });
}

/// Counts a long-lived response for as long as it lives.
#[derive(Debug)]
pub(super) struct LiveStreamCount(Arc<Metrics>, KindLabel);

impl LiveStreamCount {
    pub(super) fn new(metrics: &Arc<Metrics>, kind: &'static str) -> Self {
        let label = KindLabel { kind };
        metrics.streams.get_or_create_owned(&label).inc();
        Self(Arc::clone(metrics), label)
    }
}

impl Drop for LiveStreamCount {
    fn drop(&mut self) {
        self.0.streams.get_or_create_owned(&self.1).dec();
    }
}
