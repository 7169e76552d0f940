//! A load balancer in front of API servers, whose network fails when it is notified to.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};

/// The bytes that are carried at once.
const PIECE: usize = 64 << 10;

/// A load balancer of connections: each goes to the next server. It does not terminate TLS. After
/// its drop it accepts no more connections.
pub struct Front {
    address: SocketAddr,
    network: Arc<Network>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Network {
    is_over: AtomicBool,
    /// Whether connections are closed as soon as they are accepted.
    is_cut: AtomicBool,
    /// Whether bytes of servers are lost.
    loses_answers: AtomicBool,
    /// The sockets that were opened.
    sockets: Mutex<Vec<TcpStream>>,
}

impl Front {
    /// Listens on a free port of 127.0.0.1, for which every [`ApiServer`](crate::ApiServer) has a
    /// certificate.
    ///
    /// # Errors
    ///
    /// When it cannot listen.
    pub fn start(servers: Vec<SocketAddr>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening")?;
        let address = listener.local_addr()?;
        let network = Arc::new(Network::default());
        let of_acceptor = Arc::clone(&network);
        let acceptor = thread::spawn(move || {
            for server in servers.iter().cycle() {
                let Ok((client, _)) = listener.accept() else { return };
                if of_acceptor.is_over.load(Ordering::Acquire) {
                    return;
                }
                // A client whose server is not there sees its connection close.
                drop(of_acceptor.join(&client, *server));
            }
        });
        Ok(Self { address, network, acceptor: Some(acceptor) })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and each new one until [`Self::mend`].
    pub fn cut(&self) {
        self.network.is_cut.store(true, Ordering::Release);
        self.network.close();
    }

    /// Loses all that servers send, until [`Self::mend`]. What clients send arrives.
    pub fn lose_answers(&self) {
        self.network.loses_answers.store(true, Ordering::Release);
    }

    /// Carries everything again. A connection that has lost something is closed.
    pub fn mend(&self) {
        self.network.is_cut.store(false, Ordering::Release);
        if self.network.loses_answers.swap(false, Ordering::AcqRel) {
            self.network.close();
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.network.is_over.store(true, Ordering::Release);
        drop(TcpStream::connect(self.address));
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl Network {
    fn join(self: &Arc<Self>, client: &TcpStream, server: SocketAddr) -> Result<()> {
        if self.is_cut.load(Ordering::Acquire) {
            return Ok(());
        }
        let server = TcpStream::connect(server)?;
        for socket in [client, &server] {
            socket.set_nodelay(true)?;
        }
        {
            let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            sockets.retain(|socket| socket.take_error().is_ok() && socket.peer_addr().is_ok());
            sockets.extend([client.try_clone()?, server.try_clone()?]);
        }
        // One that was cut meanwhile.
        if self.is_cut.load(Ordering::Acquire) {
            self.close();
        }
        for (from, to, is_answer) in [
            (client.try_clone()?, server.try_clone()?, false),
            (server.try_clone()?, client.try_clone()?, true),
        ] {
            let network = Arc::clone(self);
            thread::spawn(move || network.carry(from, to, is_answer));
        }
        Ok(())
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, is_answer: bool) {
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            if is_answer && self.loses_answers.load(Ordering::Acquire) {
                continue;
            }
            if to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    fn close(&self) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
