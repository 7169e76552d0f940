//! The mesh CA, two files `ca.crt` and `ca.key`, and the names that it may sign for.
//!
//! The certificate carries critical name constraints (RFC 5280 section 4.2.1.10): a stolen key
//! can impersonate the API server's names and nothing else.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, GeneralSubtree, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256,
};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use x509_parser::{
    extensions::{GeneralName, ParsedExtension},
    prelude::{FromDer, X509Certificate},
};

use super::{Clock, ClusterDomain};

const LIFETIME: Duration = Duration::from_secs(2 * 365 * 24 * 3600);
const BACKDATE: Duration = Duration::from_secs(300);

/// Why there is no usable mesh CA.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file of the CA exists already.
    #[error("{} exists: a mesh CA is never overwritten", .0.display())]
    Exists(PathBuf),
    /// A file cannot be read or written.
    #[error("{}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The certificate and key do not parse or do not match. The message contains no part of the
    /// key.
    #[error("{}: {what}", .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// A name outside of the CA's name constraints.
    #[error("the mesh CA in {} may not sign for {name:?}: make one with --dns or --ip for it", .path.display())]
    Outside {
        /// The CA's certificate.
        path: PathBuf,
        /// The name.
        name: String,
    },
}

/// A range of addresses, as `--ip` takes it: `10.96.0.0/16`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    addr: IpAddr,
    prefix: u8,
}

/// Why a text is no range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address or a CIDR range, for example 10.96.0.1 or fd00::/112")]
pub struct BadCidr(String);

impl Cidr {
    /// The range of the first `prefix` bits of `addr`; `None` if it has fewer bits.
    #[must_use]
    pub fn new(addr: IpAddr, prefix: u8) -> Option<Self> {
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        (prefix <= bits).then_some(Self { addr, prefix })
    }

    /// Whether `ip` is in the range.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.addr, ip) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                u32::from(net) & mask == u32::from(ip) & mask
            }
            (IpAddr::V6(net), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                u128::from(net) & mask == u128::from(ip) & mask
            }
            _ => false,
        }
    }

    /// Reads address and mask, both in network order, from an X.509 name constraint.
    fn from_constraint(bytes: &[u8]) -> Option<Self> {
        if let Ok([a, b, c, d, mask @ ..]) = <[u8; 8]>::try_from(bytes) {
            let ones = u32::from_be_bytes(mask).leading_ones();
            return Self::new([a, b, c, d].into(), u8::try_from(ones).ok()?);
        }
        let (addr, mask) = bytes.split_at_checked(16)?;
        let addr = <[u8; 16]>::try_from(addr).ok()?;
        let ones = u128::from_be_bytes(mask.try_into().ok()?).leading_ones();
        Self::new(addr.into(), u8::try_from(ones).ok()?)
    }
}

impl std::str::FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Self, BadCidr> {
        let bad = || BadCidr(text.to_owned());
        let (addr, prefix) = match text.split_once('/') {
            Some((addr, prefix)) => (addr, Some(prefix.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let whole = if addr.is_ipv4() { 32 } else { 128 };
        Self::new(addr, prefix.unwrap_or(whole)).ok_or_else(bad)
    }
}

/// The names and addresses that a CA may sign for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraints {
    /// Each permits the name itself and every name below it.
    pub dns: Vec<String>,
    /// Each permits the addresses in it.
    pub ip: Vec<Cidr>,
}

impl Constraints {
    /// The API server's names in a cluster of this domain, localhost and loopback, and the caller's
    /// additions.
    #[must_use]
    pub fn kubernetes_and(domain: &ClusterDomain, dns: Vec<String>, ip: Vec<Cidr>) -> Self {
        let loopback = [
            Cidr::new(IpAddr::from([127, 0, 0, 0]), 8),
            Cidr::new(IpAddr::from(1_u128.to_be_bytes()), 128),
        ];
        Self {
            dns: domain.names().chain(dns).collect(),
            ip: loopback.into_iter().flatten().chain(ip).collect(),
        }
    }

    fn permits(&self, name: &ServerName<'_>) -> bool {
        match name {
            ServerName::IpAddress(ip) => {
                let ip = IpAddr::from(*ip);
                self.ip.iter().any(|range| range.contains(ip))
            }
            name => {
                let name = name.to_str();
                self.dns.iter().any(|zone| {
                    name.strip_suffix(zone.as_str())
                        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                })
            }
        }
    }

    fn to_extension(&self) -> NameConstraints {
        let dns = self.dns.iter().cloned().map(GeneralSubtree::DnsName);
        let ip = self.ip.iter().map(|range| {
            GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(range.addr, range.prefix))
        });
        NameConstraints {
            permitted_subtrees: dns.chain(ip).collect(),
            excluded_subtrees: Vec::new(),
        }
    }

    /// The certificate's name constraints; `None` if it has none.
    fn of(cert: &X509Certificate<'_>) -> Option<Self> {
        let constraints =
            cert.extensions().iter().find_map(|ext| match ext.parsed_extension() {
                ParsedExtension::NameConstraints(constraints) => Some(constraints),
                _ => None,
            })?;
        let mut found = Self { dns: Vec::new(), ip: Vec::new() };
        for subtree in constraints.permitted_subtrees.iter().flatten() {
            match &subtree.base {
                GeneralName::DNSName(name) => found.dns.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => found.ip.extend(Cidr::from_constraint(bytes)),
                _ => {}
            }
        }
        Some(found)
    }
}

/// A CA that can sign leaves.
pub struct MeshCa {
    path: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    constraints: Option<Constraints>,
}

impl MeshCa {
    /// Makes a CA that may sign for `constraints` and writes it into `dir`, which is created if
    /// missing. Only its owner can read the key file.
    ///
    /// # Errors
    /// [`CaError::Exists`] if either file exists; else the error of the file system or the crypto
    /// library.
    pub fn create(dir: &Path, constraints: &Constraints, clock: &Clock) -> Result<(), CaError> {
        let (cert_path, key_path) = (dir.join("ca.crt"), dir.join("ca.key"));
        for path in [&cert_path, &key_path] {
            if path.exists() {
                return Err(CaError::Exists(path.clone()));
            }
        }
        let unusable = |what: rcgen::Error| CaError::Unusable {
            path: cert_path.clone(),
            what: what.to_string(),
        };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(unusable)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, "ctrlmesh mesh CA");
        params.not_before = (clock.now() - BACKDATE).into();
        params.not_after = (clock.now() + LIFETIME).into();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.name_constraints = Some(constraints.to_extension());
        let cert = params.self_signed(&key).map_err(unusable)?;

        fs::create_dir_all(dir).map_err(|source| CaError::File { path: dir.into(), source })?;
        write_new(&key_path, key.serialize_pem().as_bytes(), 0o600)?;
        write_new(&cert_path, cert.pem().as_bytes(), 0o644)
    }

    /// Reads the CA in `dir`.
    ///
    /// # Errors
    /// [`CaError::File`] or [`CaError::Unusable`].
    pub fn read(dir: &Path) -> Result<Self, CaError> {
        let (cert_path, key_path) = (dir.join("ca.crt"), dir.join("ca.key"));
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|source| CaError::File { path: path.into(), source })
        };
        let (cert_pem, key_pem) = (read(&cert_path)?, read(&key_path)?);
        let unusable = |path: &Path, what: &str| CaError::Unusable {
            path: path.into(),
            what: what.to_owned(),
        };
        let key = KeyPair::from_pem(&key_pem)
            .map_err(|_| unusable(&key_path, "is no PEM private key of a supported kind"))?;
        let der = CertificateDer::from_pem_slice(cert_pem.as_bytes())
            .map_err(|_| unusable(&cert_path, "is no PEM certificate"))?;
        let (_, cert) = X509Certificate::from_der(&der)
            .map_err(|_| unusable(&cert_path, "does not parse as X.509"))?;
        if !cert.is_ca() {
            return Err(unusable(&cert_path, "is not the certificate of a CA"));
        }
        if cert.public_key().subject_public_key.data != key.public_key_raw() {
            return Err(unusable(&cert_path, "does not belong to ca.key"));
        }
        let constraints = Constraints::of(&cert);
        let issuer = Issuer::from_ca_cert_pem(&cert_pem, key)
            .map_err(|error| unusable(&cert_path, &error.to_string()))?;
        Ok(Self { path: cert_path, issuer, constraints })
    }

    /// Checks that this CA may sign for every one of `names`.
    ///
    /// # Errors
    /// [`CaError::Outside`] with the first name that it may not sign.
    pub fn permit(&self, names: &[ServerName<'_>]) -> Result<(), CaError> {
        let Some(constraints) = &self.constraints else {
            return Ok(());
        };
        match names.iter().find(|name| !constraints.permits(name)) {
            None => Ok(()),
            Some(name) => {
                Err(CaError::Outside { path: self.path.clone(), name: name.to_str().into_owned() })
            }
        }
    }

    /// The signing key and the issuer's name.
    pub(super) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }
}

impl std::fmt::Debug for MeshCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeshCa").field("path", &self.path).finish_non_exhaustive()
    }
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

    use super::*;

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
        let ca = MeshCa::read(dir.path()).unwrap();
        assert_eq!(ca.constraints.as_ref(), Some(&constraints));
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
        ca.permit(&allowed.map(name)).unwrap();
        for refused in ["10.97.0.1", "fd01::1", "example.com", "notapi.example.com"] {
            let error = ca.permit(&[name(refused)]).unwrap_err();
            assert!(error.to_string().contains(refused), "{error}");
        }
    }

    #[test]
    fn a_ca_may_sign_for_the_api_server_below_the_clusters_domain() {
        let dir = tempfile::tempdir().unwrap();
        let domain = "corp.example".parse().unwrap();
        let constraints = Constraints::kubernetes_and(&domain, vec![], vec![]);
        MeshCa::create(dir.path(), &constraints, &Clock::system()).unwrap();
        let ca = MeshCa::read(dir.path()).unwrap();
        ca.permit(&[name("kubernetes.default.svc.corp.example")]).unwrap();
        for refused in ["kubernetes.default.svc.cluster.local", "other.corp.example"] {
            ca.permit(&[name(refused)]).unwrap_err();
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
        let error = MeshCa::read(a.path()).unwrap_err();
        assert!(error.to_string().contains("does not belong"), "{error}");
    }

    #[test]
    fn a_range_is_an_address_and_a_prefix() {
        for text in ["10.0.0.0/33", "10.0.0", "fd00::/129", "x/8", "10.0.0.0/"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains([1, 2, 3, 4].into()));
    }
}
