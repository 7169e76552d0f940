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
    slice,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
    PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime, pem::PemObject};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::{Clock, ClusterDomain, tls};

const LIFETIME: Duration = Duration::from_secs(2 * 365 * 24 * 3600);
pub(super) const LEAF_LIFETIME: Duration = Duration::from_secs(24 * 3600);
const BACKDATE: Duration = Duration::from_secs(300);

/// The reason why a mesh CA is not usable.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
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

/// A range of addresses, as `--ip` takes it: `10.96.0.0/16`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    addr: IpAddr,
    prefix: u8,
}

/// The error for a text that is not a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address or a CIDR range, for example 10.96.0.1 or fd00::/112")]
pub struct BadCidr(String);

impl Cidr {
    /// The range of the first `prefix` bits of `addr`; `None` if it has fewer bits.
    pub fn new(addr: IpAddr, prefix: u8) -> Option<Self> {
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        (prefix <= bits).then_some(Self { addr, prefix })
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
    /// DNS names; each permits itself and every name below it.
    pub dns: Vec<String>,
    /// Ranges; each permits the addresses in it.
    pub ip: Vec<Cidr>,
}

impl Constraints {
    /// The API server's names in a cluster of this domain, localhost and loopback, and the caller's
    /// additions.
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
}

/// A CA that can sign leaves.
pub struct MeshCa {
    path: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    anchor: TrustAnchor<'static>,
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

    /// Reads the CA in `dir`, and checks that it can sign now.
    pub fn read(dir: &Path, clock: &Clock) -> Result<Self, CaError> {
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
        let anchor = anchor_from_trusted_cert(&der)
            .map_err(|_| unusable(&cert_path, "does not parse as X.509"))?
            .to_owned();
        check_is_ca(&der, &anchor, clock).map_err(|what| unusable(&cert_path, &what))?;
        let refused = |error: rcgen::Error| unusable(&cert_path, &error.to_string());
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(refused)?;
        let ca = Self { path: cert_path.clone(), issuer, anchor };
        let leaf = ca.sign(&[], ca.issuer.key(), clock.now()).map_err(refused)?;
        verify(leaf.der(), &ca.anchor, clock).map_err(|error| match error {
            webpki::Error::NameConstraintViolation | webpki::Error::UnknownIssuer => {
                unusable(&cert_path, &format!("signs nothing that clients accept: {error}"))
            }
            _ => unusable(&cert_path, "does not belong to ca.key"),
        })?;
        Ok(ca)
    }

    /// Checks that clients which trust this CA accept it as the signer for every one of `names`.
    /// Fails with [`CaError::Outside`] with the first name that it may not sign.
    pub fn permit(&self, names: &[ServerName<'_>], clock: &Clock) -> Result<(), CaError> {
        let is_permitted = |name: &&ServerName<'_>| {
            self.sign(slice::from_ref(*name), self.issuer.key(), clock.now())
                .is_ok_and(|leaf| verify(leaf.der(), &self.anchor, clock).is_ok())
        };
        match names.iter().find(|name| !is_permitted(name)) {
            None => Ok(()),
            Some(name) => {
                Err(CaError::Outside { path: self.path.clone(), name: name.to_str().into_owned() })
            }
        }
    }

    /// Signs a certificate for a server of these names that has this key.
    pub(super) fn sign(
        &self,
        names: &[ServerName<'_>],
        key: &KeyPair,
        now: SystemTime,
    ) -> Result<Certificate, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.iter().map(san).collect::<Result<_, _>>()?;
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, "ctrlmesh-proxy");
        params.not_before = (now - BACKDATE).into();
        params.not_after = (now + LEAF_LIFETIME).into();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.signed_by(key, &self.issuer)
    }
}

fn san(name: &ServerName<'_>) -> Result<SanType, rcgen::Error> {
    Ok(match name {
        ServerName::IpAddress(ip) => SanType::IpAddress((*ip).into()),
        name => SanType::DnsName(name.to_str().into_owned().try_into()?),
    })
}

/// Verifies a server's certificate as a client does that trusts `anchor` alone.
fn verify(
    cert: &CertificateDer<'_>,
    anchor: &TrustAnchor<'_>,
    clock: &Clock,
) -> Result<(), webpki::Error> {
    let algorithms = tls::provider().signature_verification_algorithms.all;
    let (anchors, usage) = (slice::from_ref(anchor), KeyUsage::server_auth());
    let cert = EndEntityCert::try_from(cert)?;
    cert.verify_for_usage(algorithms, anchors, &[], clock.unix(), usage, None, None).map(drop)
}

/// Checks that `cert` is of a CA and valid now, which webpki reads from no anchor. A CA's
/// certificate as a server's is refused for its dates first, and next for being a CA's.
fn check_is_ca(
    cert: &CertificateDer<'_>,
    anchor: &TrustAnchor<'_>,
    clock: &Clock,
) -> Result<(), String> {
    let not_now = |edge, at: UnixTime, now: UnixTime| {
        let [at, now] = [at, now].map(|time| {
            Timestamp::from_second(time.as_secs().cast_signed()).unwrap_or(Timestamp::MAX)
        });
        Err(format!(
            "is not valid {edge} {at}, and the clock says {now}: make a new CA with \
             `ctrlmesh mesh-ca`, or set the clock"
        ))
    };
    match verify(cert, anchor, clock) {
        Err(webpki::Error::CaUsedAsEndEntity) => Ok(()),
        Err(webpki::Error::CertExpired { not_after, time }) => not_now("after", not_after, time),
        Err(webpki::Error::CertNotValidYet { not_before, time }) => {
            not_now("before", not_before, time)
        }
        Ok(()) | Err(webpki::Error::UnknownIssuer) => {
            Err("is not the certificate of a CA".to_owned())
        }
        Err(error) => Err(format!("cannot be used: {error}")),
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

    use rcgen::DistinguishedName;

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

    #[test]
    fn a_range_is_an_address_and_a_prefix() {
        for text in ["10.0.0.0/33", "10.0.0", "fd00::/129", "x/8", "10.0.0.0/"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
        let whole: Cidr = "fd00::1".parse().unwrap();
        assert_eq!(Some(whole), Cidr::new(whole.addr, 128));
    }
}
