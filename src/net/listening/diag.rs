//! The sockets of a port that listen, as the kernel's `sock_diag` lists them (sock_diag(7), Linux's
//! `net/ipv4/inet_diag.c`).
//!
//! A dump of this one state walks the hash table of listeners alone, found or not: some 10 µs, where
//! `/proc/net/tcp` walks the node's connections. It needs no privilege, and is of the network namespace
//! in which the socket was opened. Does not know which socket counts.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use netlink_packet_core::{
    DecodeError, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::{
    AF_INET, AF_INET6, IPPROTO_TCP, SockDiagMessage, TCP_LISTEN,
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};

/// Bytes of an answer's part: the kernel fills no more than a page, or 8 KiB where pages are larger
/// (`NLMSG_GOODSIZE`).
const PART: usize = 8 << 10;

/// A socket by which the kernel is asked.
#[derive(Debug)]
pub(super) struct Diag {
    socket: Socket,
    part: Vec<u8>,
}

impl Diag {
    /// Fails where the kernel has no `sock_diag`, or a sandbox forbids it.
    pub(super) fn open() -> io::Result<Self> {
        Self::by(NETLINK_SOCK_DIAG)
    }

    pub(super) fn by(protocol: isize) -> io::Result<Self> {
        let socket = Socket::new(protocol)?;
        // The kernel writes each part of its answer within our call: there is none to wait for.
        socket.set_non_blocking(true)?;
        Ok(Self { socket, part: vec![0; PART] })
    }

    /// Whether `counts` accepts the address of a socket that listens on this port. After an error
    /// the rest of an answer may be left: ask by another socket.
    pub(super) fn any(
        &mut self,
        port: u16,
        mut counts: impl FnMut(SocketAddr) -> bool,
    ) -> io::Result<bool> {
        let mut is_found = false;
        for any in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            self.ask(any, port)?;
            while self.read_part(|bound| is_found |= counts(bound))? {}
        }
        Ok(is_found)
    }

    /// Asks for the sockets of this address's family.
    fn ask(&self, any: IpAddr, port: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let request = InetRequest {
            family: if any.is_ipv4() { AF_INET } else { AF_INET6 },
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::empty(),
            states: StateFlags::LISTEN,
            socket_id: SocketId {
                source_port: port,
                source_address: any,
                destination_address: any,
                ..SocketId::new_v4()
            },
        };
        let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Reads the next part. Returns whether there are more.
    fn read_part(&mut self, mut found: impl FnMut(SocketAddr)) -> io::Result<bool> {
        let length = self.socket.recv(&mut self.part.as_mut_slice(), 0)?;
        let mut rest = self.part.get(..length).unwrap_or_default();
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(unknown)?;
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(socket))
                    if socket.header.state == TCP_LISTEN =>
                {
                    let id = &socket.header.socket_id;
                    found(SocketAddr::new(id.source_address, id.source_port));
                }
                NetlinkPayload::Done(_) => return Ok(false),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
            // As long as its header at least, or it was none.
            let taken = usize::try_from(message.header.length).unwrap_or(usize::MAX);
            rest = rest.get(taken..).unwrap_or_default();
        }
        Ok(true)
    }
}

fn unknown(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
