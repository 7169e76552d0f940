//! exec, attach, port-forward: the two connections are spliced after a 101 of the upstream, and
//! after nothing else.

pub(super) mod websocket;

use std::rc::Rc;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::{
    outcome::{Ended, Live, RequestRecord},
    shared::Pair,
};

/// Copies both ways, half-closes included, until both directions have ended.
pub(super) fn splice(
    pair: &Rc<Pair>,
    client: OnUpgrade,
    upstream: OnUpgrade,
    access: RequestRecord,
) {
    let open = Live::stream(&pair.worker.shared.metrics, "upgrade");
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
