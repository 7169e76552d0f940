//! The proxy in whose container this runs: its files, and its admin port.

use std::{fs, path::Path};

use rustls_pki_types::{CertificateDer, pem::PemObject};

use crate::{
    doctor::facts::{Answer, CannotLook, Looked, OwnFile},
    wait,
};
use ctrlmesh_base::sidecar::{
    CA_FILE, ENROLMENT_DIR, LABELS_DIR, LABELS_FILE, MANAGER_CA_FILE, MESH_CA_DIR, OWN_ADMIN,
    SERVICE_ACCOUNT, TOKEN_FILE,
};

/// The files that the proxy needs. Empty elsewhere than in its container, which alone has the pod's
/// labels at their place.
pub(super) fn files() -> Vec<OwnFile> {
    files_below(Path::new("/"))
}

fn files_below(root: &Path) -> Vec<OwnFile> {
    let at = |dir: &str| root.join(dir.trim_start_matches('/'));
    if !at(LABELS_DIR).exists() {
        return Vec::new();
    }
    let mut needed = vec![
        (LABELS_DIR, LABELS_FILE, Content::Any),
        (SERVICE_ACCOUNT, TOKEN_FILE, Content::Text),
        (SERVICE_ACCOUNT, CA_FILE, Content::Certificates),
    ];
    if at(MESH_CA_DIR).exists() {
        needed.push((MESH_CA_DIR, CA_FILE, Content::Certificates));
    } else {
        needed.extend([
            (ENROLMENT_DIR, TOKEN_FILE, Content::Text),
            (ENROLMENT_DIR, MANAGER_CA_FILE, Content::Certificates),
            (ENROLMENT_DIR, CA_FILE, Content::Certificates),
        ]);
    }
    let file = |(dir, file, content): (&str, &str, Content)| OwnFile {
        path: format!("{dir}/{file}"),
        problem: problem(&at(dir).join(file), content),
    };
    needed.into_iter().map(file).collect()
}

/// The content that a file must have.
#[derive(Clone, Copy, PartialEq)]
enum Content {
    Any,
    Text,
    Certificates,
}

fn problem(path: &Path, content: Content) -> Option<String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return Some(format!("cannot be read: {error}")),
    };
    if content != Content::Any && bytes.is_empty() {
        return Some("is empty".to_owned());
    }
    let mut certificates = CertificateDer::pem_slice_iter(&bytes);
    let has_none = content == Content::Certificates && !matches!(certificates.next(), Some(Ok(_)));
    has_none.then(|| "has no PEM certificate".to_owned())
}

/// A page of the admin port.
pub(super) async fn page(path: &str) -> Looked<Answer> {
    let answered = wait::ask(OWN_ADMIN, path).await;
    let (code, body) =
        answered.map_err(|error| CannotLook::Failed(format!("{OWN_ADMIN}: {error}")))?;
    Ok(Answer { code: code.as_u16(), body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_without_the_pods_labels_is_not_the_proxys() {
        let root = tempfile::tempdir().unwrap();
        assert!(files_below(root.path()).is_empty());
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        write("/etc/ctrlmesh/pod/labels", "");
        write(&format!("{SERVICE_ACCOUNT}/token"), "");
        write(&format!("{SERVICE_ACCOUNT}/ca.crt"), pem);
        write(&format!("{ENROLMENT_DIR}/manager.crt"), "no certificate");
        write(&format!("{ENROLMENT_DIR}/ca.crt"), pem);
        let problems = files_below(root.path()).into_iter();
        let problems: Vec<_> =
            problems.filter_map(|file| Some((file.path, file.problem?))).collect();
        let at = |path: &str, problem: &str| (path.to_owned(), problem.to_owned());
        assert_eq!(
            problems,
            [
                at(&format!("{SERVICE_ACCOUNT}/token"), "is empty"),
                at(
                    &format!("{ENROLMENT_DIR}/token"),
                    "cannot be read: No such file or directory (os error 2)"
                ),
                at(&format!("{ENROLMENT_DIR}/manager.crt"), "has no PEM certificate"),
            ]
        );
        write(&format!("{MESH_CA_DIR}/other"), "");
        let last = files_below(root.path()).pop().unwrap();
        assert_eq!(last.path, format!("{MESH_CA_DIR}/ca.crt"), "not enrolled");
    }
}
