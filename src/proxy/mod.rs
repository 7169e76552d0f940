//! The data plane: the life of a connection, in the order in which it happens.
//!
//! 1. [`listen`]: accept, find the original destination, deal the connection to a data thread.
//! 2. [`tls`]: read the ClientHello; [`upstream`]: dial and verify; [`tls`]: answer the client.
//! 3. [`legs`]: both connections of a pair in one HTTP version, until one of them ends.
//! 4. [`request`]: classify, decide, rewrite, send, and choose how the response is followed.
//! 5. [`streams`]: lists and watches on their way to the client; objects that no selector could
//!    leave out are left out here, and live watches are brought over when the policy changes.
//!
//! A connection of the API server's comes by the same door, and its reviews go to the webhook server
//! of the pod, or of another pod, whose shard owns the object: [`inbound`]. [`peers`] has the other pods.
//!
//! [`upstream`] is the API server also as steps 4 and 5 use it: for the client's request and for our
//! own. All that its connections share is one value, which each connection names.
//!
//! Next to that path: [`policy_store`] keeps the policy in force, [`live`] tells watches of the next one,
//! [`stall`] finds clients that stop reading, [`admin`] answers people and kubelets,
//! [`outcome`] turns every exit into one log line and one count, [`metrics`] declares the counts,
//! [`config`] the flags, [`enrol`] has the certificate signed, [`collection`] decides whether a client
//! may resume, [`ring`] keeps the Lease in which the pod says what it may write,
//! [`ctrlmesh_base::process::supervisor`] notices the end of a task that must not end.
//!
//! Each data thread runs its connections on a runtime of its own and shares with the others only [`Shared`], such
//! as the policy, the positions and the counters ([`shared`] says which threads share which values). One control
//! thread does all the rest, so it responds also when the data threads are busy.

mod admin;
mod collection;
pub mod config;
mod enrol;
mod inbound;
mod legs;
mod listen;
mod live;
mod metrics;
mod outcome;
mod peers;
mod policy_store;
mod positions;
mod request;
mod ring;
mod shared;
mod stall;
pub mod start;
mod streams;
mod tls;
mod upstream;

use std::{
    future::ready,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use futures_util::{FutureExt, future::LocalBoxFuture};
use tokio::{
    net::TcpStream,
    task::{JoinError, JoinSet},
};

pub use self::config::{BadConfig, Config, ManagerFlags, PlainFlags, ProxyArgs};
use self::{
    inbound::{Inbound, Webhook},
    listen::{Accepted, Queue, To},
    live::LiveStreams,
    metrics::{Leg, Metrics, RequestCounts},
    outcome::{Closed, Live, connection_closed},
    policy_store::KnownRequests,
    shared::{LAST_CALL, Shared, Worker},
    upstream::Destination,
};
use ctrlmesh_base::process::supervisor::{SupervisedTasks, Supervisor};
use ctrlmesh_net::{ClientAddr, clock::reached, drain::Draining};

/// One connection, from its first byte to its last. Returns its end and the leg that it proved to be.
fn connection(
    worker: Rc<Worker>,
    inbound: Option<Rc<Inbound>>,
    accepted: Accepted,
    draining: Draining,
) -> LocalBoxFuture<'static, (Closed, Leg)> {
    let leg = accepted.leg();
    let Accepted { client, dialled, to, stream } = accepted;
    let id = worker.shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    match (TcpStream::from_std(stream), to, inbound) {
        (Err(_), ..) => ready((Closed::ClientGone, leg)).boxed_local(),
        (Ok(stream), To::ApiServer(to), _) => {
            let client = Arriving { id, client, dialled, stream };
            outbound(worker, client, to, draining).map(move |closed| (closed, leg)).boxed_local()
        }
        (Ok(stream), To::Webhook(at), Some(inbound)) => {
            inbound::serve(worker, inbound, id, stream, at, draining).boxed_local()
        }
        (Ok(_), To::Webhook(_), None) => ready((Closed::DirectHit, leg)).boxed_local(),
    }
}

/// A client's connection before its first byte.
struct Arriving {
    id: u64,
    client: ClientAddr,
    dialled: SocketAddr,
    stream: TcpStream,
}

/// A connection of the pod's to the API server.
async fn outbound(
    worker: Rc<Worker>,
    client: Arriving,
    to: Destination,
    draining: Draining,
) -> Closed {
    let Arriving { id, client, dialled, stream } = client;
    let _open = Live::connection(&worker.shared.metrics, Leg::OUTBOUND);
    let tls = &worker.shared.tls;

    let hello = match tls.hello(stream, client, dialled, &to.server).await {
        Ok(hello) => hello,
        Err(why) => return why,
    };
    let started = Instant::now();
    let upstream = match to.dial((&hello.client_hello()).into()).await {
        Ok(upstream) => upstream,
        Err(why) => {
            worker.shared.policy_store.has_asked(None);
            tls.turn_away(hello, why).await;
            return why;
        }
    };
    worker.shared.metrics.upstream_connect_duration.observe(started.elapsed().as_secs_f64());
    let client = match tls.answer(hello, upstream.alpn()).await {
        Ok(client) => client,
        Err(why) => return why,
    };
    legs::serve(Rc::clone(&worker), id, client, upstream, draining).await
}

/// The life of a data thread: takes connections from its queue until the queue ends or the drain's
/// deadline has come.
async fn data_thread(
    mut queue: Queue,
    shared: Arc<Shared>,
    webhook: Option<Arc<Webhook>>,
    mut draining: Draining,
    supervisor: Supervisor,
) {
    let live =
        LiveStreams::new(Arc::clone(&shared.streams), &shared.turns, Arc::clone(&shared.metrics));
    let requests = Rc::new(RequestCounts::new(Arc::clone(&shared.metrics)));
    let inbound = webhook.as_ref().map(Inbound::new);
    let worker = Rc::new(Worker {
        shared: Arc::clone(&shared),
        live: Rc::clone(&live),
        requests,
        known_requests: KnownRequests::default(),
    });
    let mut tasks = SupervisedTasks::default();
    let follow = Rc::clone(&live).follow(Arc::clone(&shared.policy_store));
    supervisor.spawn_local(&mut tasks, "follower of the policy", follow);
    let mut connections = JoinSet::new();
    let mut is_open = true;
    let mut last_call = None;
    let mut deadline = None;
    while is_open || !connections.is_empty() {
        tokio::select! {
            accepted = queue.recv(), if is_open => match accepted {
                None => is_open = false,
                Some((accepted, place)) => {
                    let client = accepted.client;
                    let served = connection(Rc::clone(&worker), inbound.clone(), accepted, draining.clone());
                    connections.spawn_local(async move {
                        let _place = place;
                        (served.await, client)
                    });
                }
            },
            Some(ended) = connections.join_next() => has_ended(&shared.metrics, ended),
            at = draining.begun(), if deadline.is_none() => {
                live.drain();
                deadline = Some(at);
                last_call = at.checked_sub(LAST_CALL);
            }
            () = reached(last_call) => {
                live.drain();
                last_call = None;
            }
            () = reached(deadline) => break,
        }
    }
    connections.abort_all();
    while let Some(ended) = connections.join_next().await {
        has_ended(&shared.metrics, ended);
    }
    if let Some(inbound) = inbound {
        shared.metrics.panics.inc_by(inbound.end());
    }
}

/// Counts and logs the end of a connection's task, which returns the connection's origin.
fn has_ended(metrics: &Metrics, task: Result<((Closed, Leg), ClientAddr), JoinError>) {
    let (closed, from) = match task {
        Ok(((closed, leg), client)) => (closed, Some((leg, client))),
        Err(error) if error.is_panic() => (Closed::Panicked, None),
        Err(_cut_at_the_deadline) => (Closed::Drained, None),
    };
    connection_closed(metrics, closed, from);
}
