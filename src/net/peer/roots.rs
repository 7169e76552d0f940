//! The CAs that sign the leaves of peers, and no others.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::RootCertStore;
use rustls_pki_types::TrustAnchor;

use crate::tls::{BadRoots, read_roots};

/// The files of the CAs of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootsPlace {
    /// The directory of a mesh CA; its certificate is the only root.
    MeshCa(PathBuf),
    /// The CAs that the pod trusts: the cluster's and the mesh's.
    Bundle {
        /// The file with all of them.
        bundle: PathBuf,
        /// The file with those of the cluster.
        upstream_ca: PathBuf,
    },
}

/// The reason why there are no roots of the mesh.
#[derive(Debug, thiserror::Error)]
pub enum BadMeshRoots {
    #[error("the CAs of peers")]
    Unusable(#[from] BadRoots),
    #[error("the CAs of peers: {bundle} holds none but those of --upstream-ca {upstream_ca}")]
    None { bundle: String, upstream_ca: String },
    #[error("the CAs of peers: the TLS library refuses them")]
    Tls(#[from] rustls::Error),
}

/// The CAs of the mesh.
#[derive(Clone, Debug)]
pub struct MeshRoots(Arc<RootCertStore>);

impl MeshRoots {
    /// Reads them. Fails with [`BadMeshRoots`]; also if there are none.
    ///
    /// A CA of the cluster signs every approved request. Its certificates in the bundle may be older
    /// or newer than in the other file, which others write at another time. So a CA counts as the
    /// cluster's by its name or its key too.
    pub fn read(place: &RootsPlace) -> Result<Self, BadMeshRoots> {
        let roots = match place {
            RootsPlace::MeshCa(dir) => read_roots(&dir.join("ca.crt"))?,
            RootsPlace::Bundle { bundle, upstream_ca } => {
                let (mut roots, clusters) = (read_roots(bundle)?, read_roots(upstream_ca)?);
                roots.roots.retain(|root| !clusters.roots.iter().any(|it| is_same_ca(it, root)));
                if roots.is_empty() {
                    let [bundle, upstream_ca] = [bundle, upstream_ca].map(|path| shown(path));
                    return Err(BadMeshRoots::None { bundle, upstream_ca });
                }
                roots
            }
        };
        Ok(Self(Arc::new(roots)))
    }

    /// The roots, for a verifier.
    pub fn store(&self) -> &Arc<RootCertStore> {
        &self.0
    }
}

impl PartialEq for MeshRoots {
    fn eq(&self, other: &Self) -> bool {
        self.0.roots == other.0.roots
    }
}

fn is_same_ca(one: &TrustAnchor<'_>, other: &TrustAnchor<'_>) -> bool {
    one.subject == other.subject || one.subject_public_key_info == other.subject_public_key_info
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
