//! One request, from its head to the head of its response.

mod answer;
mod authority;
mod body;
mod decision;
mod delete;
mod election;
mod fence;
mod follow;
mod present;
mod related;
mod returning;
mod upgrade;

use std::{pin::pin, rc::Rc, sync::Arc};

use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version, header, request};
use http_body_util::Full;
use tokio::sync::oneshot;

use self::{
    answer::{Answer, Follow, Stop, bad_target, body_kind},
    body::WholeBody,
    decision::{Decision, decide, no_policy},
    election::Election,
    follow::follow,
    upgrade::websocket,
};
use super::{
    collection::Collection,
    metrics::Leg,
    outcome::{Decided, Ended, RequestRecord},
    policy_store::InFlightGuard,
    shared::Pair,
    streams::{Backing, ListBody, ReplyBody, WatchBody, refuse},
    upstream::{
        Broken, ClientBody, ClientContext, RequestBody, SavedRequest, UpstreamBody,
        strip_hop_by_hop, understood, with_target,
    },
};
use ctrlmesh_policy::{
    GroupResource, Pushed, Refusal, Refused, RequestAction, Restriction, Verdict, Write,
};
use ctrlmesh_wire::{RequestInfo, Verb, name};

/// Answers one request. An error ends the client's stream as the upstream's end would have.
pub(super) async fn serve(
    pair: Rc<Pair>,
    mut request: Request<ClientBody>,
) -> Result<Response<ReplyBody>, Broken> {
    let mut access = RequestRecord::begin(&pair.worker.requests, Leg::OUTBOUND, pair.id);
    let accept = request.headers().get(header::ACCEPT).cloned();
    let offered = match websocket::offered(&mut request, &mut access) {
        Ok(offered) => offered,
        Err(refused) => return Ok(refuse(&refused, accept.as_ref(), access)),
    };
    let mut under_way = None;
    let answered = answer(&pair, request, &mut access, &mut under_way).await;
    if let Some(under_way) = under_way.filter(|_| is_end_known(&answered)) {
        under_way.end();
    }
    let reply = match answered {
        Ok(answer) => deliver(&pair, answer, access),
        Err(Stop::Answered(answer)) => deliver(&pair, *answer, access),
        Err(Stop::Refused(refused)) => refuse(&refused, accept.as_ref(), access),
        Err(Stop::Broken(broken)) => {
            access.ended = Ended::UpstreamBroken;
            return Err(broken);
        }
    };
    Ok(match offered {
        Some(offered) => websocket::switch(&pair, reply, offered, accept.as_ref()),
        None => reply,
    })
}

/// Whether a request has taken effect, or will not: the API server answered, or nothing was sent.
fn is_end_known(answered: &Result<Answer, Stop>) -> bool {
    match answered {
        Ok(_) | Err(Stop::Answered(_)) => {
            code(answered).is_some_and(|code| !code.is_server_error())
        }
        Err(Stop::Refused(refused)) => refused.refusal != Refusal::HandedOver,
        Err(Stop::Broken(_)) => false,
    }
}

/// Answers one request: decides about it, and begins it under the policy in force.
async fn answer(
    pair: &Rc<Pair>,
    mut request: Request<ClientBody>,
    access: &mut RequestRecord,
    under_way: &mut Option<Arc<InFlightGuard>>,
) -> Result<Answer, Stop> {
    if pair.upstream.is_h2() {
        authority::complete(&mut request, &pair.upstream.name)?;
    }
    let uri = request.uri().clone();
    let info = RequestInfo::parse(request.method(), uri.path(), uri.query())
        .map_err(|error| Refusal::BadRequestLine.because(error))?;
    access.is_about(&info);
    let controller = pair.worker.shared.policy_store.controller();
    controller.observed.note(&pair.worker.known_requests, &info);
    let own = ClientContext { uri: &uri, headers: request.headers() };
    let decision = decide(pair, &info, own).await;
    let _place = request.body_mut().take_room(&pair.worker.shared.uploads)?;
    let own = ClientContext { uri: &uri, headers: request.headers() };
    let Some((decision, verdict)) = begin(pair, &info, own, decision, under_way).await? else {
        return pass(pair, request).await;
    };
    access.epoch = decision.active.epoch;
    if !decision.may_be_lock(&info) {
        fence::settle(pair, &info, &decision, verdict)?;
    }
    if under_way.is_none() && decision.is_apart(&info) {
        // It may last for hours, like a request that is sent to a pod: no move waits for it.
        drop(decision);
        return pass(pair, request).await;
    }
    match under_way.as_ref().filter(|begun| !begun.is_read()) {
        Some(write) => {
            request.extensions_mut().insert(Arc::clone(write));
            let answering = answer_about(pair, request, &info, &uri, &decision, access);
            Box::pin(in_turn(answering, write)).await
        }
        None => answer_about(pair, request, &info, &uri, &decision, access).await,
    }
}

/// Answers a write, or breaks it off if it takes longer than an API server allows while its boundary
/// moves: another shard waits for its end.
async fn in_turn(
    answering: impl Future<Output = Result<Answer, Stop>>,
    write: &InFlightGuard,
) -> Result<Answer, Stop> {
    tokio::select! {
        answered = answering => answered,
        () = write.overdue() => {
            let why = "the API server has not answered for a minute, and the boundary of the shard \
                       has moved: it is unknown whether this took effect";
            Err(Refusal::HandedOver.because(why).into())
        }
    }
}

/// Answers one request, and records what it shows of elections.
async fn answer_about(
    pair: &Rc<Pair>,
    mut request: Request<ClientBody>,
    info: &RequestInfo<'_>,
    uri: &Uri,
    decision: &Decision,
    access: &mut RequestRecord,
) -> Result<Answer, Stop> {
    let elections = &pair.worker.shared.policy_store.controller().elections;
    elections.begin();
    let election = Election::of(info, &decision.active.sharding, &mut request);
    let answered = act(pair, request, info, uri, decision, access).await;
    if let (Some(election), Some(code)) = (election, code(&answered)) {
        election.answered(elections, code);
    }
    answered
}

/// The status of an answer; `None` if there is none.
fn code(answered: &Result<Answer, Stop>) -> Option<StatusCode> {
    match answered {
        Ok(answer) => Some(answer.reply.status()),
        Err(Stop::Answered(answer)) => Some(answer.reply.status()),
        Err(_) => None,
    }
}

/// Answers one request as was decided. Futures that most requests do not need are boxed: that of each
/// is copied when its task starts.
async fn act(
    pair: &Rc<Pair>,
    mut request: Request<ClientBody>,
    info: &RequestInfo<'_>,
    uri: &Uri,
    decision: &Decision,
    access: &mut RequestRecord,
) -> Result<Answer, Stop> {
    let Decision { active, action } = decision;
    if matches!(action, RequestAction::Watch(_)) {
        let own = ClientContext { uri, headers: request.headers() };
        Box::pin(related::look(pair, info, action, own, active)).await;
    }
    let mut rewrite = active.sharding.rewrite(action, info)?;
    if action.restriction().is_some() {
        access.is_of(request.headers());
    }
    let mut collection = collection(pair, info, decision, uri, &mut request)?;
    let own = ClientContext { uri, headers: request.headers() };
    let mut returned = None;
    if let Some(collection) = &mut collection {
        let may_resume = collection.may_resume(&mut pair.grants.borrow_mut());
        if !may_resume {
            returned = Some(Box::pin(returning::come_back(pair, info, own, collection)).await?);
        } else if info.method == Method::GET {
            Box::pin(present::settle(pair, info, own, collection)).await?;
        }
    }
    let mut has_pushed = false;
    if let Some(restriction) = action.pushed_narrow(info) {
        let asked = understood(&pair.upstream, info, &restriction.filter, own);
        let (pushed, how) = Box::pin(asked).await;
        has_pushed = pushed != Pushed::default();
        rewrite.push(&pushed, &info.options);
        pair.worker.shared.metrics.count_pushdown(how);
    }
    let target = rewrite.target(info);
    access.decided = decided(action, target.is_some());
    if let Some(target) = target {
        *request.uri_mut() = with_target(uri.clone(), &target).map_err(bad_target)?;
    }
    match (action, info.resource()) {
        (RequestAction::DeleteCollection(Restriction { filter: share, .. }), Some(resource))
            if share.is_each() =>
        {
            Box::pin(delete::judged(pair, request, resource, share, active)).await
        }
        (RequestAction::Write(Write { lock: Some(place), .. }), _) if place.is_in_body() => {
            Box::pin(send_renamed(pair, request, info, decision, access)).await
        }
        (RequestAction::Write(_), _) if fence::needs_a_name(pair, info, decision) => {
            Box::pin(send_named(pair, request, info, decision)).await
        }
        (RequestAction::List(_) | RequestAction::Watch(_), resource) => {
            let answer = pass(pair, request).await?;
            // What an API server says of a selector that it does not have.
            let is_refused = answer.reply.status() == StatusCode::BAD_REQUEST;
            if let (Some(resource), true) = (resource, has_pushed && is_refused) {
                pair.upstream.understood.forget(&GroupResource::of(resource));
            }
            Box::pin(follow(pair, answer, action, collection, returned)).await
        }
        _ => pass(pair, request).await,
    }
}

/// The collection of a list or watch, whose body is followed.
fn collection(
    pair: &Pair,
    info: &RequestInfo<'_>,
    decision: &Decision,
    uri: &Uri,
    request: &mut Request<ClientBody>,
) -> Result<Option<Collection>, Stop> {
    let (restriction, asked) = match &decision.action {
        RequestAction::List(restriction) => (restriction, None),
        RequestAction::Watch(restriction) => (restriction, watch(uri, request.headers_mut())),
        // An upgrade would show more than a head.
        RequestAction::Head(_) if info.verb == Verb::Watch => {
            ignore_upgrade(request.headers_mut());
            return Ok(None);
        }
        _ => return Ok(None),
    };
    let Some(resource) = info.resource() else { return Ok(None) };
    let positions = pair.upstream.server.positions.get().ok_or_else(no_policy)?;
    let position = positions.of(&GroupResource::of(resource));
    let mut collection = Collection::new(info, restriction, position, &decision.active);
    pair.worker.shared.policy_store.has_asked(Some(collection.key));
    collection.asked = asked;
    Ok(Some(collection))
}

/// Begins the request under the policy in force, and judges it: another policy than that of the decision makes
/// another decision. Discovery, health and version need no policy; everything else does.
async fn begin(
    pair: &Pair,
    info: &RequestInfo<'_>,
    own: ClientContext<'_>,
    decision: Option<Decision>,
    under_way: &mut Option<Arc<InFlightGuard>>,
) -> Result<Option<(Decision, Verdict)>, Stop> {
    if info.resource().is_none() {
        return Ok(decision.map(|decision| (decision, Verdict::Exempt)));
    }
    let is_read = info.method == Method::GET || info.method == Method::HEAD;
    let begun = pair.worker.shared.policy_store.begin_request(is_read);
    let (active, begun) = begun.ok_or_else(no_policy)?;
    let decision = match decision {
        Some(decision) if Arc::ptr_eq(&decision.active, &active) => decision,
        _ => Box::pin(Decision::under(active, pair, info, own)).await,
    };
    let (verdict, is_waited_for) = match is_read {
        true => (Verdict::Exempt, true),
        false => fence::judge(pair, info, &decision),
    };
    if info.verb != Verb::Watch && is_waited_for {
        *under_way = Some(Arc::new(begun));
    } else {
        // A watch ends when it likes, and is brought over; other writes are of no shard.
        begun.end();
    }
    Ok(Some((decision, verdict)))
}

fn decided(action: &RequestAction, is_rewritten: bool) -> Decided {
    match action.restriction() {
        Some(Restriction { scope: Some(_), .. }) => Decided::Scoped,
        _ if is_rewritten => Decided::Renamed,
        _ => Decided::Passed,
    }
}

/// The request of a watch, or `None` if it is too long to be kept. Its events are read one by one,
/// so they must not be compressed.
fn watch(uri: &Uri, headers: &mut HeaderMap) -> Option<SavedRequest> {
    ignore_upgrade(headers);
    headers.remove(header::ACCEPT_ENCODING);
    SavedRequest::of(uri, headers)
}

/// Answers in HTTP whatever protocol the client offers, as RFC 9110 section 7.8 allows: clients that
/// ask for WebSocket first go on in HTTP after a 200, and give up after an error.
fn ignore_upgrade(headers: &mut HeaderMap) {
    headers.remove(header::UPGRADE);
}

/// Sends a request upstream. A write for which a move waits goes on when its client goes away, so that its end
/// is known: a controller that ends with a write under way would hold up the move for minutes.
async fn send(
    pair: &Rc<Pair>,
    mut request: Request<RequestBody>,
) -> Result<Response<UpstreamBody>, Broken> {
    let Some(write) = request.extensions_mut().remove::<Arc<InFlightGuard>>() else {
        return pair.upstream.send(request).await;
    };
    let (mut answer, answered) = oneshot::channel();
    let sender = Rc::clone(pair);
    pair.writes.spawn(async move {
        let mut sending = pin!(sender.upstream.send(request));
        let reply = tokio::select! {
            reply = &mut sending => Some(reply),
            () = answer.closed() => sender.without_client(&write, sending).await,
        };
        if let Some(Ok(reply)) = &reply
            && !reply.status().is_server_error()
        {
            write.end();
        }
        // No one may be there to take it.
        if let Some(reply) = reply {
            drop(answer.send(reply));
        }
    });
    answered.await.unwrap_or_else(|gone| Err(Broken::Upstream(gone.into())))
}

/// Sends the request upstream as it is now.
async fn pass(pair: &Rc<Pair>, mut request: Request<ClientBody>) -> Result<Answer, Stop> {
    let upgrade = is_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
    let (mut head, body) = request.into_parts();
    let is_h2 = pair.upstream.is_h2();
    strip_hop_by_hop(&mut head.headers, is_h2 || upgrade.is_some());
    let request = Request::from_parts(head, RequestBody::Left(body));
    pair.is_upgrading.set(upgrade.is_some());
    let mut reply = send(pair, request).await?;
    let switched = reply.status() == StatusCode::SWITCHING_PROTOCOLS;
    pair.is_upgrading.set(switched);
    strip_hop_by_hop(reply.headers_mut(), is_h2 || switched);
    let mut answer = Answer::from(reply);
    if let (Some(client), true) = (upgrade, switched) {
        answer.follow = Follow::Splice(client);
    }
    Ok(answer)
}

/// Sends a write that may name a lock in its body.
async fn send_renamed(
    pair: &Rc<Pair>,
    request: Request<ClientBody>,
    info: &RequestInfo<'_>,
    decision: &Decision,
    access: &mut RequestRecord,
) -> Result<Answer, Stop> {
    let sharding = &decision.active.sharding;
    let kind = body_kind(request.headers());
    let (mut head, mut body) = read_whole(pair, request).await?;
    // The API server refuses a content type that it has no decoder for.
    let renamed = match kind {
        Some(kind) => sharding.rename_in_body(info, kind, body.as_ref()).map_err(Refused::from)?,
        None => None,
    };
    let is_lock = renamed.as_ref().is_some_and(|renamed| renamed.lock.is_some());
    if decision.may_be_lock(info) && !is_lock {
        fence::settle_later(pair, info, decision)?;
    }
    if !is_lock && fence::needs_a_name(pair, info, decision) {
        fence::settle_name(pair, info, decision, kind, body.as_ref())?;
    }
    let mut created = None;
    if let Some(renamed) = renamed {
        created = renamed.lock.filter(|_| info.verb == Verb::Create);
        access.decided = Decided::Renamed;
        body.bytes = renamed.body;
        if let Some(target) = renamed.target {
            head.uri = with_target(head.uri, &target).map_err(bad_target)?;
        }
    }
    let reply = send_whole(pair, head, body).await?;
    if let Some(lock) = created {
        pair.worker.shared.policy_store.controller().elections.answered(
            &lock,
            true,
            reply.status(),
        );
    }
    Ok(reply.into())
}

/// Sends a create, if its body names its object.
async fn send_named(
    pair: &Rc<Pair>,
    request: Request<ClientBody>,
    info: &RequestInfo<'_>,
    decision: &Decision,
) -> Result<Answer, Stop> {
    let kind = body_kind(request.headers());
    let (head, body) = read_whole(pair, request).await?;
    fence::settle_name(pair, info, decision, kind, body.as_ref())?;
    Ok(send_whole(pair, head, body).await?.into())
}

/// The head of a request as it is sent upstream, and its body.
async fn read_whole(
    pair: &Pair,
    request: Request<ClientBody>,
) -> Result<(request::Parts, WholeBody), Refused> {
    let (mut head, body) = request.into_parts();
    strip_hop_by_hop(&mut head.headers, false);
    head.headers.remove(header::CONTENT_LENGTH);
    let body = WholeBody::whole(&pair.worker.shared.bodies, body, name::MAX_BODY).await?;
    Ok((head, body))
}

/// Sends a request upstream whose body was read.
async fn send_whole(
    pair: &Rc<Pair>,
    head: request::Parts,
    body: WholeBody,
) -> Result<Response<UpstreamBody>, Stop> {
    let request = Request::from_parts(head, RequestBody::Right(Full::new(body.into())));
    let mut reply = send(pair, request).await?;
    strip_hop_by_hop(reply.headers_mut(), false);
    Ok(reply)
}

/// The upstream's response on its way to the client.
fn deliver(pair: &Rc<Pair>, answer: Answer, mut access: RequestRecord) -> Response<ReplyBody> {
    let Answer { mut reply, follow } = answer;
    access.answered(reply.status());
    let body = match follow {
        Follow::Splice(client) => {
            access.is_stream = true;
            let upstream = hyper::upgrade::on(&mut reply);
            upgrade::splice(pair, client, upstream, access);
            return reply.map(|()| ReplyBody::empty());
        }
        Follow::Watch(body, collection, encoding, events, prelude) => {
            access.is_stream = true;
            let watch = WatchBody::new(pair, body, collection, encoding, events, prelude);
            Backing::Watch(Box::new(watch))
        }
        Follow::List(body, collection, encoding) => {
            let compression = reply.headers().get(header::CONTENT_ENCODING);
            let list = ListBody::new(pair, body, collection, encoding, compression);
            Backing::List(Box::new(list))
        }
        Follow::JudgedList(list) => Backing::JudgedList(list),
        Follow::Pass(body) => Backing::Passed(body),
        Follow::Whole(body) => Backing::Whole(Full::new(body)),
    };
    let body = ReplyBody::new(body, access).followed_by(pair.stalls.follower());
    reply.map(|()| body)
}

fn is_upgrade(request: &Request<ClientBody>) -> bool {
    request.version() == Version::HTTP_11 && request.headers().contains_key(header::UPGRADE)
}
