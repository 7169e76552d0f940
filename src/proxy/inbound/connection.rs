//! A connection of the API server, or of a peer.

use std::{
    cell::Cell, convert::Infallible, future::pending, net::SocketAddr, pin::Pin, rc::Rc, sync::Arc,
    time::Duration,
};

use hyper::{server::conn::http1::Connection, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::server::ClientHello;
use rustls_pki_types::ServerName;
use tokio::{net::TcpStream, time::sleep};
use tokio_rustls::StartHandshake;

use super::{operator::WebhookTarget, review, review::Client, state::Inbound};
use crate::{
    legs::{Carried, ClientStream, Finish, drive, h1_server, h2_client},
    metrics::Leg,
    outcome::{Closed, Live},
    shared::{Tasks, Worker},
    stall::Stalls,
    tls::{answer_hello, read_hello},
    upstream::{ClientBody, Leftover},
};
use ctrlmesh_net::{
    capped_reads::CappedReads,
    close_tracker::CloseTracker,
    drain::Draining,
    peer::{PEER_NAME, Proof, peer_of},
    tls::{H2, HTTP_11},
};

/// Bytes of a head, and of a body that are read at once, in HTTP/1.1. Reviews have small heads, and the bytes
/// that are read ahead of a held review are not counted.
const READ_BUFFER: usize = 64 << 10;
/// Reviews at once on one connection of HTTP/2, as Go's servers take them.
const STREAMS: u32 = 250;
/// Time for the next request on a connection of HTTP/1.1 when the operator no longer listens. One that
/// was just opened is about to carry its first, which no client repeats.
const NEXT_REQUEST: Duration = Duration::from_secs(1);

/// Serves a client that dialled the webhook server at `at`, until one side ends. Returns how, and the
/// leg, which only the ClientHello shows.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    inbound: Rc<Inbound>,
    id: u64,
    stream: TcpStream,
    at: SocketAddr,
    draining: Draining,
) -> (Closed, Leg) {
    let hello = match read_hello(stream).await {
        Ok(hello) => hello,
        // A probe that only connects.
        Err(Closed::ClientGone) => return (Closed::Finished, Leg::INBOUND),
        Err(why) => return (why, Leg::INBOUND),
    };
    let is_peer = hello.client_hello().server_name() == Some(PEER_NAME);
    let leg = if is_peer { Leg::PEER } else { Leg::INBOUND };
    let _open = Live::connection(&worker.shared.metrics, leg);
    let shaken = if is_peer {
        from_peer(&inbound, hello, at).await
    } else {
        from_api_server(&inbound, hello, at).await
    };
    let (stream, target) = match shaken {
        Ok(shaken) => shaken,
        Err(why) => return (why, leg),
    };
    let proof = is_peer.then(|| Proof::of_client(stream.get_ref().1));
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
    let (stream, peer_closed) = CloseTracker::new(stream);
    let tasks = Tasks::default();
    let stalls = Rc::new(Stalls::new(Arc::clone(&worker.shared.unread)));
    let metrics = Arc::clone(&worker.shared.metrics);
    let client = Rc::new(Client {
        id,
        leg,
        worker,
        inbound,
        target,
        stalls: Rc::clone(&stalls),
        draining: draining.clone(),
    });
    let closed = if is_h2 {
        let carried = Carried { tasks: tasks.clone(), stalls, streams: STREAMS };
        serve_h2(client, stream, proof, carried, draining).await
    } else {
        serve_h1(client, stream, draining).await
    };
    metrics.panics.inc_by(tasks.end());
    (closed.after(&peer_closed), leg)
}

type Shaken = (tokio_rustls::server::TlsStream<TcpStream>, WebhookTarget);

/// Another pod of the namespace, which proves which one.
async fn from_peer(
    inbound: &Inbound,
    hello: StartHandshake<TcpStream>,
    at: SocketAddr,
) -> Result<Shaken, Closed> {
    let Some(tls) = &inbound.webhook.tls else { return Err(Closed::NoCertificate) };
    let stream = answer_hello(hello, tls.accepting()).await?;
    // One that offers no protocol is not refused by the library.
    peer_of(stream.get_ref().1).map_err(|_| Closed::ClientHandshake)?;
    Ok((stream, WebhookTarget { at, name: None, offers_h2: true }))
}

/// An API server: it is shown the webhook's certificate, with the protocol that the webhook speaks. If the webhook
/// does not answer, its reviews are sent to other pods.
async fn from_api_server(
    inbound: &Inbound,
    hello: StartHandshake<TcpStream>,
    at: SocketAddr,
) -> Result<Shaken, Closed> {
    let target = asked(&hello.client_hello(), at);
    let protocol = match inbound.operator.is_h2(&target).await {
        Ok(true) => H2,
        Ok(false) => HTTP_11,
        Err(why) => {
            inbound.webhook.report_operator(&why);
            HTTP_11
        }
    };
    let config = Arc::new(inbound.webhook.server.speaking(Some(protocol)));
    Ok((answer_hello(hello, config).await?, target))
}

fn asked(hello: &ClientHello<'_>, at: SocketAddr) -> WebhookTarget {
    let name = hello.server_name().and_then(|name| ServerName::try_from(name.to_owned()).ok());
    let offers_h2 = hello.alpn().is_some_and(|mut offered| offered.any(|offered| offered == H2));
    WebhookTarget { at, name, offers_h2 }
}

async fn serve_h2(
    client: Rc<Client>,
    stream: ClientStream,
    proof: Option<Proof>,
    carried: Carried,
    draining: Draining,
) -> Closed {
    let over = over(&client, proof);
    let service = service_fn(move |request| {
        Box::pin(review::serve(Rc::clone(&client), ClientBody::of(request, None)))
    });
    h2_client(stream, service, carried, over, draining).await
}

/// HTTP/1.1, in which a drain ends no idle connection, and the operator's end only one that stays idle:
/// the API server does not repeat a POST that meets the end of one. Responses carry `Connection: close`
/// instead.
async fn serve_h1(client: Rc<Client>, stream: ClientStream, draining: Draining) -> Closed {
    let leftover = Rc::new(Leftover::default());
    let closed = over(&client, None);
    let over = async {
        let closed = closed.await;
        sleep(NEXT_REQUEST).await;
        closed
    };
    let rest = Rc::clone(&leftover);
    let service = service_fn(move |request| {
        let request = ClientBody::of(request, Some(Rc::clone(&rest)));
        Box::pin(review::serve(Rc::clone(&client), request))
    });
    let connection = h1_server()
        .max_buf_size(READ_BUFFER)
        .serve_connection(TokioIo::new(CappedReads(stream)), service);
    let connection = Box::pin(connection);
    let finish = |connection: Pin<&mut _>, why| {
        if why != Finish::Drain {
            Connection::graceful_shutdown(connection);
        }
    };
    let never_upgrades = Cell::new(false);
    tokio::select! {
        closed = drive(connection, finish, over, draining, &never_upgrades) => closed,
        () = leftover.read_away() => Closed::Finished,
    }
}

/// Resolves when the operator no longer listens: its clients' connections would have ended with it. That
/// of a peer ends also when the mesh's roots no longer vouch for it.
fn over(
    client: &Client,
    proof: Option<Proof>,
) -> impl Future<Output = Result<(), Infallible>> + use<> {
    let mut is_open = client.inbound.webhook.is_open.subscribe();
    let tls = client.inbound.webhook.tls.clone();
    async move {
        let disowned = async {
            match tls.zip(proof) {
                Some((tls, proof)) => tls.disowned(proof).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // The sender lives as long as the process.
            _ = is_open.wait_for(|is_open| !is_open) => {}
            () = disowned => {}
        }
        Ok(())
    }
}
