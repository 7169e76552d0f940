//! Which backend this kernel accepts, found out by doing.
//!
//! Versions and listings prove little: tools exist whose kernel half is missing, and merely running
//! a legacy tool can load the legacy modules on the node. So nft is tried first, with the matches
//! and targets that our rules need, and legacy only after nft was refused.

use crate::plan::BackendChoice;
use crate::rules::{Family, RuleSet};
use crate::tool::{Tool, ToolError};

pub use crate::tool::Backend;

/// A commit that uses everything a rule set needs and leaves nothing behind.
const NO_OP: &str = "\
*nat
:CTRLMESH_PROBE - [0:0]
-A CTRLMESH_PROBE -p tcp -m tcp --dport 443 -m owner --uid-owner 1359 -m comment --comment \"ctrlmesh: probe\" -j ACCEPT
-A CTRLMESH_PROBE -p tcp -m tcp --dport 443 -m comment --comment \"ctrlmesh: probe\" -j REDIRECT --to-ports 5443
-F CTRLMESH_PROBE
-X CTRLMESH_PROBE
COMMIT
";

/// The backend for the families that `rules` need.
pub fn choose(choice: BackendChoice, rules: &RuleSet) -> Result<Backend, BackendError> {
    let families: Vec<Family> = rules
        .families()
        .into_iter()
        .filter(|rules| !rules.is_empty())
        .map(|rules| rules.family())
        .collect();
    let proof = |backend| prove(backend, &families);
    let (backend, reason) = match choice {
        BackendChoice::Nft => (Backend::Nft, proof(Backend::Nft).map(|()| "asked for".to_owned())),
        BackendChoice::Legacy => {
            (Backend::Legacy, proof(Backend::Legacy).map(|()| "asked for".to_owned()))
        }
        BackendChoice::Auto => match proof(Backend::Nft) {
            Ok(()) => (Backend::Nft, Ok("a no-op commit succeeded".to_owned())),
            // Legacy needs more capabilities, never fewer.
            Err(refused @ ToolError::NotPermitted { .. }) => (Backend::Nft, Err(refused)),
            Err(nft) => match proof(Backend::Legacy) {
                Ok(()) => (Backend::Legacy, Ok(format!("nft did not work: {nft}"))),
                Err(legacy) => {
                    let (nft, legacy) = (Box::new(nft), Box::new(legacy));
                    return Err(BackendError::Neither { nft, legacy });
                }
            },
        },
    };
    let reason = reason.map_err(|source| BackendError::Refused { backend, source })?;
    tracing::info!("backend {backend}: {reason}");
    Ok(backend)
}

/// The listing comes first: the legacy restore hides a missing capability, its listing names it.
fn prove(backend: Backend, families: &[Family]) -> Result<(), ToolError> {
    for &family in families {
        let tool = Tool { backend, family };
        tool.save()?;
        tool.restore(NO_OP)?;
    }
    Ok(())
}

/// Why no backend will do.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// Both were tried.
    #[error("no iptables backend works; nft: {nft}; legacy: {legacy}")]
    Neither {
        /// What nft said.
        nft: Box<ToolError>,
        /// What legacy said.
        legacy: Box<ToolError>,
    },
    /// The one that was asked for, or could have.
    #[error("the {backend} backend does not work: {source}")]
    Refused {
        /// Which one.
        backend: Backend,
        /// What it said.
        source: ToolError,
    },
}

impl BackendError {
    /// The failure that decides the exit code.
    pub(crate) fn cause(&self) -> &ToolError {
        match self {
            Self::Neither { legacy, .. } => legacy,
            Self::Refused { source, .. } => source,
        }
    }
}
