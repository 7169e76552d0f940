//! A load balancer in front of several API servers.

use std::{
    io,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};

/// A load balancer of connections: each goes to the next server. It does not terminate TLS. After
/// its drop it accepts no more connections.
pub struct Front {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
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
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let acceptor = thread::spawn(move || {
            for server in servers.iter().cycle() {
                let Ok((client, _)) = listener.accept() else { return };
                if over.load(Ordering::Acquire) {
                    return;
                }
                // A client whose server is not there sees its connection close.
                drop(join(client, *server));
            }
        });
        Ok(Self { address, is_over, acceptor: Some(acceptor) })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        drop(TcpStream::connect(self.address));
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

fn join(client: TcpStream, server: SocketAddr) -> Result<()> {
    let server = TcpStream::connect(server)?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
    }
    for (mut from, mut to) in
        [(client.try_clone()?, server.try_clone()?), (server.try_clone()?, client.try_clone()?)]
    {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
