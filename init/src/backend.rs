//! Chooses the iptables backend that this kernel accepts, by a trial commit.
//!
//! Versions and listings prove little: a tool may be installed without its kernel modules, and
//! merely running a legacy tool can load the legacy modules on the node. So nft is tried first,
//! with the matches and targets that our rules need, and legacy only if nft fails.

use crate::family::Family;
use crate::plan::BackendChoice;
use crate::rules::RuleSet;
use crate::tool::{Tool, ToolError};

pub use crate::tool::Backend;

/// A commit with every match and target that our rules need; it leaves no rule behind.
const NO_OP: &str = "\
*nat
:CTRLMESH_PROBE - [0:0]
-A CTRLMESH_PROBE -p tcp -m tcp --dport 443 -m owner --uid-owner 1359 -m comment --comment \"ctrlmesh: probe\" -j ACCEPT
-A CTRLMESH_PROBE -p tcp -m tcp --dport 443 -m comment --comment \"ctrlmesh: probe\" -j REDIRECT --to-ports 5443
-F CTRLMESH_PROBE
-X CTRLMESH_PROBE
COMMIT
";

/// Chooses the backend for the families that `rules` need.
pub fn choose(choice: BackendChoice, rules: &RuleSet) -> Result<Backend, BackendError> {
    let families: Vec<Family> = rules
        .families()
        .iter()
        .filter(|rules| !rules.is_empty())
        .map(|rules| rules.family)
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

/// Lists first: `restore` of the legacy tool hides a missing capability, `save` reports it.
fn prove(backend: Backend, families: &[Family]) -> Result<(), ToolError> {
    for &family in families {
        let tool = Tool { backend, family };
        tool.save()?;
        tool.restore(NO_OP)?;
    }
    Ok(())
}

/// The reason why no backend works.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BackendError {
    #[error("no iptables backend works; nft: {nft}; legacy: {legacy}")]
    Neither { nft: Box<ToolError>, legacy: Box<ToolError> },
    /// The requested backend failed, or nft lacks a capability, which legacy needs as well.
    #[error("the {backend} backend does not work: {source}")]
    Refused { backend: Backend, source: ToolError },
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
