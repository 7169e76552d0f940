//! State that the inbound leg's connections share: all of them, and those of one data thread.

use std::{path::Path, rc::Rc, sync::Arc};

use parking_lot::Mutex;
use strum::VariantArray;
use tokio::sync::watch;

use super::operator::WebhookClient;
use crate::{
    config,
    metrics::Metrics,
    outcome::How,
    peers::{PeerPool, Peers, Reason},
    shared::Tasks,
    upstream::Room,
};
use ctrlmesh_net::{
    Clock,
    pair::{OperatorTls, WebhookCert},
    peer::PeerTls,
    tls::ClientTls,
};
use ctrlmesh_policy::ControllerShards;

/// Bytes that all reviews whose owner is not known yet may take.
const HELD: usize = 64 << 20;

/// The state that all threads share.
#[derive(Debug)]
pub(crate) struct Webhook {
    pub(super) config: config::Inbound,
    /// The operator's certificate.
    pub(super) pair: Arc<WebhookCert>,
    /// TLS for those who are shown it.
    pub(super) server: ClientTls,
    /// TLS towards the operator.
    pub(super) operator: OperatorTls,
    /// The clock by which certificates end.
    pub(super) clock: Clock,
    /// The proof of this pod to others. `None` if it cannot be given: reviews stay here.
    pub(super) tls: Option<Arc<PeerTls>>,
    /// The shards of the controller.
    pub(super) siblings: watch::Receiver<Option<Arc<ControllerShards>>>,
    pub(super) peers: Arc<Peers>,
    pub(super) held: Arc<Room>,
    /// Whether the listener is open: the operator listens, and its certificate is known.
    pub(super) is_open: watch::Sender<bool>,
    pub(super) problems: Mutex<Problems>,
}

/// The problems of the leg, for people. `None` where there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Problems {
    /// The problem of the certificate.
    pub(super) certificate: Option<String>,
    /// The problem of the file of certificates which were shown.
    pub(super) held: Option<String>,
    /// The problem of the peers' CAs.
    pub(super) roots: Option<String>,
    /// The kernel's table of sockets.
    pub(super) table: Option<String>,
    /// The listener's.
    pub(super) listener: Option<String>,
    /// The operator's, when it was last called.
    pub(super) operator: Option<String>,
}

/// The state of one data thread.
pub(crate) struct Inbound {
    pub(super) webhook: Arc<Webhook>,
    pub(super) operator: WebhookClient,
    /// `None` if this pod has no identity.
    pub(super) links: Option<PeerPool>,
    tasks: Tasks,
}

impl Webhook {
    /// The leg with these settings. `tls` proves this pod to others, `state_dir` outlives this
    /// process. Fails with the errors of the TLS library.
    pub(crate) fn new(
        config: config::Inbound,
        state_dir: Option<&Path>,
        tls: Option<PeerTls>,
        siblings: watch::Receiver<Option<Arc<ControllerShards>>>,
        metrics: &Metrics,
        clock: &Clock,
    ) -> Result<Self, rustls::Error> {
        let pair = Arc::new(WebhookCert::new(config.certs.clone(), None, state_dir));
        // What has not happened yet is shown as 0.
        for how in How::VARIANTS {
            let how = [("how", how.into_str())];
            drop(metrics.webhook_reviews.get_or_create(&how));
            drop(metrics.webhook_review_duration.get_or_create(&how));
        }
        for reason in Reason::VARIANTS {
            drop(metrics.webhook_peer_failures.get_or_create(&[("reason", reason.label())]));
        }
        Ok(Self {
            config,
            server: ClientTls::new(Arc::clone(&pair) as _, clock)?,
            operator: OperatorTls::new(Arc::clone(&pair), clock)?,
            clock: clock.clone(),
            pair,
            tls: tls.map(Arc::new),
            siblings,
            peers: Arc::default(),
            held: Room::new(HELD, &metrics.webhook_held),
            is_open: watch::Sender::new(false),
            problems: Mutex::default(),
        })
    }

    /// The other pods.
    pub(crate) fn peers(&self) -> Arc<Peers> {
        Arc::clone(&self.peers)
    }

    /// The shards of the controller. `None` if its config has no webhook any more.
    pub(super) fn siblings(&self) -> Option<Arc<ControllerShards>> {
        self.siblings.borrow().clone()
    }
}

impl Inbound {
    pub(crate) fn new(webhook: &Arc<Webhook>) -> Rc<Self> {
        let tasks = Tasks::default();
        Rc::new(Self {
            webhook: Arc::clone(webhook),
            operator: WebhookClient::new(webhook.operator.clone(), tasks.clone()),
            links: webhook.tls.clone().map(|tls| PeerPool::new(Arc::clone(&webhook.peers), tls)),
            tasks,
        })
    }

    /// Ends its connections; returns how many of their tasks panicked.
    pub(crate) fn end(&self) -> u64 {
        self.tasks.end() + self.links.as_ref().map_or(0, PeerPool::end)
    }
}
