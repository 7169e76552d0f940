//! One request of the inbound leg, from its head to the head of its response.

use std::{rc::Rc, sync::Arc, time::Duration};

use futures_util::future::join;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::Full;
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::{
    head::Hop,
    held::{Known, ReviewRoute, in_one_piece, known, known_in},
    operator::{Failed, NotSent, Outgoing, WebhookTarget},
    state::Inbound,
};
use crate::{
    metrics::Leg,
    outcome::{Decided, Ended, How, RequestRecord, ReviewRecord},
    peers::{Failed as PeerFailed, Peer, PeerPicker},
    shared::Worker,
    stall::Stalls,
    streams::{Backing, ReplyBody, refuse},
    upstream::{Broken, ClientBody, strip_hop_by_hop},
};
use ctrlmesh_api::OwnerDown;
use ctrlmesh_base::cluster::chain;
use ctrlmesh_net::drain::Draining;
use ctrlmesh_policy::{ControllerShards, Refusal, Refused};
use ctrlmesh_wire::{
    review::{limit, response},
    status::{Reason, Status},
};

/// The time of a review whose query has no `timeout`.
const LIMIT: Duration = Duration::from_secs(30);
/// The part of a review's time that is left for an answer of ours, if no pod takes it.
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);
/// Timeout of a place on a connection to a peer.
const REACHED_WITHIN: Duration = Duration::from_secs(2);

/// A client's connection, as its requests use it.
pub(super) struct Client {
    pub(super) id: u64,
    pub(super) leg: Leg,
    pub(super) worker: Rc<Worker>,
    pub(super) inbound: Rc<Inbound>,
    /// The way to the operator.
    pub(super) target: WebhookTarget,
    pub(super) stalls: Rc<Stalls>,
    pub(super) draining: Draining,
}

/// The reason why a request ends without a webhook server's response.
#[derive(derive_more::From)]
enum Stop {
    Refused(Refused),
    Broken(Broken),
}

type Answer = Response<Backing>;

/// Answers one request. An error ends the client's stream as the operator's end would have.
pub(super) async fn serve(
    client: Rc<Client>,
    request: Request<ClientBody>,
) -> Result<Response<ReplyBody>, Broken> {
    let mut access = RequestRecord::begin(&client.worker.requests, client.leg, client.id);
    let time = request.uri().query().and_then(limit);
    let by = Instant::now() + time.unwrap_or(LIMIT);
    let answered = match timeout_at(by, answer(&client, request, &mut access)).await {
        Ok(answered) => answered,
        Err(_) => {
            let why = "the webhook server did not answer within the timeout of the review";
            Err(Refusal::ReviewTimeout.because(why).into())
        }
    };
    match answered {
        Ok(answer) => Ok(deliver(&client, answer, access)),
        Err(Stop::Refused(refused)) => {
            access.is_answered(How::Failed);
            Ok(closing(&client, refuse(&refused, None, access)))
        }
        Err(Stop::Broken(broken)) => {
            access.ended = Ended::UpstreamBroken;
            access.is_answered(How::Failed);
            Err(broken)
        }
    }
}

/// Answers one request: by its review's owner, if it is one.
async fn answer(
    client: &Client,
    mut request: Request<ClientBody>,
    access: &mut RequestRecord,
) -> Result<Answer, Stop> {
    let hop = Hop::take(request.headers_mut()).filter(|_| client.leg == Leg::PEER);
    let received_by = hop.map(|hop| client.target.of_received(&hop, &request));
    let target = received_by.as_ref().unwrap_or(&client.target);
    let webhook = &client.inbound.webhook;
    let (Some(siblings), true) = (webhook.siblings(), may_be_review(&request)) else {
        access.verb = verb(request.method());
        return here(client, target, request).await;
    };
    if received_by.is_some()
        && let Some(piece) = in_one_piece(request.body_mut(), &webhook.held).await?
    {
        return received_whole(client, target, request, &piece, &siblings, access).await;
    }
    let Some(known) = known(request.body_mut(), &siblings, &webhook.held).await? else {
        access.verb = verb(request.method());
        return here(client, target, request).await;
    };
    access.is_review(&known, received_by.is_some());
    if received_by.is_some() {
        return received(client, target, request).await;
    }
    match known.whose {
        ReviewRoute::Own | ReviewRoute::Unclear | ReviewRoute::Unowned => {
            or_beside(client, request, &siblings, access).await
        }
        ReviewRoute::Sibling => there(client, request, &known, &siblings, access).await,
        ReviewRoute::Allowed => Ok(made(&known, None, access)),
        ReviewRoute::Denied => {
            let message = format!(
                "ctrlmesh: no shard of the controller owns this object ({})",
                known.resource
            );
            Ok(made(&known, Some(&Status::new(Reason::Forbidden, message)), access))
        }
        ReviewRoute::Unknown => Err(owner_unknown(&siblings).into()),
    }
}

/// Whether a request may be a review: the API server sends them as JSON.
fn may_be_review(request: &Request<ClientBody>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_json = kind.is_some_and(|kind| {
        kind.split(|byte| *byte == b';')
            .next()
            .is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"application/json"))
    });
    request.method() == Method::POST
        && is_json
        && !request.headers().contains_key(header::CONTENT_ENCODING)
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "post",
        _ => "unknown",
    }
}

/// Sends a request to the operator of this pod.
async fn here(
    client: &Client,
    target: &WebhookTarget,
    request: Request<ClientBody>,
) -> Result<Answer, Stop> {
    match sent_here(client, target, Outgoing::of(request)).await {
        Ok(answer) => Ok(answer),
        Err(Failed::Broken(broken)) => Err(broken.into()),
        Err(Failed::NotSent(why, _)) => Err(webhook_down(&why).into()),
    }
}

/// Sends the review of another pod to the operator of this one. Meanwhile it reads the object of the review, for
/// the log and the counts alone.
async fn received_whole(
    client: &Client,
    target: &WebhookTarget,
    request: Request<ClientBody>,
    piece: &[u8],
    siblings: &ControllerShards,
    access: &mut RequestRecord,
) -> Result<Answer, Stop> {
    access.verb = verb(request.method());
    let reading = async {
        // The request leaves first.
        yield_now().await;
        if let Some(known) = known_in(piece, siblings) {
            access.is_review(&known, true);
        }
    };
    join(received(client, target, request), reading).await.0
}

/// Sends the review of another pod to the operator of this one. If that has just ended, the stream is
/// refused (RFC 9113 section 8.7), and the other pod may choose a third.
async fn received(
    client: &Client,
    target: &WebhookTarget,
    request: Request<ClientBody>,
) -> Result<Answer, Stop> {
    match sent_here(client, target, Outgoing::of_review(request)).await {
        Ok(answer) => Ok(answer),
        Err(Failed::Broken(broken)) => Err(broken.into()),
        Err(Failed::NotSent(NotSent::Unreachable(_) | NotSent::Closed, _)) => {
            Err(Broken::unsent().into())
        }
        Err(Failed::NotSent(why, _)) => Err(webhook_down(&why).into()),
    }
}

async fn sent_here(
    client: &Client,
    target: &WebhookTarget,
    outgoing: Outgoing,
) -> Result<Answer, Failed> {
    let sent = client.inbound.operator.send(target, outgoing).await;
    match &sent {
        Ok(_) | Err(Failed::Broken(_)) => {}
        Err(Failed::NotSent(why, _)) => client.inbound.webhook.report_operator(why),
    }
    sent.map(|reply| reply.map(Backing::Passed))
}

/// Sends a review to the operator of this pod; if that takes no requests, to another pod of its
/// shard.
async fn or_beside(
    client: &Client,
    request: Request<ClientBody>,
    siblings: &ControllerShards,
    access: &mut RequestRecord,
) -> Result<Answer, Stop> {
    let (why, outgoing) =
        match sent_here(client, &client.target, Outgoing::of_review(request)).await {
            Ok(answer) => return Ok(answer),
            Err(Failed::Broken(broken)) => return Err(broken.into()),
            Err(Failed::NotSent(why, outgoing)) => (why, outgoing),
        };
    let shard = siblings.names().next().unwrap_or_default();
    let Some(outgoing) = outgoing else { return Err(webhook_down(&why).into()) };
    // The listener is there only while the operator is, so that this one has just ended.
    let was_ready = matches!(why, NotSent::Unreachable(_)).then(Instant::now);
    match beside(client, shard, *outgoing, was_ready).await {
        Ok(answer) => {
            access.is_forwarded();
            Ok(answer)
        }
        Err(NotForwarded { is_lost: true, why, .. }) => Err(broken(shard, &why).into()),
        Err(_) => Err(webhook_down(&why).into()),
    }
}

/// Sends a review to a pod of the shard that owns its object. If there is no such pod, `ownerDown` decides the
/// answer.
async fn there(
    client: &Client,
    request: Request<ClientBody>,
    known: &Known,
    siblings: &ControllerShards,
    access: &mut RequestRecord,
) -> Result<Answer, Stop> {
    let shard = known.shard.as_deref().unwrap_or_default();
    let failed = match beside(client, shard, Outgoing::of_review(request), None).await {
        Ok(answer) => {
            access.is_forwarded();
            return Ok(answer);
        }
        Err(failed) => failed,
    };
    match (failed.outgoing, siblings.webhook().owner_down) {
        (Some(outgoing), OwnerDown::Any) => match sent_here(client, &client.target, outgoing).await
        {
            Ok(answer) => {
                access.is_answered(How::Here);
                Ok(answer)
            }
            Err(Failed::Broken(broken)) => Err(broken.into()),
            Err(Failed::NotSent(why, _)) => Err(webhook_down(&why).into()),
        },
        _ if failed.is_lost => Err(broken(shard, &failed.why).into()),
        _ => Err(Refusal::OwnerDown
            .because(format!(
                "no pod of shard {shard}, which owns the object, answers: {}",
                failed.why
            ))
            .into()),
    }
}

/// The reason why no pod of a shard answered.
struct NotForwarded {
    why: String,
    /// Whether a pod may have taken the review.
    is_lost: bool,
    /// The request, if nothing of it was sent.
    outgoing: Option<Outgoing>,
}

/// Sends a request to a pod of a shard. If that pod was not reached, the request goes to another pod, or to the
/// same one after a rest. `was_ready` is the time at which this pod was one of them.
async fn beside(
    client: &Client,
    shard: &str,
    mut outgoing: Outgoing,
    was_ready: Option<Instant>,
) -> Result<Answer, NotForwarded> {
    let Inbound { webhook, links, .. } = &*client.inbound;
    let mut why = "it has none that is ready".to_owned();
    let Some(links) = links else { return Err(NotForwarded::unsent(why, outgoing)) };
    Hop { offers_h2: client.target.offers_h2 }.put(&mut outgoing.head.headers);
    let time = outgoing.head.uri.query().and_then(limit).unwrap_or(LIMIT);
    let wait = time.saturating_sub(ANSWERED_WITHIN);
    let mut search = PeerPicker::new(&webhook.peers, shard, was_ready, wait);
    while let Some(chosen) = search.next().await {
        let peer = Arc::clone(chosen.peer());
        let failed = match links.line(chosen, Instant::now() + REACHED_WITHIN).await {
            Err(reason) => PeerFailed::Unsent(reason),
            Ok(line) => {
                let again = outgoing.copy();
                match line.send(outgoing.into_request(true)).await {
                    Ok(reply) => return Ok(reply.map(Backing::Peer)),
                    Err(failed) => {
                        let is_lost = matches!(failed, PeerFailed::Lost(_));
                        let Some(again) = again.filter(|_| !is_lost) else {
                            let why = count_failure(client, &peer, failed);
                            return Err(NotForwarded { why, is_lost, outgoing: None });
                        };
                        outgoing = again;
                        failed
                    }
                }
            }
        };
        why = count_failure(client, &peer, failed);
        search.missed(peer);
    }
    Hop::take(&mut outgoing.head.headers);
    Err(NotForwarded::unsent(why, outgoing))
}

/// Counts a failure; returns it for people.
fn count_failure(client: &Client, peer: &Peer, failed: PeerFailed) -> String {
    let failures = &client.worker.shared.metrics.webhook_peer_failures;
    failures.get_or_create_owned(&[("reason", failed.reason().label())]).inc();
    format!("{} {failed}", peer.identity.name())
}

impl NotForwarded {
    fn unsent(why: String, outgoing: Outgoing) -> Self {
        Self { why, is_lost: false, outgoing: Some(outgoing) }
    }
}

/// A review that is answered by us.
fn made(known: &Known, denied: Option<&Status>, access: &mut RequestRecord) -> Answer {
    access.decided = Decided::Answered;
    let body = response(&known.api_version, &known.uid, denied);
    let mut answer = Response::new(Backing::Whole(Full::new(body)));
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}

fn webhook_down(why: &NotSent) -> Refused {
    let why = chain(why);
    Refusal::WebhookDown.because(format!("the webhook server of this pod {why}"))
}

fn broken(shard: &str, why: &str) -> Refused {
    Refusal::ReviewBroken
        .because(format!("a pod of shard {shard} did not finish its answer: {why}"))
}

fn owner_unknown(siblings: &ControllerShards) -> Refused {
    let broken = siblings.unreadable().iter().map(|it| it.why.as_str());
    let why = broken.collect::<Vec<_>>().join("; ");
    Refusal::OwnerUnknown.because(format!(
        "no shard that can be read owns the object, and others cannot be read: {why}"
    ))
}

/// A response on its way to the client.
fn deliver(client: &Client, mut answer: Answer, mut access: RequestRecord) -> Response<ReplyBody> {
    strip_hop_by_hop(answer.headers_mut(), false);
    access.answered(answer.status());
    let follower = client.stalls.follower();
    closing(client, answer.map(|body| ReplyBody::new(body, access).followed_by(follower)))
}

/// The response, which is the last of its connection if a drain has begun or no connections are taken.
fn closing(client: &Client, mut reply: Response<ReplyBody>) -> Response<ReplyBody> {
    let is_open = *client.inbound.webhook.is_open.borrow();
    if client.draining.deadline().is_some() || !is_open {
        reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    reply
}

impl RequestRecord {
    fn is_review(&mut self, known: &Known, is_received: bool) {
        let is_foreign = known.whose == ReviewRoute::Sibling;
        let how = match (is_received, known.whose) {
            (true, _) if is_foreign => How::Disagreed,
            (true, _) => How::Received,
            (false, ReviewRoute::Own) => How::Here,
            (false, ReviewRoute::Unclear) => How::Unknown,
            (false, ReviewRoute::Unowned | ReviewRoute::Allowed | ReviewRoute::Denied) => {
                How::Unowned
            }
            (false, ReviewRoute::Sibling | ReviewRoute::Unknown) => How::Failed,
        };
        self.verb = known.verb;
        self.resource = Some(known.resource.clone());
        self.subresource.clone_from(&known.subresource);
        self.namespace.clone_from(&known.namespace);
        let (uid, shard) = (known.uid.clone(), known.shard.clone());
        self.review = Some(Box::new(ReviewRecord { uid, shard, how }));
    }

    fn is_answered(&mut self, how: How) {
        if let Some(review) = &mut self.review {
            review.how = how;
        }
    }

    fn is_forwarded(&mut self) {
        self.is_answered(How::Forwarded);
        self.decided = Decided::Forwarded;
    }
}
