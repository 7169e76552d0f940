use std::{
    fs, io, iter,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use nix::unistd::{Uid, geteuid, mkfifo, setfsuid};
use rcgen::{
    CertificateParams, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ECDSA_P521_SHA512, PKCS_ED25519, PKCS_RSA_SHA256, RsaKeySize, date_time_ymd,
};
use rustls::{
    CertificateError, Error, ServerConfig,
    sign::{CertifiedKey, SingleCertAndKey},
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tempfile::TempDir;
use x509_parser::der_parser;

use super::*;
use crate::{
    Clock,
    tests::{Met, meet},
    tls::{ClientTls, H2, HTTP_11, provider},
};

const SERVICE: &str = "operator.ns.svc";

/// A certificate and its key, as PEM.
struct Made {
    cert: String,
    key: String,
}

impl Made {
    fn of(key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new([SERVICE.to_owned()]).unwrap();
        change(&mut params);
        let cert = params.self_signed(key).unwrap().pem();
        Self { cert, key: key.serialize_pem() }
    }

    fn new() -> Self {
        Self::of(&KeyPair::generate().unwrap(), |_| {})
    }

    fn put(&self, dir: &Path) {
        self.put_as(dir, "tls.crt", "tls.key");
    }

    fn put_as(&self, dir: &Path, cert: &str, key: &str) {
        fs::write(dir.join(cert), &self.cert).unwrap();
        fs::write(dir.join(key), &self.key).unwrap();
    }

    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }

    fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }

    /// A server that shows the certificate.
    fn server(&self) -> ServerConfig {
        shows(self.der(), self.private(), &[&TLS12, &TLS13])
    }
}

fn shows(
    cert: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ServerConfig {
    // Without the check that both belong together.
    let key = provider().key_provider.load_private_key(key).unwrap();
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![cert], key));
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown))
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn of(dir: &TempDir) -> Arc<WebhookCert> {
    Arc::new(WebhookCert::new(dir.path().to_owned(), None, None))
}

fn shown(pair: &WebhookCert) -> Option<CertificateDer<'static>> {
    pair.current().map(|key| key.cert[0].clone())
}

/// A call to a server that must be the operator.
fn call(pair: &Arc<WebhookCert>, server: ServerConfig) -> Met {
    let tls = OperatorTls::new(Arc::clone(pair), &Clock::system()).unwrap();
    meet(tls.offering(iter::empty()), server, "another.name")
}

#[test]
fn the_first_usual_names_that_both_exist_are_taken() {
    let dir = directory();
    let pair = of(&dir);
    let said = pair.problem(&Clock::system()).unwrap().to_string();
    for part in ["tls.crt and tls.key", "cert.pem", "apiserver.key", "nor cert and key"] {
        assert!(said.contains(part), "no {part} in {said}");
    }
    assert!(pair.current().is_none());
    let names = [
        ("cert", "key"),
        ("apiserver.crt", "apiserver.key"),
        ("cert.pem", "key.pem"),
        ("tls.crt", "tls.key"),
    ];
    for (cert, key) in names {
        let made = Made::new();
        fs::write(dir.path().join(cert), &made.cert).unwrap();
        let before = shown(&pair);
        match before {
            None => {
                let said = pair.refresh().unwrap_err().to_string();
                assert!(said.ends_with(&format!("/{cert} has no {key} next to it")), "{said}");
            }
            Some(_) => assert!(!pair.refresh().unwrap()),
        }
        assert_eq!(shown(&pair), before);
        fs::write(dir.path().join(key), &made.key).unwrap();
        assert!(pair.refresh().unwrap());
        assert!(!pair.refresh().unwrap());
        assert_eq!(shown(&pair), Some(made.der()), "{cert}");
        assert_eq!(pair.problem(&Clock::system()), None);
    }
}

#[test]
fn names_that_are_given_are_the_only_ones() {
    let dir = directory();
    let (usual, named) = (Made::new(), Made::new());
    usual.put(dir.path());
    let names = Some(PairNames { cert: "ca.pem".into(), key: "ca-key.pem".into() });
    let pair = WebhookCert::new(dir.path().to_owned(), names.clone(), None);
    let said = pair.problem(&Clock::system()).unwrap().to_string();
    assert!(said.ends_with("holds no ca.pem and ca-key.pem"), "{said}");
    named.put_as(dir.path(), "ca.pem", "ca-key.pem");
    assert!(pair.refresh().unwrap());
    assert_eq!(shown(&pair), Some(named.der()));

    pair.rename(None);
    assert_eq!(shown(&pair), Some(named.der()));
    assert!(pair.refresh().unwrap());
    assert_eq!(shown(&pair), Some(usual.der()));
    pair.rename(names);
    assert!(pair.refresh().unwrap());
    assert!(pair.is_ours(&usual.der()) && pair.is_ours(&named.der()));
}

#[test]
fn a_torn_or_wrong_pair_keeps_the_last_good_one() {
    let dir = directory();
    let (first, second) = (Made::new(), Made::new());
    first.put(dir.path());
    let pair = of(&dir);
    let (cert, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    let end = first.cert.find("-----END").unwrap();
    let broken = first.cert.replace("MII", "!!!");
    let encrypted = first.key.replace("PRIVATE", "ENCRYPTED PRIVATE");
    let no_key = first.key.replace("MIG", "MIH");
    let no_cert = pem::encode(&pem::Pem::new("CERTIFICATE", "text"));
    let huge = first.cert.clone() + &" ".repeat(256 << 10);
    for (a, b, wanted) in [
        (&second.cert, &first.key, "tls.key is not the key of "),
        (&first.cert, &second.key, "tls.key is not the key of "),
        (&String::new(), &first.key, "tls.crt has no certificate as PEM"),
        (&first.cert[..end].to_owned(), &first.key, "tls.crt has PEM that is broken"),
        (&broken, &first.key, "tls.crt has PEM that is broken"),
        (&no_cert, &first.key, "tls.crt has a certificate that cannot be used"),
        (&huge, &first.key, "tls.crt cannot be read, file too large: mode 0"),
        (&first.cert, &String::new(), "tls.key has no private key as PEM"),
        (&first.cert, &first.cert, "tls.key has no private key as PEM"),
        (&first.cert, &encrypted, "or an encrypted one"),
        (&first.cert, &first.key[..first.key.len() / 2].to_owned(), "tls.key has PEM that is"),
        (&first.cert, &no_key, "tls.key has a private key that cannot be used"),
    ] {
        fs::write(&cert, a).unwrap();
        fs::write(&key, b).unwrap();
        for _ in 0..2 {
            let said = pair.refresh().unwrap_err();
            assert_eq!(pair.problem(&Clock::system()), Some(said.clone()));
            let said = said.to_string();
            assert!(said.contains(wanted), "no {wanted:?} in {said}");
            let lines = first.key.lines().chain(second.key.lines());
            assert!(lines.filter(|line| line.len() > 3).all(|line| !said.contains(line)), "{said}");
        }
        assert_eq!(shown(&pair), Some(first.der()));
        assert!(!pair.is_ours(&second.der()), "torn files are no pair that was held");
    }
    first.put(dir.path());
    assert!(!pair.refresh().unwrap(), "the same again");
    assert_eq!(pair.problem(&Clock::system()), None);
    second.put(dir.path());
    assert!(pair.refresh().unwrap());
    assert_eq!(shown(&pair), Some(second.der()));
}

#[test]
fn a_file_that_may_not_be_read_is_told_with_its_mode_and_owner() {
    let dir = directory();
    let made = Made::new();
    made.put(dir.path());
    let pair = of(&dir);
    let key = dir.path().join("tls.key");
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // Root reads everything; the thread alone becomes someone else.
    let refused = |pair: &Arc<WebhookCert>| {
        let pair = Arc::clone(pair);
        let look = move || {
            if geteuid().is_root() {
                setfsuid(Uid::from_raw(1359));
            }
            pair.refresh().unwrap_err().to_string()
        };
        thread::spawn(look).join().unwrap()
    };
    let owner = format!("owner {}:", geteuid());
    mode(dir.path(), 0o755);
    mode(&key, 0o000);
    let said = refused(&pair);
    for part in ["/tls.key cannot be read, permission denied: mode 0000", &owner, "this process is"]
    {
        assert!(said.contains(part), "no {part} in {said}");
    }
    assert_eq!(shown(&pair), Some(made.der()));
    mode(&key, 0o644);
    mode(dir.path(), 0o600);
    let said = refused(&pair);
    let hidden = format!("{} has mode 0600 and {owner}", dir.path().display());
    assert!(said.contains("tls.crt cannot be read") && said.contains(&hidden), "{said}");
    mode(dir.path(), 0o755);
    assert!(!pair.refresh().unwrap(), "the same again");
    assert_eq!(pair.problem(&Clock::system()), None);
}

#[test]
fn what_is_no_file_stops_nobody() {
    let dir = directory();
    let made = Made::new();
    made.put(dir.path());
    let pair = of(&dir);
    let cert = dir.path().join("tls.crt");
    fs::remove_file(&cert).unwrap();
    mkfifo(&cert, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let said = pair.refresh().unwrap_err().to_string();
    assert!(said.contains("tls.crt has no certificate"), "{said}");
    fs::remove_file(&cert).unwrap();
    fs::create_dir(&cert).unwrap();
    let said = pair.refresh().unwrap_err();
    let is_directory = |bad: &BadPair| match bad {
        BadPair::Unreadable { why, .. } => *why == io::ErrorKind::IsADirectory,
        _ => false,
    };
    assert!(is_directory(&said), "{said}");
    let file = WebhookCert::new(dir.path().join("tls.key"), None, None);
    let said = file.problem(&Clock::system()).unwrap().to_string();
    assert!(said.contains("tls.crt cannot be read, not a directory"), "{said}");
}

#[test]
fn keys_of_all_kinds_are_shown_and_accepted() {
    let rsa = |size| KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, size).unwrap();
    let mut keys = vec![rsa(RsaKeySize::_2048), rsa(RsaKeySize::_4096)];
    let curves =
        [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ECDSA_P521_SHA512, &PKCS_ED25519];
    keys.extend(curves.map(|curve| KeyPair::generate_for(curve).unwrap()));
    for key in keys {
        let dir = directory();
        // As openssl writes them: a self-signed certificate is a CA's, parameters stand before a key.
        let mut made = Made::of(&key, |params| {
            params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        });
        let parameters = pem::Pem::new("EC PARAMETERS", [6, 8, 42, 134, 72, 206, 61, 3, 1, 7]);
        made.key.insert_str(0, &pem::encode(&parameters));
        made.put(dir.path());
        let pair = of(&dir);
        assert_eq!(pair.problem(&Clock::system()), None, "{:?}", key.algorithm());
        for version in [&TLS12, &TLS13] {
            let server = shows(made.der(), made.private(), &[version]);
            call(&pair, server).unwrap();
        }
        let front = ClientTls::new(pair.clone(), &Clock::system()).unwrap();
        let (client, _) = call(&pair, front.speaking(None)).unwrap();
        assert_eq!(client.peer_certificates().unwrap()[0], made.der());
    }
}

/// A structure of DER with a tag.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
    let head = match (high, low) {
        (0, ..128) => vec![tag, low],
        (0, _) => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [&head, content].concat()
}

/// The key without the structure of PKCS#8 around it, as older programs write it: PKCS#1 (RFC 8017)
/// for RSA, SEC 1 (RFC 5915) else.
fn bare(key: &KeyPair) -> String {
    let whole = key.serialize_der();
    let (_, parts) = der_parser::parse_der(&whole).unwrap();
    let parts = parts.as_sequence().unwrap();
    let bare = parts[2].as_slice().unwrap();
    if key.algorithm() == &PKCS_RSA_SHA256 {
        return pem::encode(&pem::Pem::new("RSA PRIVATE KEY", bare));
    }
    // There the curve is named behind the key itself, not in front of all.
    let curve = parts[1].as_sequence().unwrap()[1].as_oid().unwrap();
    let (_, parts) = der_parser::parse_der(bare).unwrap();
    let parts = parts.as_sequence().unwrap();
    let curve = der(0xa0, &der(6, curve.as_bytes()));
    let bare = [der(2, &[1]), der(4, parts[1].as_slice().unwrap()), curve].concat();
    pem::encode(&pem::Pem::new("EC PRIVATE KEY", der(0x30, &bare)))
}

#[test]
fn i13_keys_as_older_programs_write_them_are_shown() {
    let mut keys = vec![KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap()];
    let curves = [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ECDSA_P521_SHA512];
    keys.extend(curves.map(|curve| KeyPair::generate_for(curve).unwrap()));
    for key in keys {
        let dir = directory();
        let made = Made { key: bare(&key), ..Made::of(&key, |_| {}) };
        let begin = made.key.lines().next().unwrap();
        let kinds = ["-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN EC PRIVATE KEY-----"];
        assert!(kinds.contains(&begin), "{begin}");
        made.put(dir.path());
        let pair = of(&dir);
        assert_eq!(pair.problem(&Clock::system()), None, "{:?}", key.algorithm());
        let front = ClientTls::new(pair.clone(), &Clock::system()).unwrap();
        let (client, _) = call(&pair, front.speaking(None)).unwrap();
        assert_eq!(client.peer_certificates().unwrap()[0], made.der());
    }
}

#[test]
fn a_pair_that_is_not_valid_now_is_shown_and_told() {
    for (from, to, wanted) in [
        (2001, 2004, "/tls.crt is not valid after 2004-05-06T00:00:00Z, and the clock says 20"),
        (2201, 2204, "/tls.crt is not valid before 2201-05-06T00:00:00Z"),
    ] {
        let dir = directory();
        let made = Made::of(&KeyPair::generate().unwrap(), |params| {
            params.not_before = date_time_ymd(from, 5, 6);
            params.not_after = date_time_ymd(to, 5, 6);
        });
        made.put(dir.path());
        let pair = of(&dir);
        assert_eq!(shown(&pair), Some(made.der()));
        assert!(!pair.refresh().unwrap());
        let said = pair.problem(&Clock::system()).unwrap().to_string();
        assert!(said.contains(wanted), "{said}");
        assert!(pair.validity().unwrap().to > pair.validity().unwrap().from);
        call(&pair, made.server()).unwrap();
    }
}

#[test]
fn the_operator_shows_what_its_directory_holds_or_held() {
    let dir = directory();
    let (first, second, foreign) = (Made::new(), Made::new(), Made::new());
    first.put(dir.path());
    let pair = of(&dir);
    call(&pair, first.server()).unwrap();
    let refused = call(&pair, foreign.server()).client.unwrap_err();
    assert!(ForeignCertificate::is_reason_of(&refused), "{refused}");
    assert!(ForeignCertificate.to_string().contains("directory does not hold"));
    // The operator has looked first.
    second.put(dir.path());
    assert!(!pair.is_ours(&second.der()));
    call(&pair, second.server()).unwrap();
    assert_eq!(shown(&pair), Some(second.der()));
    // And another has not looked yet.
    call(&pair, first.server()).unwrap();
    // Who shows the certificate has its key.
    for version in [&TLS12, &TLS13] {
        let thief = shows(second.der(), foreign.private(), &[version]);
        let refused = call(&pair, thief).client.unwrap_err();
        let is_of_key = matches!(
            refused,
            Error::InvalidCertificate(
                CertificateError::BadSignature
                    | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. }
            )
        );
        assert!(is_of_key, "{refused:?}");
        assert!(!ForeignCertificate::is_reason_of(&refused));
    }
}

#[test]
fn as_many_are_remembered_as_are_promised() {
    let dir = directory();
    let mades: Vec<_> = iter::repeat_with(Made::new).take(18).collect();
    mades[0].put(dir.path());
    let pair = of(&dir);
    for made in &mades[1..] {
        made.put(dir.path());
        assert!(pair.refresh().unwrap());
        // One that comes back takes no second place.
        mades[0].put(dir.path());
        assert!(pair.refresh().unwrap());
        made.put(dir.path());
        assert!(pair.refresh().unwrap());
    }
    let known: Vec<_> = mades.iter().map(|made| pair.is_ours(&made.der())).collect();
    assert_eq!(known.iter().filter(|known| **known).count(), 16, "{known:?}");
    assert!(known[0] && !known[1] && !known[2] && known[3..].iter().all(|known| *known));
}

/// The pair of a process with a directory of state.
fn with_state(dir: &TempDir, state: &TempDir) -> WebhookCert {
    WebhookCert::new(dir.path().to_owned(), None, Some(state.path()))
}

#[test]
fn i13_what_was_held_is_known_to_the_next_process() {
    let (dir, state) = (directory(), directory());
    let mades: Vec<_> = iter::repeat_with(Made::new).take(18).collect();
    for made in &mades {
        made.put(dir.path());
        // Each in a process of its own.
        let pair = with_state(&dir, &state);
        assert!(pair.is_ours(&made.der()));
        assert_eq!(pair.not_kept(), None);
    }
    let pair = with_state(&dir, &state);
    let known: Vec<_> = mades.iter().map(|made| pair.is_ours(&made.der())).collect();
    assert_eq!(known, [[false; 2].as_slice(), &[true; 16]].concat());
    assert!(!pair.is_ours(&Made::new().der()));
    // Also before the first pair is there, and no longer for another directory.
    fs::remove_file(dir.path().join("tls.crt")).unwrap();
    let pair = with_state(&dir, &state);
    assert!(pair.current().is_none() && pair.is_ours(&mades[17].der()));
    let other = directory();
    assert!(!with_state(&other, &state).is_ours(&mades[17].der()));
    let names: Vec<_> =
        fs::read_dir(state.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names, ["certificates.json"]);
}

#[test]
fn bad_state_of_certificates_makes_nobody_known() {
    let (dir, state) = (directory(), directory());
    let (former, made) = (Made::new(), Made::new());
    former.put(dir.path());
    with_state(&dir, &state);
    made.put(dir.path());
    let file = state.path().join("certificates.json");
    let good = fs::read_to_string(&file).unwrap();
    let hash = good.split('"').rfind(|text| text.len() == 64).unwrap().to_owned();
    assert!(with_state(&dir, &state).is_ours(&former.der()));
    let more = vec![hash.clone(); 17].join("\",\"");
    for text in [
        good[..good.len() / 2].to_owned(),
        String::new(),
        "null".to_owned(),
        good.replace(&hash, &hash[..62]),
        good.replace(&hash, &hash.replace(|c: char| c.is_ascii_digit(), "x")),
        good.replace(&hash, &more),
        good.replace("held", "shown"),
        format!("{good}{}", " ".repeat(256 << 10)),
    ] {
        fs::write(&file, &text).unwrap();
        let pair = with_state(&dir, &state);
        assert!(!pair.is_ours(&former.der()), "{text}");
        let why = pair.not_kept().unwrap().to_string();
        assert!(why.contains("before the proxy's start") && why.contains("certificates.json"));
        assert!(pair.is_ours(&made.der()), "the present one is known from its directory");
        // It is another's word no longer.
        assert_eq!(with_state(&dir, &state).not_kept(), None);
    }
}

#[test]
fn bad_state_directory_that_cannot_be_written_is_told() {
    let (dir, state) = (directory(), directory());
    let (former, made) = (Made::new(), Made::new());
    former.put(dir.path());
    fs::create_dir(state.path().join("certificates.json.new")).unwrap();
    let pair = with_state(&dir, &state);
    let why = pair.not_kept().unwrap().to_string();
    assert!(why.contains("to the next proxy") && why.contains("is a directory"), "{why}");
    made.put(dir.path());
    pair.refresh().unwrap();
    assert!(pair.is_ours(&former.der()), "this process knows it all the same");
    fs::remove_dir(state.path().join("certificates.json.new")).unwrap();
    pair.refresh().unwrap();
    assert_eq!(pair.not_kept(), None);
    assert!(with_state(&dir, &state).is_ours(&former.der()));
}

#[test]
fn the_protocols_are_those_that_the_client_offers() {
    let dir = directory();
    let made = Made::new();
    made.put(dir.path());
    let tls = OperatorTls::new(of(&dir), &Clock::system()).unwrap();
    for (offered, wanted) in
        [(&[HTTP_11, H2][..], &[H2, HTTP_11][..]), (&[HTTP_11], &[HTTP_11]), (&[b"spdy/3"], &[])]
    {
        assert_eq!(tls.offering(offered.iter().copied()).alpn_protocols, wanted);
    }
}

/// A volume as the kubelet writes it: the files are links into a directory that a link names.
#[test]
fn a_volume_that_is_replaced_in_one_step_is_never_torn() {
    let dir = directory();
    let root = dir.path().to_owned();
    let mades: Vec<_> = iter::repeat_with(Made::new).take(2).collect();
    let swap = move |at: usize| {
        let (fresh, old) = (root.join(format!("..{at}")), fs::read_link(root.join("..data")));
        fs::create_dir(&fresh).unwrap();
        mades[at % 2].put(&fresh);
        symlink(&fresh, root.join("..new")).unwrap();
        fs::rename(root.join("..new"), root.join("..data")).unwrap();
        old.map(|old| fs::remove_dir_all(root.join(old)).unwrap()).ok();
    };
    swap(0);
    for file in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(file), dir.path().join(file)).unwrap();
    }
    let pair = of(&dir);
    let (end, ended) = mpsc::sync_channel::<()>(0);
    let kubelet = thread::spawn(move || {
        for at in 1.. {
            swap(at);
            if ended.recv_timeout(Duration::from_millis(2)) != Err(mpsc::RecvTimeoutError::Timeout)
            {
                return at;
            }
        }
        0
    });
    let mut seen = 0;
    while seen < 100 {
        seen += usize::from(pair.refresh().unwrap());
    }
    drop(end);
    assert!(kubelet.join().unwrap() >= seen);
}
