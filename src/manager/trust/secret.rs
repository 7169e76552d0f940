//! The authorities as the data of a Secret.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::rollover::Rollover;
use crate::net::ca::{Authority, BadAuthority, certificate_pem};

/// The data of a Secret.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// The reason why data is not that of the authorities. No message holds a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key {key} {problem}")]
pub struct BadSecret {
    key: String,
    problem: String,
}

/// Writes a rollover under a name.
pub(super) fn put(data: &mut SecretData, name: &str, rollover: &Rollover) {
    put_authority(data, name, &rollover.signing);
    // Certificates count in seconds, and so does this.
    let since = rollover.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    data.insert(format!("{name}.since"), since.as_secs().to_string().into_bytes());
    if let Some(next) = &rollover.next {
        put_authority(data, &format!("{name}-next"), next);
    }
    if let Some(former) = &rollover.former {
        data.insert(format!("{name}-former.crt"), certificate_pem(former).into_bytes());
    }
}

/// Writes a CA under a name.
pub(super) fn put_authority(data: &mut SecretData, name: &str, ca: &Authority) {
    data.insert(format!("{name}.crt"), certificate_pem(ca.cert()).into_bytes());
    data.insert(format!("{name}.key"), ca.key_pem().into_bytes());
}

/// Reads what [`put`] wrote.
pub(super) fn rollover(data: &SecretData, name: &str) -> Result<Rollover, BadSecret> {
    let since = format!("{name}.since");
    let seconds = text(data, &since)?.parse().ok();
    let at = seconds.filter(|seconds| Timestamp::from_second(*seconds).is_ok());
    let seconds = at.and_then(|seconds| u64::try_from(seconds).ok());
    let Some(seconds) = seconds else {
        return Err(bad(&since, "is not a number of seconds since 1970"));
    };
    let next = format!("{name}-next");
    let has_next = ["crt", "key"].iter().any(|kind| data.contains_key(&format!("{next}.{kind}")));
    let former = format!("{name}-former.crt");
    let former = match data.get(&former) {
        None => None,
        Some(pem) => {
            let cert = CertificateDer::from_pem_slice(pem);
            Some(cert.map_err(|_| bad(&former, "is no PEM certificate"))?)
        }
    };
    Ok(Rollover {
        signing: authority(data, name)?,
        since: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        next: if has_next { Some(authority(data, &next)?) } else { None },
        former,
    })
}

/// Reads what [`put_authority`] wrote.
pub(super) fn authority(data: &SecretData, name: &str) -> Result<Authority, BadSecret> {
    let [cert, key] = ["crt", "key"].map(|kind| format!("{name}.{kind}"));
    Authority::parse(text(data, &cert)?, text(data, &key)?).map_err(|problem| match problem {
        BadAuthority::Key => bad(&key, &problem.to_string()),
        problem => bad(&cert, &problem.to_string()),
    })
}

fn text<'a>(data: &'a SecretData, key: &str) -> Result<&'a str, BadSecret> {
    let bytes = data.get(key).ok_or_else(|| bad(key, "is missing"))?;
    str::from_utf8(bytes).map_err(|_| bad(key, "is not text"))
}

fn bad(key: &str, problem: &str) -> BadSecret {
    BadSecret { key: key.to_owned(), problem: problem.to_owned() }
}
