//! `ctrlmesh wait`: ends once the proxy of its pod is ready, or has no clients left. The postStart
//! and preStop hooks of a classic sidecar, because the image holds no other program.

use std::{error::Error, io, net::SocketAddr, time::Duration};

use clap::{Args, ValueEnum};
use futures_util::FutureExt;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    time::{Instant, Interval, MissedTickBehavior, interval, timeout_at},
};

use ctrlmesh_base::sidecar;

/// The poll interval.
const PERIOD: Duration = Duration::from_millis(100);
/// The maximum bytes read of a response body.
const MAX_ANSWER: usize = 1 << 20;
/// The consecutive polls without a client that are required: a client that has just closed its
/// connection may open another.
const QUIET: u32 = 10;

/// The flags of `ctrlmesh wait`.
#[derive(Args, Clone, Debug)]
pub struct WaitArgs {
    /// The state of the proxy to wait for
    #[arg(long = "for", value_enum, default_value_t = What::Ready)]
    what: What,

    /// The address at which the proxy serves /readyz, /startupz and /metrics
    #[arg(long, value_name = "ADDR", default_value_t = sidecar::OWN_ADMIN)]
    admin: SocketAddr,

    /// The seconds that the proxy has to reach the state
    #[arg(long, value_name = "SECONDS", default_value = "120")]
    timeout: u16,
}

/// The values of `--for`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// The proxy is ready
    Ready,
    /// The proxy serves its pod's containers, whatever the certificate of their webhook server
    Started,
    /// No client has been connected for a second, or the proxy does not answer
    NoClients,
}

/// The reason why the wait failed.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    #[error("the proxy at {admin} {what} after {seconds} s: {last}")]
    NotInTime {
        /// The unmet condition, as a predicate.
        what: &'static str,
        admin: SocketAddr,
        seconds: u16,
        last: String,
    },
    #[error("cannot wait")]
    Runtime(#[from] io::Error),
}

/// Waits until the condition holds. Fails with [`WaitError`].
pub fn run(args: &WaitArgs) -> Result<(), WaitError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(wait(args))
}

async fn wait(args: &WaitArgs) -> Result<(), WaitError> {
    let deadline = Instant::now() + Duration::from_secs(args.timeout.into());
    let mut last = "no answer".to_owned();
    let (asking, what) = match args.what {
        What::Ready => (ready(args.admin, "/readyz", &mut last).boxed_local(), "is not ready"),
        What::Started => {
            (ready(args.admin, "/startupz", &mut last).boxed_local(), "has not started")
        }
        What::NoClients => (no_clients(args.admin, &mut last).boxed_local(), "has clients"),
    };
    if timeout_at(deadline, asking).await.is_ok() {
        return Ok(());
    }
    Err(WaitError::NotInTime { what, admin: args.admin, seconds: args.timeout, last })
}

fn periods() -> Interval {
    let mut periods = interval(PERIOD);
    periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
    periods
}

/// Waits until a page says so.
async fn ready(admin: SocketAddr, page: &str, last: &mut String) {
    let mut periods = periods();
    loop {
        periods.tick().await;
        match ask(admin, page).await {
            Ok((StatusCode::OK, _)) => return,
            Ok((status, body)) => *last = format!("{status}: {}", body.trim_end()),
            Err(reason) => *last = reason.to_string(),
        }
    }
}

/// Waits until no client is connected. A container closes its connections last, so a connected
/// client may still need the proxy: a leader releases its lock after everything else.
async fn no_clients(admin: SocketAddr, last: &mut String) {
    let mut periods = periods();
    let mut quiet = 0;
    while quiet < QUIET {
        periods.tick().await;
        match ask(admin, "/metrics").await {
            Ok((_, metrics)) => match metrics.lines().find(|line| counts_clients(line)) {
                None => quiet += 1,
                Some(line) => (quiet, *last) = (0, line.to_owned()),
            },
            // The proxy serves no client any more.
            Err(_) => return,
        }
    }
}

/// Whether the line counts an open connection. No line counts connections before the first client.
fn counts_clients(line: &str) -> bool {
    line.starts_with("ctrlmesh_connections{") && !line.ends_with("} 0")
}

/// Sends one request. Returns status and body.
pub(super) async fn ask(
    admin: SocketAddr,
    path: &str,
) -> Result<(StatusCode, String), Box<dyn Error>> {
    let stream = TokioIo::new(TcpStream::connect(admin).await?);
    let (mut sender, connection) = http1::handshake::<_, Empty<Bytes>>(stream).await?;
    let host = admin.to_string();
    let request = Request::get(path).header(http::header::HOST, host).body(Empty::new())?;
    let answer = async move {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    // The connection ends once the sender is dropped; the body is read by then.
    tokio::join!(answer, connection).0
}
