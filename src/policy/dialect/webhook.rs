//! The settings of a controller's webhook server.

use std::{num::NonZeroU16, ops::RangeInclusive};

use ctrlmesh_api::{OwnerDown, Route, Unowned};
use ctrlmesh_wire::dns::is_subdomain;

/// The ports of the proxy, in use or kept for it.
const OWN_PORTS: RangeInclusive<u16> = 5441..=5447;
/// Longest path of Linux, in bytes.
const MAX_PATH: usize = 4096;
/// Longest name of a file, or of a key of a Secret, in bytes.
const MAX_FILE: usize = 253;

/// The webhook server of a controller, and the answerer of its reviews.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The directory of the certificate in the controller's container: an absolute path.
    pub cert_dir: Box<str>,
    /// The port on which the controller serves; none of the proxy's own.
    pub port: NonZeroU16,
    /// The Secret that holds the certificate. `None` if a volume at `cert_dir` does.
    pub cert_secret: Option<Box<str>>,
    /// The files of the certificate and its key. `None` if they have one of the usual names.
    pub files: Option<CertFiles>,
    /// The answerer of a review.
    pub route: Route,
    /// The answer if no shard owns the object.
    pub unowned: Unowned,
    /// The answer if no pod of the owner can.
    pub owner_down: OwnerDown,
}

/// The names of the files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertFiles {
    /// The certificate's.
    pub cert: Box<str>,
    /// The key's.
    pub key: Box<str>,
}

/// Errors in a field of `spec.webhook`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadWebhook {
    #[error(
        "{0:?} is no directory: give its absolute path in the controller's container, without \
         \"..\", such as \"/tmp/k8s-webhook-server/serving-certs\""
    )]
    Directory(String),
    #[error("0 is no port: give the one on which the controller serves, 1 to 65535, such as 9443")]
    NoPort,
    #[error(
        "{0} is a port of the proxy: let the controller serve on one that is not 5441 to 5447, \
         such as 9443"
    )]
    OwnPort(u16),
    #[error(
        "{0:?} is not the name of a Secret: give lower case letters, digits, '-' and '.', such as \
         \"webhook-server-cert\""
    )]
    Secret(String),
    #[error(
        "{0:?} is no file in certDir: give at most 253 letters, digits, '-', '_' and '.', such as \
         \"tls.crt\""
    )]
    File(String),
    #[error("is missing: certName and keyName belong together, give both or neither")]
    OneOfTwo,
}

impl Webhook {
    /// A path of `certDir`.
    pub(super) fn directory(given: &str) -> Result<Box<str>, BadWebhook> {
        let is_path = given.starts_with('/')
            && given.len() <= MAX_PATH
            && !given.contains(char::is_control)
            && given.split('/').all(|part| part != "..");
        if is_path { Ok(given.into()) } else { Err(BadWebhook::Directory(given.to_owned())) }
    }

    /// A port of the controller. Fails if it is none, or one of the proxy's own.
    pub fn port(given: u16) -> Result<NonZeroU16, BadWebhook> {
        if OWN_PORTS.contains(&given) {
            return Err(BadWebhook::OwnPort(given));
        }
        NonZeroU16::new(given).ok_or(BadWebhook::NoPort)
    }

    /// The name of a Secret.
    pub(super) fn secret(given: &str) -> Result<Box<str>, BadWebhook> {
        if is_subdomain(given) {
            Ok(given.into())
        } else {
            Err(BadWebhook::Secret(given.to_owned()))
        }
    }

    /// The name of a file, as a key of a Secret may be.
    pub(super) fn file(given: &str) -> Result<Box<str>, BadWebhook> {
        let is_of_file = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_file = (1..=MAX_FILE).contains(&given.len())
            && given.bytes().all(is_of_file)
            && given != "."
            && !given.starts_with("..");
        if is_file { Ok(given.into()) } else { Err(BadWebhook::File(given.to_owned())) }
    }
}
