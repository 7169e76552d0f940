//! `ctrlmesh wait`: ends when the proxy beside it is ready. A classic sidecar's postStart hook,
//! because the image holds no other program.

use std::{io, net::SocketAddr, time::Duration};

use clap::Args;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    time::{Instant, MissedTickBehavior, interval, timeout_at},
};

/// Between two questions.
const PERIOD: Duration = Duration::from_millis(100);
/// What is read of an answer.
const MAX_ANSWER: usize = 4 << 10;

/// The flags of `ctrlmesh wait`.
#[derive(Args, Clone, Debug)]
pub struct WaitArgs {
    /// Where the proxy serves /readyz
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:5441")]
    admin: SocketAddr,

    /// How many seconds the proxy has
    #[arg(long, value_name = "SECONDS", default_value = "120")]
    timeout: u16,
}

/// The proxy did not become ready.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// It had its time.
    #[error("the proxy at {admin} is not ready after {seconds} s: {last}")]
    NotReady {
        /// Where it was asked.
        admin: SocketAddr,
        /// How long.
        seconds: u16,
        /// What it said last.
        last: String,
    },
    /// Nothing can be asked.
    #[error("cannot wait")]
    Runtime(#[from] io::Error),
}

/// Asks until the answer is yes.
///
/// # Errors
/// [`WaitError`].
pub fn run(args: &WaitArgs) -> Result<(), WaitError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(wait(args))
}

async fn wait(args: &WaitArgs) -> Result<(), WaitError> {
    let deadline = Instant::now() + Duration::from_secs(args.timeout.into());
    let mut periods = interval(PERIOD);
    periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = "no answer".to_owned();
    let asking = async {
        loop {
            periods.tick().await;
            match ask(args.admin).await {
                Ok(()) => return,
                Err(reason) => last = reason,
            }
        }
    };
    match timeout_at(deadline, asking).await {
        Ok(()) => Ok(()),
        Err(_) => Err(WaitError::NotReady { admin: args.admin, seconds: args.timeout, last }),
    }
}

/// One question; what speaks against the proxy.
async fn ask(admin: SocketAddr) -> Result<(), String> {
    let stream = TcpStream::connect(admin).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let request = Request::get("/readyz")
        .header(http::header::HOST, admin.to_string())
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let answer = async move {
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if answer.status() == StatusCode::OK {
            return Ok(());
        }
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim_end()))
    };
    // The connection ends when the other has dropped its sender; what it read is there by then.
    tokio::join!(answer, connection).0
}
