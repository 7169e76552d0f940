//! The mesh CA, two files `ca.crt` and `ca.key`, and the names that it may sign for.
//!
//! The certificate carries critical name constraints (RFC 5280 section 4.2.1.10): a stolen key
//! can impersonate the API server's names and nothing else.

use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::KeyPair;
use rustls_pki_types::{CertificateDer, ServerName};

use super::Clock;

mod authority;
mod constraints;

pub use self::{
    authority::{Authority, BadAuthority, CaSpec, LeafSpec, NotNow, Validity},
    constraints::{BadCidr, Cidr, Constraints},
};

const LIFETIME: Duration = Duration::from_secs(2 * 365 * 24 * 3600);
pub(super) const LEAF_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The reason why a mesh CA is not usable.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error("{} exists: a mesh CA is never overwritten", .0.display())]
    Exists(PathBuf),
    #[error("{}", .path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The certificate and key do not parse or do not match, or the certificate is not valid now.
    /// The message contains no part of the key.
    #[error("{}: {what}", .path.display())]
    Unusable { path: PathBuf, what: String },
    #[error("the mesh CA in {} may not sign for {name:?}: make one with --dns or --ip for it", .path.display())]
    Outside { path: PathBuf, name: String },
}

/// A mesh CA of a directory, which can sign leaves.
pub struct MeshCa {
    path: PathBuf,
    ca: Authority,
}

impl MeshCa {
    /// Makes a CA that may sign for `constraints` and writes it into `dir`, which is created if
    /// missing. Only its owner can read the key file. Fails with [`CaError::Exists`] if either file
    /// exists; else the error of the file system or the crypto library.
    pub fn create(dir: &Path, constraints: &Constraints, clock: &Clock) -> Result<(), CaError> {
        let (cert_path, key_path) = (dir.join("ca.crt"), dir.join("ca.key"));
        for path in [&cert_path, &key_path] {
            if path.exists() {
                return Err(CaError::Exists(path.clone()));
            }
        }
        let validity = Validity::starting(clock.now(), LIFETIME);
        let spec = CaSpec { name: "ctrlmesh mesh CA", constraints, below: 0, validity };
        let ca = Authority::root(&spec).map_err(|what| CaError::Unusable {
            path: cert_path.clone(),
            what: what.to_string(),
        })?;
        fs::create_dir_all(dir).map_err(|source| CaError::File { path: dir.into(), source })?;
        write_new(&key_path, ca.key_pem().as_bytes(), 0o600)?;
        write_new(&cert_path, certificate_pem(ca.cert()).as_bytes(), 0o644)
    }

    /// Reads the CA in `dir`, and checks that it can sign now.
    pub fn read(dir: &Path, clock: &Clock) -> Result<Self, CaError> {
        let (cert_path, key_path) = (dir.join("ca.crt"), dir.join("ca.key"));
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|source| CaError::File { path: path.into(), source })
        };
        let (cert_pem, key_pem) = (read(&cert_path)?, read(&key_path)?);
        let ca = Authority::parse(&cert_pem, &key_pem);
        match ca.and_then(|ca| ca.check(clock).map(|()| ca)) {
            Ok(ca) => Ok(Self { path: cert_path, ca }),
            Err(bad) => {
                let path = match bad {
                    BadAuthority::Key => key_path,
                    _ => cert_path,
                };
                let remedy = match bad {
                    BadAuthority::NotNow(_) => {
                        ": make a new CA with `ctrlmesh mesh-ca`, or set the clock"
                    }
                    _ => "",
                };
                Err(CaError::Unusable { path, what: format!("{bad}{remedy}") })
            }
        }
    }

    /// Checks that clients which trust this CA accept it as the signer for every one of `names`.
    /// Fails with [`CaError::Outside`] with the first name that it may not sign.
    pub fn permit(&self, names: &[ServerName<'_>], clock: &Clock) -> Result<(), CaError> {
        match self.ca.first_outside(names, clock) {
            None => Ok(()),
            Some(name) => {
                Err(CaError::Outside { path: self.path.clone(), name: name.to_str().into_owned() })
            }
        }
    }

    /// Signs a certificate for a server of these names that has this key. With a URI it is for
    /// clients too.
    pub(super) fn sign(
        &self,
        names: &[ServerName<'_>],
        uri: Option<&str>,
        key: &KeyPair,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, rcgen::Error> {
        let validity = Validity::starting(now, LEAF_LIFETIME);
        self.ca.sign(&LeafSpec { names, uri, validity }, key)
    }
}

impl fmt::Debug for MeshCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshCa").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A certificate as PEM.
pub fn certificate_pem(cert: &CertificateDer<'_>) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new("CERTIFICATE", cert.as_ref()), config)
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CaError> {
    let file = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => CaError::Exists(path.into()),
        _ => CaError::File { path: path.into(), source },
    };
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut f| f.write_all(bytes))
        .map_err(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rcgen::{
        BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, GeneralSubtree, IsCa,
        NameConstraints, PKCS_ECDSA_P256_SHA256,
    };

    use super::*;
    use crate::ClusterDomain;

    fn name(text: &str) -> ServerName<'static> {
        ServerName::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn a_ca_is_never_overwritten_and_its_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let constraints = Constraints::kubernetes_and(&ClusterDomain::default(), vec![], vec![]);
        MeshCa::create(dir.path(), &constraints, &Clock::system()).unwrap();
        let mode = fs::metadata(dir.path().join("ca.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let before = fs::read(dir.path().join("ca.key")).unwrap();
        fs::remove_file(dir.path().join("ca.crt")).unwrap();
        let again = MeshCa::create(dir.path(), &constraints, &Clock::system()).unwrap_err();
        assert!(matches!(again, CaError::Exists(_)));
        assert_eq!(fs::read(dir.path().join("ca.key")).unwrap(), before);
    }

    #[test]
    fn constraints_survive_the_file_and_decide() {
        let dir = tempfile::tempdir().unwrap();
        let constraints = Constraints::kubernetes_and(
            &ClusterDomain::default(),
            vec!["api.example.com".into()],
            vec!["10.96.0.0/16".parse().unwrap(), "fd00::/112".parse().unwrap()],
        );
        MeshCa::create(dir.path(), &constraints, &Clock::system()).unwrap();
        let ca = MeshCa::read(dir.path(), &Clock::system()).unwrap();
        let allowed = [
            "10.96.0.1",
            "fd00::1",
            "127.0.0.1",
            "::1",
            "kubernetes.default.svc",
            "localhost",
            "api.example.com",
            "a.api.example.com",
        ];
        ca.permit(&allowed.map(name), &Clock::system()).unwrap();
        for refused in ["10.97.0.1", "fd01::1", "example.com", "notapi.example.com"] {
            let error = ca.permit(&[name(refused)], &Clock::system()).unwrap_err();
            assert!(error.to_string().contains(refused), "{error}");
        }
    }

    #[test]
    fn a_ca_may_sign_for_the_api_server_below_the_clusters_domain() {
        let dir = tempfile::tempdir().unwrap();
        let domain = "corp.example".parse().unwrap();
        let constraints = Constraints::kubernetes_and(&domain, vec![], vec![]);
        MeshCa::create(dir.path(), &constraints, &Clock::system()).unwrap();
        let ca = MeshCa::read(dir.path(), &Clock::system()).unwrap();
        ca.permit(&[name("kubernetes.default.svc.corp.example")], &Clock::system()).unwrap();
        for refused in ["kubernetes.default.svc.cluster.local", "other.corp.example"] {
            ca.permit(&[name(refused)], &Clock::system()).unwrap_err();
        }
    }

    /// Writes a CA that is not made by [`MeshCa::create`].
    fn write(dir: &Path, change: impl FnOnce(&mut CertificateParams)) {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        fs::write(dir.join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(dir.join("ca.key"), key.serialize_pem()).unwrap();
    }

    #[test]
    fn excluded_names_may_not_be_signed_and_others_may_without_a_list() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), |params| {
            let excluded_subtrees = vec![
                GeneralSubtree::DnsName("internal.example".into()),
                GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([10, 97, 0, 0], 16)),
            ];
            let permitted_subtrees = Vec::new();
            params.name_constraints =
                Some(NameConstraints { permitted_subtrees, excluded_subtrees });
        });
        let ca = MeshCa::read(dir.path(), &Clock::system()).unwrap();
        ca.permit(&["kubernetes", "10.96.0.1", "fd00::1"].map(name), &Clock::system()).unwrap();
        for refused in ["internal.example", "api.internal.example", "10.97.0.1"] {
            let names = ["kubernetes", refused].map(name);
            let error = ca.permit(&names, &Clock::system()).unwrap_err().to_string();
            for part in ["ca.crt", &format!("{refused:?}"), "--dns or --ip"] {
                assert!(error.contains(part), "no {part} in {error}");
            }
        }
    }

    #[test]
    fn constraints_that_clients_do_not_know_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), |params| {
            let subtree = GeneralSubtree::DirectoryName(DistinguishedName::new());
            params.name_constraints = Some(NameConstraints {
                permitted_subtrees: vec![subtree],
                excluded_subtrees: vec![],
            });
        });
        let error = MeshCa::read(dir.path(), &Clock::system()).unwrap_err().to_string();
        assert!(error.contains("signs nothing that clients accept"), "{error}");
    }

    #[test]
    fn a_ca_that_has_expired_or_is_not_valid_yet_is_refused_with_its_date() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), |params| {
            params.not_before = rcgen::date_time_ymd(2001, 2, 3);
            params.not_after = rcgen::date_time_ymd(2004, 5, 6);
        });
        let error = MeshCa::read(dir.path(), &Clock::system()).unwrap_err().to_string();
        for part in ["ca.crt", "after 2004-05-06T00:00:00Z", "clock says 20", "ctrlmesh mesh-ca"] {
            assert!(error.contains(part), "no {part} in {error}");
        }
        write(dir.path(), |params| {
            params.not_before = rcgen::date_time_ymd(2201, 2, 3);
            params.not_after = rcgen::date_time_ymd(2204, 5, 6);
        });
        let error = MeshCa::read(dir.path(), &Clock::system()).unwrap_err().to_string();
        assert!(error.contains("before 2201-02-03T00:00:00Z"), "{error}");
    }

    #[test]
    fn a_certificate_of_no_ca_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa] {
            write(dir.path(), |params| params.is_ca = is_ca);
            let error = MeshCa::read(dir.path(), &Clock::system()).unwrap_err().to_string();
            assert!(error.contains("is not the certificate of a CA"), "{error}");
        }
    }

    #[test]
    fn a_key_of_another_ca_is_refused() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&a, &b] {
            let constraints =
                Constraints::kubernetes_and(&ClusterDomain::default(), vec![], vec![]);
            MeshCa::create(dir.path(), &constraints, &Clock::system()).unwrap();
        }
        fs::copy(b.path().join("ca.key"), a.path().join("ca.key")).unwrap();
        let error = MeshCa::read(a.path(), &Clock::system()).unwrap_err();
        assert!(error.to_string().contains("does not belong"), "{error}");
    }
}
