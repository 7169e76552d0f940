//! A leaf in a file: its key and the chain of its certificates, as PEM.
//!
//! The form of a podCertificate volume's `credentialBundlePath` and of cert-manager's combined PEM.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use nix::libc::O_NONBLOCK;
use parking_lot::Mutex;
use rustls_pki_types::{PrivateKeyDer, ServerName, pem, pem::PemObject};
use sha2::{Digest, Sha256};

use super::certified::{BadLeaf, Certified, chain};
use crate::Clock;

/// Maximum length of the file, in bytes: dozens of certificates.
const MAX_BYTES: u64 = 256 << 10;

/// The file, and what was read of it last.
#[derive(Debug)]
pub(super) struct LeafFile {
    pub(super) path: PathBuf,
    called: Option<ServerName<'static>>,
    /// The hash of the content that is in use. `None` before the first.
    in_use: Mutex<Option<[u8; 32]>>,
}

impl LeafFile {
    pub(super) fn new(path: PathBuf, called: Option<ServerName<'static>>) -> Self {
        Self { path, called, in_use: Mutex::default() }
    }

    /// Whether the content is another than that in use, or cannot be read.
    pub(super) fn has_changed(&self) -> bool {
        let now = read(&self.path).ok().map(|bytes| hash(&bytes));
        now != *self.in_use.lock()
    }

    /// Reads the file. A content that is refused is not in use.
    pub(super) fn read(&self, clock: &Clock) -> Result<Certified, BadLeaf> {
        let bytes = read(&self.path).map_err(BadLeaf::Unreadable)?;
        let current = parse(&bytes, clock)?;
        self.check_name(&current)?;
        *self.in_use.lock() = Some(hash(&bytes));
        Ok(current)
    }

    /// Checks that the certificate is valid for the name by which clients call.
    pub(super) fn check_name(&self, current: &Certified) -> Result<(), BadLeaf> {
        match &self.called {
            Some(called) if !current.is_valid_for(called) => {
                Err(BadLeaf::NotFor(called.to_str().into_owned()))
            }
            _ => Ok(()),
        }
    }
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Reads a small file. One that is no file but a queue (FIFO) is empty, and no one waits for it.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let length = file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    match u64::try_from(length).is_ok_and(|length| length <= MAX_BYTES) {
        true => Ok(bytes),
        false => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

/// Replaces a file in one step by one that its owner alone can read.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(bytes)?;
    fs::rename(&fresh, path)
}

fn parse(pem: &[u8], clock: &Clock) -> Result<Certified, BadLeaf> {
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        pem::Error::NoItemsFound => BadLeaf::Incomplete("no private key"),
        _ => BadLeaf::Incomplete("PEM that is broken"),
    })?;
    let chain = chain(pem).ok_or(BadLeaf::Incomplete("PEM that is broken"))?;
    Certified::new(key, chain, clock)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use jiff::Timestamp;
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair,
        PKCS_ECDSA_P384_SHA384, PKCS_ED25519, date_time_ymd,
    };
    use rustls::time_provider::TimeProvider;
    use rustls_pki_types::UnixTime;

    use super::*;
    use crate::leaf::{Leaf, LeafSource};

    /// A self-signed certificate and its key, as PEM.
    fn made(key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> String {
        let names = ["kubernetes.default", "*.example.com", "10.96.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = date_time_ymd(2030, 1, 2);
        change(&mut params);
        params.self_signed(key).unwrap().pem()
    }

    fn key() -> KeyPair {
        KeyPair::generate().unwrap()
    }

    fn at_2026() -> Clock {
        #[derive(Debug)]
        struct In2026;
        impl TimeProvider for In2026 {
            fn current_time(&self) -> Option<UnixTime> {
                Some(UnixTime::since_unix_epoch(Duration::from_secs(1_780_000_000)))
            }
        }
        Clock::of(Arc::new(In2026))
    }

    fn bad(text: &str) -> String {
        let error = parse(text.as_bytes(), &at_2026()).err().expect("refused");
        error.to_string()
    }

    #[test]
    fn key_and_chain_stand_in_any_order_and_of_any_kind() {
        for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
            let issuer = made(&key(), |_| {});
            let key = KeyPair::generate_for(algorithm).unwrap();
            let cert = made(&key, |_| {});
            for text in [
                format!("{}{cert}", key.serialize_pem()),
                format!("{cert}{}", key.serialize_pem()),
                format!("# note\n{}\n{cert}\n{issuer}", key.serialize_pem()),
            ] {
                let current = parse(text.as_bytes(), &at_2026()).unwrap();
                assert_eq!(current.key.cert.len(), text.matches("BEGIN CERT").count());
                let name = |name: &'static str| ServerName::try_from(name).unwrap();
                for good in
                    ["kubernetes.default", "KUBERNETES.default", "a.example.com", "10.96.0.1"]
                {
                    assert!(current.is_valid_for(&name(good)), "{good}");
                }
                for bad in ["kubernetes", "a.b.example.com", "10.96.0.2", "::1"] {
                    assert!(!current.is_valid_for(&name(bad)), "{bad}");
                }
                let end = Timestamp::try_from(current.validity.to).unwrap();
                assert_eq!(end.to_string(), "2030-01-02T00:00:00Z");
            }
        }
    }

    #[test]
    fn bad_leaf_file_says_what_is_wrong() {
        let (key, other) = (key(), key());
        let with = |change: fn(&mut CertificateParams)| {
            bad(&format!("{}{}", key.serialize_pem(), made(&key, change)))
        };
        let cert = made(&key, |_| {});
        let broken = cert.replace("MII", "!!!");
        for (said, wanted) in [
            (bad(""), "has no private key"),
            (bad(&cert), "has no private key"),
            (bad(&key.serialize_pem()), "has no certificate"),
            (bad(&format!("{}{broken}", key.serialize_pem())), "PEM that is broken"),
            (bad(&format!("{}{cert}", other.serialize_pem())), "not that of its first"),
            (
                with(|params| params.not_after = date_time_ymd(2025, 3, 4)),
                "after 2025-03-04T00:00:00Z",
            ),
            (
                with(|params| params.not_before = date_time_ymd(2027, 3, 4)),
                "before 2027-03-04T00:00:00Z",
            ),
            (
                with(|params| {
                    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]
                }),
                "serverAuth",
            ),
            (with(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)), "of a CA"),
        ] {
            assert!(said.contains(wanted), "no {wanted:?} in {said}");
            assert!(!said.contains("BEGIN"), "{said}");
        }
    }

    #[test]
    fn a_file_is_read_again_when_it_changes_and_what_is_bad_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leaf.pem");
        let put = |end| {
            let key = key();
            let cert = made(&key, |params| params.not_after = date_time_ymd(end, 1, 1));
            fs::write(&path, format!("{}{cert}", key.serialize_pem())).unwrap();
        };
        put(2030);
        let called = Some(ServerName::try_from("10.96.0.1").unwrap());
        let source = LeafSource::File { path: path.clone(), called };
        let leaf = Leaf::new(source, &at_2026()).unwrap();
        assert!(leaf.covers("b.example.com") && !leaf.covers("example.com"));
        let first = leaf.not_after();
        assert!(!leaf.refresh(&at_2026()).unwrap());
        put(2025);
        for _ in 0..2 {
            let error = leaf.refresh(&at_2026()).unwrap_err();
            assert!(error.to_string().contains("leaf.pem"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        assert!(leaf.refresh(&at_2026()).is_err());
        assert_eq!(leaf.not_after(), first);
        put(2031);
        assert!(leaf.refresh(&at_2026()).unwrap());
        assert!(leaf.not_after() > first);
        assert!(!leaf.refresh(&at_2026()).unwrap());
    }

    #[test]
    fn bad_leaf_file_for_other_names_or_of_any_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leaf.pem");
        let key = key();
        let text = format!("{}{}", key.serialize_pem(), made(&key, |_| {}));
        fs::write(&path, &text).unwrap();
        let file =
            |called| LeafFile::new(path.clone(), Some(ServerName::try_from(called).unwrap()));
        assert!(file("10.96.0.1").read(&at_2026()).is_ok());
        let error = file("10.96.0.2").read(&at_2026()).err().unwrap().to_string();
        assert!(error.contains("10.96.0.2"), "{error}");
        fs::write(&path, text + &" ".repeat(256 << 10)).unwrap();
        assert!(matches!(file("10.96.0.1").read(&at_2026()), Err(BadLeaf::Unreadable(_))));
    }
}
