//! A connection of an API server to etcd that delays all that etcd sends.
//!
//! It hides how a server is kept behind. It knows nothing of gRPC: bytes keep their order and none
//! is lost, so the server's cache is out of date, and a consistent read from it waits.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

/// The maximum of pieces in flight per connection: beyond it etcd has to wait.
const ON_THE_WAY: usize = 4096;
const PIECE: usize = 64 << 10;

/// A Unix socket that leads to etcd. After its drop it accepts no more connections; open ones end
/// with the server.
pub(super) struct Behind {
    socket: PathBuf,
    millis: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Behind {
    pub(super) fn start(socket: PathBuf, etcd: &Path) -> Result<Self> {
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("listening on {}", socket.display()))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let millis = Arc::new(AtomicU64::new(0));
        let (etcd, over, time) = (etcd.to_owned(), Arc::clone(&is_over), Arc::clone(&millis));
        let acceptor = thread::spawn(move || {
            while let Ok((server, _)) = listener.accept() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                // A server whose connection is closed opens another one.
                drop(carry(server, &etcd, &time));
            }
        });
        Ok(Self { socket, millis, is_over, acceptor: Some(acceptor) })
    }

    /// Delays everything that etcd sends from now on.
    pub(super) fn set(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.millis.store(millis, Ordering::Release);
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        drop(UnixStream::connect(&self.socket));
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

/// Forwards the server's bytes at once, and etcd's bytes after so many milliseconds.
fn carry(mut server: UnixStream, etcd: &Path, millis: &Arc<AtomicU64>) -> Result<()> {
    let mut etcd = UnixStream::connect(etcd)?;
    let (mut said, mut asked) = (etcd.try_clone()?, server.try_clone()?);
    let (late, due) = mpsc::sync_channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    thread::spawn(move || {
        let _ = std::io::copy(&mut asked, &mut etcd);
        let _ = etcd.shutdown(Shutdown::Both);
    });
    let millis = Arc::clone(millis);
    thread::spawn(move || {
        while let Ok(piece) = read(&mut said) {
            let time = Duration::from_millis(millis.load(Ordering::Acquire));
            if late.send((Instant::now() + time, piece)).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        while let Ok((at, piece)) = due.recv() {
            pass_until(at);
            if server.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Both);
    });
    Ok(())
}

fn read(from: &mut UnixStream) -> Result<Vec<u8>> {
    let mut piece = vec![0; PIECE];
    match from.read(&mut piece)? {
        0 => Err(anyhow!("the end")),
        length => {
            piece.truncate(length);
            Ok(piece)
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the delay is as long as it is said to be")]
fn pass_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}
