//! A watch whose client asks for WebSocket, on the client's leg alone: upstream it is the plain
//! watch that is left without the handshake.

use std::{rc::Rc, sync::Arc};

use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::{
    outcome::RequestRecord,
    shared::Pair,
    streams::{ReplyBody, WebSocket, refuse, send_events},
    upstream::ClientBody,
};
use ctrlmesh_policy::{Refusal, Refused};
use ctrlmesh_wire::{
    RequestInfo, Verb,
    media::Encoding,
    websocket::{Events, Offer},
};

/// A client that goes on in WebSocket after a 101.
pub(in crate::request) struct Offered {
    offer: Offer,
    client: OnUpgrade,
}

/// Takes the handshake of a watch out of its request. `None` if there is none: an offer of another
/// protocol is ignored, as RFC 9110 section 7.8 allows, and so the API server does.
pub(in crate::request) fn offered(
    request: &mut Request<ClientBody>,
    access: &mut RequestRecord,
) -> Result<Option<Offered>, Refused> {
    if request.version() != Version::HTTP_11
        || request.method() != Method::GET
        || !Offer::is_made(request.headers())
    {
        return Ok(None);
    }
    let uri = request.uri();
    match RequestInfo::parse(request.method(), uri.path(), uri.query()) {
        Ok(info) if info.verb == Verb::Watch => access.is_about(&info),
        _ => return Ok(None),
    }
    let offer = Offer::take(request.headers_mut())?;
    Ok(Some(Offered { offer, client: hyper::upgrade::on(request) }))
}

/// Switches to WebSocket if the watch has begun. Any other response is the client's in HTTP.
pub(in crate::request) fn switch(
    pair: &Rc<Pair>,
    mut reply: Response<ReplyBody>,
    offered: Offered,
    accept: Option<&HeaderValue>,
) -> Response<ReplyBody> {
    if reply.status() != StatusCode::OK {
        return reply;
    }
    let headers = reply.headers();
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let encoding = kind
        .and_then(Encoding::of_content_type)
        .filter(|_| !headers.contains_key(header::CONTENT_ENCODING));
    let Some(events) = encoding.and_then(Events::new) else {
        let why = "a watch over WebSocket has events in JSON or protobuf: ask for one of them, or \
                   watch over plain HTTP";
        let refused = Refusal::UnknownEncoding.because(why);
        return match reply.body_mut().take_access() {
            Some(access) => refuse(&refused, accept, access),
            None => reply,
        };
    };
    let Offered { offer, client } = offered;
    let mut watch = reply.into_body();
    watch.switched();
    pair.is_upgrading.set(true);
    let unfinished = Arc::clone(&pair.worker.shared.unfinished);
    pair.tasks.spawn(async move {
        if let Ok(client) = client.await {
            send_events(WebSocket::new(TokioIo::new(client)), watch, events, &unfinished).await;
        }
    });
    offer.accept().map(|()| ReplyBody::empty())
}
