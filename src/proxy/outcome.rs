//! Outcomes of connections and requests. Every exit of the pipeline is one of these values, and
//! here alone they become metrics and log lines.

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderMap, Method, Request, StatusCode, header};
use prometheus_client::metrics::gauge::Gauge;
use strum::{IntoStaticStr, VariantArray};

use super::metrics::{Leg, Metrics, RequestCounts, RequestLabels, ResourceLabel, code_class};
use ctrlmesh_net::{ClientAddr, addr::NotRedirected, close_tracker::PeerClosed};
use ctrlmesh_policy::{Epoch, Refusal};
use ctrlmesh_wire::RequestInfo;

/// The reason why a connection ended, and its metric label and log field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Closed {
    /// A peer closed it in an orderly way.
    Finished,
    Drained,
    NotTls,
    /// No complete ClientHello in time.
    HelloTimeout,
    /// The ClientHello exceeds what TLS allows.
    HelloTooLarge,
    /// The certificate is not there yet: the manager has not signed one.
    NoCertificate,
    /// The client named a host that the leaf does not cover.
    UnknownServerName,
    /// The client dialled our listener itself.
    DirectHit,
    /// The kernel does not know the original destination.
    NoOriginalDestination,
    /// A loop: our own upstream connection came back to us.
    Loop,
    Overloaded,
    /// The upstream does not accept connections or does not speak TLS.
    UpstreamUnreachable,
    UpstreamUntrusted,
    /// The client refused our certificate: it does not trust the mesh CA.
    ClientDistrusts,
    /// The client's handshake failed otherwise.
    ClientHandshake,
    ClientGone,
    /// The upstream connection broke while requests were open.
    UpstreamLost,
    /// A peer broke the HTTP protocol.
    Protocol,
    Panicked,
}

impl From<NotRedirected> for Closed {
    fn from(error: NotRedirected) -> Self {
        match error {
            NotRedirected::Direct(_) => Self::DirectHit,
            NotRedirected::Unknown(_) => Self::NoOriginalDestination,
        }
    }
}

impl Closed {
    /// The end of a connection whose client has said peer_closed or not. What we sent may have met the
    /// reset of a client that had closed: the kernel resets a connection that is closed over unread
    /// bytes.
    pub(super) fn after(self, peer_closed: &PeerClosed) -> Self {
        match self {
            Self::ClientGone if peer_closed.is_orderly() => Self::Finished,
            closed => closed,
        }
    }

    /// Advice for the administrator, or `None` if the label is enough.
    fn advice(self) -> Option<&'static str> {
        match self {
            Self::UpstreamUntrusted => Some(
                "the API server's certificate is not signed by --upstream-ca or is for another name",
            ),
            Self::ClientDistrusts => Some(
                "the client does not trust the mesh CA: it pins a certificate, reads another CA \
                 file, or started before the bundle was there",
            ),
            Self::NoCertificate => {
                Some("the manager has not signed a certificate yet: see /readyz")
            }
            Self::Loop => Some("the redirect rules do not exclude the proxy's uid"),
            Self::DirectHit => Some("clients must dial the API server, not the proxy"),
            _ => None,
        }
    }
}

/// Counts and logs the end of a connection.
pub(super) fn connection_closed(
    metrics: &Metrics,
    closed: Closed,
    from: Option<(Leg, ClientAddr)>,
) {
    if closed == Closed::Finished {
        return;
    }
    metrics.closed_connections.get_or_create_owned(&[("reason", closed.into_str())]).inc();
    if closed == Closed::Panicked {
        metrics.panics.inc();
    }
    let leg = from.map(|(leg, _)| leg.into_str());
    let client = from.map(|(_, client)| tracing::field::display(client));
    match closed.advice() {
        Some(advice) => {
            tracing::warn!(leg, client, reason = closed.into_str(), advice, "closed");
        }
        None => tracing::info!(leg, client, reason = closed.into_str(), "closed"),
    }
}

/// A connection or a long-lived response, counted for as long as this lives.
#[derive(Debug)]
pub(super) struct Live(Gauge);

impl Live {
    pub(super) fn connection(metrics: &Metrics, leg: Leg) -> Self {
        Self::of(metrics.connections.get_or_create_owned(&[("leg", leg.into_str())]))
    }

    pub(super) fn stream(metrics: &Metrics, kind: &'static str) -> Self {
        Self::of(metrics.streams.get_or_create_owned(&[("kind", kind)]))
    }

    fn of(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Decided {
    /// A request that was forwarded unchanged.
    Passed,
    /// A request that was narrowed to the shard.
    Scoped,
    /// A request that was changed to name the shard's own lock.
    Renamed,
    /// A review that another pod answered.
    Forwarded,
    /// A review that was answered as `unowned` says.
    Answered,
    Refused(Refusal),
}

/// The way in which a review is answered, and its metric label and log field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum How {
    /// By this pod: the object is its shard's, or no one's alone.
    Here,
    /// By this pod, since a fact that decides is not in the review, or it cannot be read.
    Unknown,
    /// By a pod of the shard that owns the object.
    Forwarded,
    /// By this pod, to which another sent it.
    Received,
    /// By this pod, to which another sent it, though by its own policy it is another shard's.
    Disagreed,
    /// As `unowned` says: no shard owns the object.
    Unowned,
    /// By a failure of ours.
    Failed,
}

/// The part of a request's record that a review has.
#[derive(Debug)]
pub(super) struct ReviewRecord {
    /// `request.uid`, which the API server's audit log has, too.
    pub(super) uid: Box<str>,
    /// The shard that owns the object, if one does.
    pub(super) shard: Option<Box<str>>,
    pub(super) how: How,
}

/// Most bytes of a `User-Agent` that are kept.
const MAX_AGENT: usize = 128;

/// The end of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Ended {
    Complete,
    /// The client went away or cancelled.
    ClientGone,
    UpstreamBroken,
    /// Ended by us with 410, for a policy change or an event that cannot be judged.
    Expired,
    Drained,
    /// Reset by us: it could not be parsed, its client left too much unread, or a spliced
    /// connection failed.
    Reset,
}

/// One request's record. It becomes one access line, one count and one duration when it is
/// dropped, whatever path led there.
#[derive(Debug)]
pub(super) struct RequestRecord {
    counts: Rc<RequestCounts>,
    started: Instant,
    leg: Leg,
    pub(super) connection: u64,
    pub(super) verb: &'static str,
    pub(super) resource: Option<Box<str>>,
    pub(super) subresource: Option<Box<str>>,
    pub(super) namespace: Option<Box<str>>,
    pub(super) epoch: Epoch,
    pub(super) decided: Decided,
    pub(super) is_stream: bool,
    pub(super) ended: Ended,
    pub(super) bytes_out: u64,
    pub(super) review: Option<Box<ReviewRecord>>,
    /// The `User-Agent` of a list or watch.
    agent: Option<Box<str>>,
    code: Option<StatusCode>,
    headers_after: Option<Duration>,
}

impl RequestRecord {
    /// Begins the record of a request that has arrived.
    pub(super) fn begin(counts: &Rc<RequestCounts>, leg: Leg, connection: u64) -> Self {
        Self {
            counts: Rc::clone(counts),
            started: Instant::now(),
            leg,
            connection,
            verb: "unknown",
            resource: None,
            subresource: None,
            namespace: None,
            epoch: Epoch::default(),
            decided: Decided::Passed,
            is_stream: false,
            ended: Ended::ClientGone,
            bytes_out: 0,
            review: None,
            agent: None,
            code: None,
            headers_after: None,
        }
    }

    /// Records the verb and the resource of the request.
    pub(super) fn is_about(&mut self, info: &RequestInfo<'_>) {
        self.verb = info.verb.as_str();
        if let Some(resource) = info.resource() {
            self.resource = Some((&*resource.resource).into());
            self.subresource = resource.subresource.as_deref().map(Into::into);
            self.namespace = resource.namespace.as_deref().map(Into::into);
        }
    }

    /// Records the client of a list or watch, which is notified if it has to list again.
    pub(super) fn is_of(&mut self, headers: &HeaderMap) {
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        self.agent = agent.map(|agent| agent.get(..MAX_AGENT).unwrap_or(agent).into());
    }

    /// Whether the client has to list again, since the boundary has moved.
    fn is_expired(&self) -> bool {
        self.ended == Ended::Expired || self.decided == Decided::Refused(Refusal::Expired)
    }

    /// Records the code: the response's head is known.
    pub(super) fn answered(&mut self, code: StatusCode) {
        self.code = Some(code);
        self.headers_after = Some(self.started.elapsed());
    }

    fn count(&self, took: Duration) {
        let code = self.code.map(|code| code.as_u16());
        let labels = RequestLabels {
            leg: self.leg,
            verb: self.verb,
            resource: match &self.resource {
                Some(resource) => self.counts.metrics.resource_label(resource),
                None => ResourceLabel::NONE,
            },
            code_class: code_class(code),
            decision: self.decided.into_str(),
        };
        let took = if self.is_stream { self.headers_after.unwrap_or(took) } else { took };
        self.counts.add(labels, took);
        if let Some(review) = &self.review {
            let (metrics, how) = (&self.counts.metrics, [("how", review.how.into_str())]);
            metrics.webhook_reviews.get_or_create_owned(&how).inc();
            let duration = metrics.webhook_review_duration.get_or_create_owned(&how);
            duration.observe(took.as_secs_f64());
        }
        if let Decided::Refused(refusal) = self.decided {
            let refusals = &self.counts.metrics.refusals;
            refusals.get_or_create_owned(&[("reason", refusal.label())]).inc();
        }
        if self.is_expired() {
            self.counts.metrics.count_expired(self.agent.as_deref());
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        self.count(took);
        let reason = match self.decided {
            Decided::Refused(refusal) => Some(refusal.label()),
            _ => None,
        };
        let review = self.review.as_deref();
        tracing::info!(
            target: "access",
            leg = self.leg.into_str(),
            connection = self.connection,
            verb = self.verb,
            resource = self.resource.as_deref(),
            subresource = self.subresource.as_deref(),
            namespace = self.namespace.as_deref(),
            review = review.map(|review| &*review.uid),
            shard = review.and_then(|review| review.shard.as_deref()),
            how = review.map(|review| review.how.into_str()),
            epoch = self.epoch.get(),
            decision = self.decided.into_str(),
            reason,
            agent = self.agent.as_deref().filter(|_| self.is_expired()),
            code = self.code.map(|code| code.as_u16()),
            bytes_out = self.bytes_out,
            headers_us = self.headers_after.map(micros),
            duration_us = micros(took),
            outcome = self.ended.into_str(),
        );
    }
}

/// The purpose of a request of our own on a client's behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub(super) enum Why {
    /// A probe of the part of a boundary that the API server understands.
    Pushdown,
    /// A read of discovery, for whether a resource is namespaced.
    Discovery,
    /// A list for the present version, which bounds the positions that we did not parse.
    Present,
    /// A list of the objects that change hands.
    Difference,
    /// A watch under another policy, in place of the client's.
    Watch,
    DeleteCollection,
    /// A page of metadata of a resource that a client begins to watch and no limit names.
    Related,
}

/// The record of one of our own requests. It becomes one count and one line for debugging when it
/// is dropped, whatever path led there.
#[derive(Debug)]
pub(super) struct OwnRequest {
    metrics: Arc<Metrics>,
    started: Instant,
    connection: u64,
    why: Why,
    method: Method,
    path: Box<str>,
    /// The code of the response, once its head is known.
    pub(super) code: Option<StatusCode>,
}

impl OwnRequest {
    /// Begins the record of a request that is sent.
    pub(super) fn begin<B>(
        metrics: &Arc<Metrics>,
        connection: u64,
        why: Why,
        request: &Request<B>,
    ) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            started: Instant::now(),
            connection,
            why,
            method: request.method().clone(),
            path: request.uri().path().into(),
            code: None,
        }
    }
}

impl Drop for OwnRequest {
    fn drop(&mut self) {
        let code = self.code.map(|code| code.as_u16());
        let why = self.why.into_str();
        let labels = [("why", why), ("code_class", code_class(code))];
        self.metrics.own_requests.get_or_create_owned(&labels).inc();
        tracing::debug!(
            connection = self.connection,
            why,
            method = self.method.as_str(),
            path = &*self.path,
            code,
            duration_us = micros(self.started.elapsed()),
            "own request",
        );
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
