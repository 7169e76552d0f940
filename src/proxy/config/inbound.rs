//! The flags of the controller's webhook server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU16,
    path::PathBuf,
};

use clap::Args;

use ctrlmesh_base::sidecar::{INBOUND, Mode, WEBHOOK_CERT_DIR};
use ctrlmesh_policy::{BadWebhook, Webhook};

/// The flags as they are typed.
#[derive(Args, Clone, Debug, Default)]
pub struct WebhookFlags {
    /// The port of the controller's webhook server, whose reviews come to --inbound. Without it none
    /// are intercepted
    #[arg(long, env = "CTRLMESH_WEBHOOK_PORT", value_name = "PORT")]
    pub webhook_port: Option<u16>,

    /// The directory of that server's certificate and key; read again when they change [default:
    /// /etc/ctrlmesh/webhook]
    #[arg(long, env = "CTRLMESH_WEBHOOK_CERTS", value_name = "DIR")]
    pub webhook_certs: Option<PathBuf>,

    /// The address that reviews are redirected to; the unspecified address (::) means all addresses
    /// of both families [default: all of them, at port 5445]
    #[arg(long, env = "CTRLMESH_INBOUND", value_name = "ADDR")]
    pub inbound: Option<SocketAddr>,

    /// The address of the webhook server in direct mode [default: 127.0.0.1, at --webhook-port]
    #[arg(long, env = "CTRLMESH_WEBHOOK_SERVER", value_name = "ADDR")]
    pub webhook_server: Option<SocketAddr>,
}

/// The interception of the reviews that come for the controller's webhook server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// The address that reviews are redirected to.
    pub listen: SocketAddr,
    /// The port that the API server calls.
    pub port: NonZeroU16,
    /// The directory of the server's certificate and key.
    pub certs: PathBuf,
    /// The address of the server. `None` if it is the destination that the API server dialled.
    pub server: Option<SocketAddr>,
}

/// Flags of the webhook server that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadInbound {
    #[error("--webhook-port")]
    Port(#[from] BadWebhook),
    #[error("{0} has no effect without --webhook-port PORT: give that, or remove it")]
    WithoutPort(&'static str),
    #[error(
        "--webhook-server {0} has no effect in --mode iptables, where the destination that the API \
         server dialled is used: remove it, or give --mode direct"
    )]
    ServerWithoutDirect(SocketAddr),
    #[error(
        "--inbound {0} has the port of --webhook-port, so the proxy would call itself: give it \
         another port"
    )]
    IsPort(SocketAddr),
}

impl WebhookFlags {
    /// The interception, if there is one. Without its port the other flags are refused.
    pub(super) fn checked(self, mode: Mode) -> Result<Option<Inbound>, BadInbound> {
        let Self { webhook_port, webhook_certs: certs, inbound, webhook_server: server } = self;
        let Some(port) = webhook_port else {
            let others = [
                ("--webhook-certs", certs.is_some()),
                ("--inbound", inbound.is_some()),
                ("--webhook-server", server.is_some()),
            ];
            return match others.iter().find(|(_, is_given)| *is_given) {
                Some((flag, _)) => Err(BadInbound::WithoutPort(flag)),
                None => Ok(None),
            };
        };
        let port = Webhook::port(port)?;
        let listen = inbound.unwrap_or(INBOUND);
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, port.get()));
        let server = match (mode, server) {
            (Mode::Iptables, None) => None,
            (Mode::Iptables, Some(addr)) => {
                return Err(BadInbound::ServerWithoutDirect(addr));
            }
            (Mode::Direct, given) => Some(given.unwrap_or(own)),
        };
        let is_taken = match server {
            None => listen.port() == port.get(),
            Some(server) => {
                let is_same = listen.ip().is_unspecified() || listen.ip() == server.ip();
                listen.port() == server.port() && is_same
            }
        };
        if is_taken {
            return Err(BadInbound::IsPort(listen));
        }
        let certs = certs.unwrap_or_else(|| WEBHOOK_CERT_DIR.into());
        Ok(Some(Inbound { listen, port, certs, server }))
    }
}
