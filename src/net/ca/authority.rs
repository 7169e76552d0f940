//! A CA in memory: a certificate with its key, and what it signs.

use std::{
    slice,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
};
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, pem::PemObject};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::{certificate::X509Certificate, prelude::FromDer, time::ASN1Time};

use super::constraints::Constraints;
use crate::{Clock, tls};

/// Certificates begin in the past, for clocks that are behind by up to ten minutes.
const BACKDATE: Duration = Duration::from_secs(15 * 60);

/// A CA in memory.
#[derive(derive_more::Debug)]
#[debug("Authority({validity:?})")]
pub struct Authority {
    cert: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    anchor: TrustAnchor<'static>,
    validity: Validity,
}

/// The time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second (`notBefore`).
    pub from: SystemTime,
    /// The last second (`notAfter`).
    pub to: SystemTime,
}

/// The edge of a validity that a clock is not within.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not valid {edge} {at}, and the clock says {now}")]
pub struct NotNow {
    /// The side of the edge on which it is not valid: before or after.
    pub edge: &'static str,
    /// The edge.
    pub at: Timestamp,
    /// The time of the clock.
    pub now: Timestamp,
}

/// A CA's certificate that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct CaSpec<'a> {
    /// The common name.
    pub name: &'a str,
    /// The names that it may sign for. Critical.
    pub constraints: &'a Constraints,
    /// The number of CAs that may stand below it in a chain (`pathLenConstraint`).
    pub below: u8,
    /// The validity.
    pub validity: Validity,
}

/// A leaf that is to be signed.
#[derive(Clone, Copy, Debug)]
pub struct LeafSpec<'a> {
    /// The server's names and addresses.
    pub names: &'a [ServerName<'a>],
    /// A URI that names the holder to servers. A leaf with one is for clients too.
    pub uri: Option<&'a str>,
    /// The validity.
    pub validity: Validity,
}

/// The reason why a certificate and a key are no CA that can sign now. No message holds a part of
/// the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAuthority {
    #[error("is no PEM private key of a supported kind")]
    Key,
    #[error("is no PEM certificate")]
    NoCertificate,
    #[error("does not parse as X.509")]
    NotX509,
    #[error("is not the certificate of a CA")]
    NotCa,
    #[error(transparent)]
    NotNow(#[from] NotNow),
    #[error("signs nothing that clients accept: {0}")]
    NotAccepted(String),
    #[error("does not belong to its private key")]
    OtherKey,
}

impl Validity {
    /// The validity of a certificate.
    pub fn of(cert: &X509Certificate<'_>) -> Self {
        let at = |time: ASN1Time| {
            let seconds = time.timestamp().try_into().unwrap_or_default();
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
        };
        Self { from: at(cert.validity().not_before), to: at(cert.validity().not_after) }
    }

    /// The edge that the clock is beyond. `None` if it is within.
    pub fn not_now(self, clock: &Clock) -> Option<NotNow> {
        let now = clock.now();
        let (edge, at) = match self {
            Self { from, .. } if now < from => ("before", from),
            Self { to, .. } if now > to => ("after", to),
            _ => return None,
        };
        let [at, now] = [at, now].map(|time| Timestamp::try_from(time).unwrap_or(Timestamp::MAX));
        Some(NotNow { edge, at, now })
    }

    /// The part of it that is within another.
    pub fn within(self, other: Self) -> Self {
        Self { from: self.from.max(other.from), to: self.to.min(other.to) }
    }

    /// The time at which a certificate with this validity was signed, by the signer's clock.
    pub fn signed_at(self) -> SystemTime {
        (self.from + BACKDATE).min(self.to)
    }

    /// The time at which two thirds of the life since the signature are over.
    pub fn two_thirds(self) -> SystemTime {
        let signed_at = self.signed_at();
        signed_at + self.to.duration_since(signed_at).unwrap_or_default() * 2 / 3
    }

    /// The validity of a certificate that is made now.
    pub fn starting(now: SystemTime, lifetime: Duration) -> Self {
        Self { from: now - BACKDATE, to: now + lifetime }
    }
}

impl Authority {
    /// Makes a root: a key, and its certificate signed by itself.
    pub fn root(spec: &CaSpec<'_>) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let cert = spec.params().self_signed(&key)?.into();
        Self::of(cert, key, spec.validity)
    }

    /// Makes a CA below this one.
    pub fn issue(&self, spec: &CaSpec<'_>) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let cert = spec.params().signed_by(&key, &self.issuer)?.into();
        Self::of(cert, key, spec.validity)
    }

    fn of(
        cert: CertificateDer<'static>,
        key: KeyPair,
        validity: Validity,
    ) -> Result<Self, rcgen::Error> {
        let anchor = anchor_from_trusted_cert(&cert)
            .map_err(|_| rcgen::Error::CouldNotParseCertificate)?
            .to_owned();
        let issuer = Issuer::from_ca_cert_der(&cert, key)?;
        Ok(Self { cert, issuer, anchor, validity })
    }

    /// Reads a CA, valid now or not. Fails with [`BadAuthority`]; [`BadAuthority::Key`] is about the
    /// key, all others about the certificate.
    pub fn parse(cert_pem: &str, key_pem: &str) -> Result<Self, BadAuthority> {
        let key = KeyPair::from_pem(key_pem).map_err(|_| BadAuthority::Key)?;
        let cert = CertificateDer::from_pem_slice(cert_pem.as_bytes())
            .map_err(|_| BadAuthority::NoCertificate)?;
        let validity = ca_validity(&cert, &key)?;
        Self::of(cert, key, validity).map_err(|_| BadAuthority::NotX509)
    }

    /// Checks that clients accept what it signs now.
    pub fn check(&self, clock: &Clock) -> Result<(), BadAuthority> {
        if let Some(why) = self.validity.not_now(clock) {
            return Err(why.into());
        }
        let leaf = self
            .throw_away(&[], clock.now())
            .map_err(|error| BadAuthority::NotAccepted(error.to_string()))?;
        self.verify(&leaf, clock).map_err(|error| BadAuthority::NotAccepted(error.to_string()))
    }

    /// The first of `names` that it may not sign for: clients which trust this CA would not accept
    /// it. `None` if there is none.
    pub fn first_outside<'a>(
        &self,
        names: &'a [ServerName<'a>],
        clock: &Clock,
    ) -> Option<&'a ServerName<'a>> {
        let is_permitted = |name: &&ServerName<'_>| {
            let leaf = self.throw_away(slice::from_ref(*name), clock.now());
            leaf.is_ok_and(|leaf| self.verify(&leaf, clock).is_ok())
        };
        names.iter().find(|name| !is_permitted(name))
    }

    /// Signs a certificate for who has this key.
    pub fn sign(
        &self,
        spec: &LeafSpec<'_>,
        key: &impl PublicKeyData,
    ) -> Result<CertificateDer<'static>, rcgen::Error> {
        let mut params = params("ctrlmesh-proxy", spec.validity);
        params.subject_alt_names = spec.names.iter().map(san).collect::<Result<_, _>>()?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if let Some(uri) = spec.uri {
            params.subject_alt_names.push(SanType::URI(uri.try_into()?));
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?.into())
    }

    /// The certificate.
    pub fn cert(&self) -> &CertificateDer<'static> {
        &self.cert
    }

    /// The private key, as PEM.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// The validity.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// A leaf of these names, for the CA's own key.
    fn throw_away(
        &self,
        names: &[ServerName<'_>],
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, rcgen::Error> {
        let validity = Validity::starting(now, BACKDATE);
        self.sign(&LeafSpec { names, uri: None, validity }, self.issuer.key())
    }

    /// Verifies a server's certificate as a client does that trusts this CA alone.
    fn verify(&self, cert: &CertificateDer<'_>, clock: &Clock) -> Result<(), webpki::Error> {
        let algorithms = tls::provider().signature_verification_algorithms.all;
        let (anchors, usage) = (slice::from_ref(&self.anchor), KeyUsage::server_auth());
        let cert = EndEntityCert::try_from(cert)?;
        cert.verify_for_usage(algorithms, anchors, &[], clock.unix(), usage, None, None).map(drop)
    }
}

impl CaSpec<'_> {
    fn params(&self) -> CertificateParams {
        let mut params = params(self.name, self.validity);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(self.below));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.name_constraints = Some(self.constraints.to_extension());
        params.use_authority_key_identifier_extension = true;
        params
    }
}

fn params(name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = validity.from.into();
    params.not_after = validity.to.into();
    params
}

fn san(name: &ServerName<'_>) -> Result<SanType, rcgen::Error> {
    Ok(match name {
        ServerName::IpAddress(ip) => SanType::IpAddress((*ip).into()),
        name => SanType::DnsName(name.to_str().into_owned().try_into()?),
    })
}

/// The validity of a CA's certificate, which must be that of the key.
fn ca_validity(cert: &CertificateDer<'_>, key: &KeyPair) -> Result<Validity, BadAuthority> {
    let (_, cert) = X509Certificate::from_der(cert).map_err(|_| BadAuthority::NotX509)?;
    if !cert.is_ca() {
        return Err(BadAuthority::NotCa);
    }
    if cert.public_key().raw != key.subject_public_key_info() {
        return Err(BadAuthority::OtherKey);
    }
    Ok(Validity::of(&cert))
}
