//! The authorities as the data of a Secret.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::rotation::{CaRotation, Former};
use ctrlmesh_net::ca::{Authority, BadAuthority, certificate_pem};

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
pub(super) fn put(data: &mut SecretData, name: &str, rollover: &CaRotation) {
    put_authority(data, name, &rollover.signing);
    put_seconds(data, &format!("{name}.longest"), rollover.longest);
    if let Some(next) = &rollover.next {
        put_authority(data, &format!("{name}-next"), next);
    }
    if let Some(Former { cert, until }) = &rollover.former {
        data.insert(format!("{name}-former.crt"), certificate_pem(cert).into_bytes());
        let since_1970 = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        put_seconds(data, &format!("{name}-former.until"), since_1970);
    }
}

/// Certificates count in seconds, and so does this.
fn put_seconds(data: &mut SecretData, key: &str, time: Duration) {
    data.insert(key.to_owned(), time.as_secs().to_string().into_bytes());
}

/// Writes a CA under a name.
pub(super) fn put_authority(data: &mut SecretData, name: &str, ca: &Authority) {
    data.insert(format!("{name}.crt"), certificate_pem(ca.cert()).into_bytes());
    data.insert(format!("{name}.key"), ca.key_pem().into_bytes());
}

/// Reads what [`put`] wrote.
pub(super) fn rollover(data: &SecretData, name: &str) -> Result<CaRotation, BadSecret> {
    let next = format!("{name}-next");
    let former = format!("{name}-former");
    let has = |name: &str, kinds: [&str; 2]| {
        kinds.iter().any(|kind| data.contains_key(&format!("{name}.{kind}")))
    };
    Ok(CaRotation {
        signing: authority(data, name)?,
        longest: seconds(data, &format!("{name}.longest"))?,
        next: if has(&next, ["crt", "key"]) { Some(authority(data, &next)?) } else { None },
        former: if has(&former, ["crt", "until"]) {
            Some(read_former(data, &former)?)
        } else {
            None
        },
    })
}

fn read_former(data: &SecretData, name: &str) -> Result<Former, BadSecret> {
    let key = format!("{name}.crt");
    let cert = CertificateDer::from_pem_slice(text(data, &key)?.as_bytes())
        .map_err(|_| bad(&key, "is no PEM certificate"))?;
    let until = SystemTime::UNIX_EPOCH + seconds(data, &format!("{name}.until"))?;
    Ok(Former { cert, until })
}

/// A number of seconds, no more than a certificate can say.
fn seconds(data: &SecretData, key: &str) -> Result<Duration, BadSecret> {
    let number = text(data, key)?.parse().ok();
    let number = number.filter(|seconds| Timestamp::from_second(*seconds).is_ok());
    let number = number.and_then(|seconds| u64::try_from(seconds).ok());
    number.map(Duration::from_secs).ok_or_else(|| bad(key, "is not a number of seconds"))
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
