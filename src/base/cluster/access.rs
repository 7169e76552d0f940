//! The access of our own calls to the API server.

use std::error::Error;

use kube::Client;

/// The access of our own calls to the API server: by the pod's ServiceAccount and our own name,
/// never with anything of the controller's.
#[derive(Clone)]
pub enum OwnAccess {
    /// A client that is ready.
    Client(Client),
    /// A client that the environment configures when it is needed.
    Environment,
}

/// The reason why our own calls cannot be made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NoAccess(Box<dyn Error + Send + Sync>);

impl OwnAccess {
    /// The client. Fails with [`NoAccess`] if the environment names no API server or no usable
    /// identity.
    pub async fn client(self) -> Result<Client, NoAccess> {
        match self {
            Self::Client(client) => Ok(client),
            Self::Environment => infer().await.map_err(NoAccess),
        }
    }
}

async fn infer() -> Result<Client, Box<dyn Error + Send + Sync>> {
    let mut config = kube::Config::infer().await?;
    let agent = concat!("ctrlmesh/", env!("CARGO_PKG_VERSION"));
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
    // A refused call is reported at once, and repeated after our own pauses. The client's own retry
    // would hide 429, 503 and 504 fifteen times over.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// An error and its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let all = std::iter::successors(Some(error), |error| (*error).source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
