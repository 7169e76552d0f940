//! The life of the authorities, as those see it who trust them.

use std::sync::Arc;

use proptest::prelude::*;
use rcgen::{CertificateParams, CustomExtension, KeyPair, PKCS_RSA_SHA256, PublicKeyData, SanType};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::{
    certificate::X509Certificate, certification_request::X509CertificationRequest,
    extensions::GeneralName, prelude::FromDer,
};

use super::*;
use ctrlmesh_net::tls;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Copy, Debug)]
struct At(SystemTime);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(UnixTime::since_unix_epoch(since))
    }
}

fn clock(at: SystemTime) -> Clock {
    Clock::of(Arc::new(At(at)))
}

fn begin() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn purpose() -> Purpose {
    Purpose {
        serving: vec![ServerName::try_from("ctrlmesh.ctrlmesh-system.svc").unwrap()],
        domain: ClusterDomain::default(),
        addresses: vec!["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        names: vec![DnsName::try_from("api.example.com").unwrap()],
        lifetimes: Lifetimes { root: 30 * DAY, issuer: 5 * DAY, leaf: DAY },
    }
}

fn pod() -> PodIdentity {
    PodIdentity::new("a", "op-0", "u-1").unwrap()
}

fn request(change: impl FnOnce(&mut CertificateParams)) -> (KeyPair, Vec<u8>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    change(&mut params);
    let der = params.serialize_request(&key).unwrap().der().to_vec();
    (key, der)
}

fn signed(trust: &Trust, purpose: &Purpose, at: SystemTime) -> Vec<CertificateDer<'static>> {
    let key = LeafKey::of_request(&request(|_| {}).1).unwrap();
    trust.sign(purpose, &key, &pod(), &clock(at)).unwrap()
}

/// Whether a client that trusts `roots` accepts the chain of a server of that name.
fn accepts(
    roots: &[CertificateDer<'static>],
    chain: &[CertificateDer<'static>],
    name: &str,
    usage: KeyUsage,
    at: SystemTime,
) -> Result<(), webpki::Error> {
    let anchors: Vec<_> =
        roots.iter().map(|root| anchor_from_trusted_cert(root).unwrap()).collect();
    let leaf = EndEntityCert::try_from(&chain[0])?;
    let algorithms = tls::provider().signature_verification_algorithms.all;
    let now = clock(at).unix();
    leaf.verify_for_usage(algorithms, &anchors, &chain[1..], now, usage, None, None)?;
    leaf.verify_is_valid_for_subject_name(&ServerName::try_from(name).unwrap())
}

fn published(rollover: &CaRotation) -> Vec<CertificateDer<'static>> {
    rollover.published().cloned().collect()
}

/// Takes all steps that there are.
fn settle(trust: &mut Trust, purpose: &Purpose, known: Known, at: SystemTime) -> Vec<Step> {
    std::iter::from_fn(|| trust.step(purpose, known, &clock(at)).unwrap()).take(9).collect()
}

const ALL: Known = Known { next_serving: true, next_root: true };

/// Another server's name, and another pod's.
fn foreign_names() -> Vec<SanType> {
    let other_pod = "spiffe://ctrlmesh/ns/a/pod/other/u-2";
    vec![
        SanType::DnsName("evil.example".try_into().unwrap()),
        SanType::URI(other_pod.try_into().unwrap()),
    ]
}

#[test]
fn a_leaf_is_for_the_api_servers_names_and_the_pods_own_whatever_was_asked_for() {
    let (at, purpose) = (begin(), purpose());
    let trust = Trust::make(&purpose, at).unwrap();
    let (key, der) = request(|params| {
        params.subject_alt_names = foreign_names();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    });
    let key_of_request = LeafKey::of_request(&der).unwrap();
    let chain = trust.sign(&purpose, &key_of_request, &pod(), &clock(at)).unwrap();
    let roots = published(trust.root());
    for name in [
        "kubernetes",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        "127.0.0.1",
        "::1",
        "10.96.0.1",
        "fd00::1",
        "api.example.com",
    ] {
        for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
            assert_eq!(accepts(&roots, &chain, name, usage, at), Ok(()), "{name}");
        }
    }
    for name in ["evil.example", "ctrlmesh.ctrlmesh-system.svc", "10.96.0.2"] {
        assert!(accepts(&roots, &chain, name, KeyUsage::server_auth(), at).is_err(), "{name}");
    }
    assert!(
        accepts(&published(trust.serving()), &chain, "kubernetes", KeyUsage::server_auth(), at)
            .is_err()
    );
    let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
    assert_eq!(leaf.public_key().raw, key.subject_public_key_info());
    assert!(!leaf.is_ca());
    let sans = leaf.subject_alternative_name().unwrap().unwrap();
    let uris = sans.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    assert_eq!(uris.collect::<Vec<_>>(), ["spiffe://ctrlmesh/ns/a/pod/op-0/u-1"]);
    let names = sans.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    let wanted = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        "api.example.com",
    ];
    assert_eq!(names.collect::<Vec<_>>(), wanted, "and no other");
    assert_eq!(sans.value.general_names.len(), wanted.len() + 4 + 1, "four addresses, one URI");
    let end = |after: Duration| {
        accepts(&roots, &chain, "kubernetes", KeyUsage::server_auth(), at + after)
    };
    assert_eq!(end(DAY), Ok(()));
    assert!(end(DAY + Duration::from_secs(1)).is_err());
}

#[test]
fn a_request_of_anything_but_its_senders_own_key_is_refused() {
    let (_, good) = request(|_| {});
    assert!(LeafKey::of_request(&good).is_ok());
    for kind in [&rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        let key = KeyPair::generate_for(kind).unwrap();
        let der = CertificateParams::default().serialize_request(&key).unwrap();
        let key_of_request = LeafKey::of_request(der.der()).unwrap();
        assert_eq!(key_of_request.info().subject_public_key_info(), key.subject_public_key_info());
    }
    for der in [&b""[..], b"not DER", &good[..good.len() - 1], &[&good[..], b"\0"].concat()] {
        assert_eq!(LeafKey::of_request(der), Err(BadRequest::NotPkcs10));
    }
    let rsa = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
    let der = CertificateParams::default().serialize_request(&rsa).unwrap();
    assert_eq!(LeafKey::of_request(der.der()), Err(BadRequest::Key));
    let p521 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap();
    let der = CertificateParams::default().serialize_request(&p521).unwrap();
    assert_eq!(LeafKey::of_request(der.der()), Err(BadRequest::Key));
    // Another's key: the signature is of the key that the sender has.
    let (_, other) = request(|_| {});
    let key_at = |der: &[u8]| {
        let (_, request) = X509CertificationRequest::from_der(der).unwrap();
        let raw = request.certification_request_info.subject_pki.raw;
        raw.as_ptr().addr() - der.as_ptr().addr()
            ..raw.as_ptr().addr() - der.as_ptr().addr() + raw.len()
    };
    let mut forged = good.clone();
    forged[key_at(&good)].copy_from_slice(&other[key_at(&other)]);
    assert_eq!(LeafKey::of_request(&forged), Err(BadRequest::NoProof));
    // What it asks for is not looked at, however odd.
    let (_, odd) = request(|params| {
        params.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3], vec![0xff])];
    });
    assert!(LeafKey::of_request(&odd).is_ok());
}

#[test]
fn an_issuer_is_replaced_at_will_and_a_root_when_all_have_the_next() {
    let (at, purpose) = (begin(), purpose());
    let mut trust = Trust::make(&purpose, at).unwrap();
    assert_eq!(settle(&mut trust, &purpose, ALL, at), []);
    let old = signed(&trust, &purpose, at);
    assert_eq!(settle(&mut trust, &purpose, ALL, at + 4 * DAY), [Step::Issuer]);
    let at_18 = at + 20 * DAY - HOUR;
    settle(&mut trust, &purpose, ALL, at_18);
    let first = published(trust.root());
    assert_eq!((first.len(), first[0].clone()), (1, trust.root().signing().cert().clone()));

    // The next root is published and does not sign; a client that has it accepts both.
    let at_20 = at + 20 * DAY + HOUR;
    let not_yet = Known { next_serving: true, next_root: false };
    let steps = settle(&mut trust, &purpose, not_yet, at_20);
    assert!(steps.contains(&Step::Root(Move::Published)), "{steps:?}");
    assert!(steps.contains(&Step::Serving(Move::Promoted)), "{steps:?}");
    let both = published(trust.root());
    assert_eq!(both.len(), 2);
    let leaf = signed(&trust, &purpose, at_20);
    let name = "kubernetes";
    let server = KeyUsage::server_auth();
    assert_eq!(accepts(&first, &leaf, name, server, at_20), Ok(()));
    assert_eq!(
        settle(&mut trust, &purpose, not_yet, at_20 + 25 * HOUR),
        [Step::Serving(Move::Dropped)]
    );

    let later = at_20 + 2 * DAY;
    assert_eq!(settle(&mut trust, &purpose, ALL, later), [Step::Root(Move::Promoted)]);
    let leaf = signed(&trust, &purpose, later);
    assert!(accepts(&first, &leaf, name, server, later).is_err());
    assert_eq!(accepts(&both, &leaf, name, server, later), Ok(()));
    // A client that starts now meets leaves of the former root for as long as they live.
    assert_eq!(published(trust.root()).len(), 2);
    assert_eq!(settle(&mut trust, &purpose, ALL, later + DAY), []);
    let end = later + DAY + Duration::from_secs(1);
    assert_eq!(settle(&mut trust, &purpose, ALL, end), [Step::Root(Move::Dropped)]);
    assert!(accepts(&published(trust.root()), &old, name, server, at).is_err());
}

#[test]
fn an_issuer_of_a_short_life_is_replaced_when_two_thirds_of_it_are_over() {
    let (at, mut purpose) = (begin(), purpose());
    let life = Duration::from_secs(60);
    purpose.lifetimes = Lifetimes { issuer: life, leaf: life, ..purpose.lifetimes };
    let mut trust = Trust::make(&purpose, at).unwrap();
    let second = Duration::from_secs(1);
    for round in 1..4 {
        let due = at + life * 2 / 3 * round;
        assert_eq!(settle(&mut trust, &purpose, ALL, due - second), []);
        assert_eq!(settle(&mut trust, &purpose, ALL, due), [Step::Issuer]);
    }
}

#[test]
fn a_leaf_ends_no_later_than_its_issuer() {
    let (at, purpose) = (begin(), purpose());
    let trust = Trust::make(&purpose, at).unwrap();
    let late = at + 5 * DAY - HOUR;
    let chain = signed(&trust, &purpose, late);
    assert!(!has_ended(&chain[0], at + 5 * DAY));
    assert!(has_ended(&chain[0], at + 5 * DAY + Duration::from_secs(1)));
    let key = LeafKey::of_request(&request(|_| {}).1).unwrap();
    let refused = trust.sign(&purpose, &key, &pod(), &clock(at + 5 * DAY)).unwrap_err();
    assert!(matches!(refused, NotSigned::Ended));
}

#[test]
fn a_root_that_may_not_sign_for_a_name_gets_a_successor_that_may() {
    let at = begin();
    let mut new = purpose();
    let mut trust = Trust::make(&new, at).unwrap();
    new.addresses.push("10.97.0.1".parse().unwrap());
    let not_yet = Known { next_serving: true, next_root: false };
    assert_eq!(settle(&mut trust, &new, not_yet, at), [Step::Root(Move::Published)]);
    // A leaf with a name outside would be refused for all of its names.
    let (roots, server) = (published(trust.root()), KeyUsage::server_auth());
    let leaf = signed(&trust, &new, at);
    assert_eq!(accepts(&roots, &leaf, "10.96.0.1", server, at), Ok(()));
    assert!(accepts(&roots, &leaf, "10.97.0.1", server, at).is_err());
    assert_eq!(settle(&mut trust, &new, ALL, at), [Step::Root(Move::Promoted)]);
    let leaf = signed(&trust, &new, at);
    assert_eq!(accepts(&roots, &leaf, "10.97.0.1", server, at), Ok(()));
}

/// Root and issuer are made at different times, for different names.
#[test]
fn an_issuer_that_may_not_sign_for_a_name_of_its_root_is_replaced() {
    let (at, both) = (begin(), purpose());
    let mut trust = Trust::make(&both, at).unwrap();
    let less = Purpose { names: Vec::new(), ..both.clone() };
    assert_eq!(settle(&mut trust, &less, Known::default(), at + 4 * DAY), [Step::Issuer]);
    let (roots, server) = (published(trust.root()), KeyUsage::server_auth());
    let now = at + 4 * DAY;
    let leaf = signed(&trust, &both, now);
    assert_eq!(accepts(&roots, &leaf, "kubernetes", server, now), Ok(()));
    assert!(accepts(&roots, &leaf, "api.example.com", server, now).is_err());
    assert_eq!(settle(&mut trust, &both, Known::default(), now), [Step::Issuer]);
    let leaf = signed(&trust, &both, now);
    assert_eq!(accepts(&roots, &leaf, "api.example.com", server, now), Ok(()));
}

/// Lifetimes are values, and may change between any two steps.
#[test]
fn the_former_root_stays_as_long_as_what_it_signed() {
    let (at, long) = (begin(), purpose());
    let mut trust = Trust::make(&long, at).unwrap();
    let lifetimes = Lifetimes { leaf: HOUR, ..long.lifetimes };
    let names = vec![DnsName::try_from("other.example.com").unwrap()];
    let short = Purpose { lifetimes, names, ..long.clone() };
    let leaf = signed(&trust, &long, at);
    let moves = [Move::Published, Move::Promoted].map(Step::Root);
    assert_eq!(settle(&mut trust, &short, ALL, at), moves);
    let server = KeyUsage::server_auth();
    for after in [2 * HOUR, DAY] {
        assert_eq!(settle(&mut trust, &short, ALL, at + after), []);
        let roots = published(trust.root());
        assert_eq!(accepts(&roots, &leaf, "kubernetes", server, at + after), Ok(()));
    }
    let after = at + DAY + Duration::from_secs(1);
    assert_eq!(settle(&mut trust, &short, ALL, after), [Step::Root(Move::Dropped)]);

    // A longer life is stored before a leaf has it.
    let now = after + HOUR;
    assert!(has_ended(
        &signed(&trust, &Purpose { lifetimes: long.lifetimes, ..short.clone() }, now)[0],
        now + 2 * HOUR
    ));
    let longer = Purpose { lifetimes: Lifetimes { leaf: 2 * DAY, ..long.lifetimes }, ..short };
    let steps = settle(&mut trust, &longer, ALL, now);
    assert_eq!(steps, [Step::Serving(Move::Lengthened), Step::Root(Move::Lengthened)]);
    assert!(!has_ended(&signed(&trust, &longer, now)[0], now + 2 * DAY));
}

#[test]
fn expired_ca_is_replaced_even_if_next_is_not_distributed() {
    let (at, purpose) = (begin(), purpose());
    let mut trust = Trust::make(&purpose, at).unwrap();
    let late = at + 31 * DAY;
    let steps = settle(&mut trust, &purpose, Known::default(), late);
    let moves = [Move::Published, Move::Promoted];
    assert_eq!(steps, [moves.map(Step::Serving), moves.map(Step::Root)].concat());
    let roots = published(trust.root());
    assert_eq!(roots.len(), 1);
    let leaf = signed(&trust, &purpose, late);
    assert_eq!(accepts(&roots, &leaf, "kubernetes", KeyUsage::server_auth(), late), Ok(()));
}

/// A reader of the data sees all of it, or why not.
#[test]
fn half_of_the_data_is_refused() {
    let (at, purpose) = (begin(), purpose());
    let mut trust = Trust::make(&purpose, at).unwrap();
    let later = at + 21 * DAY;
    settle(&mut trust, &purpose, Known { next_serving: true, next_root: false }, later);
    let data = trust.to_data();
    let read = Trust::parse(&data).unwrap();
    assert_eq!(read.to_data(), data);
    assert_eq!(published(read.root()), published(trust.root()));
    let keys: Vec<_> = data.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "issuer.crt",
            "issuer.key",
            "root-next.crt",
            "root-next.key",
            "root.crt",
            "root.key",
            "root.longest",
            "serving-former.crt",
            "serving-former.until",
            "serving.crt",
            "serving.key",
            "serving.longest",
        ]
    );
    for key in keys {
        let mut without = data.clone();
        without.remove(key);
        let said = Trust::parse(&without).unwrap_err().to_string();
        assert!(said.starts_with(&format!("key {key} is ")), "{said}");
        for (bad, wanted) in [(&b"\xff"[..], ""), (b"", ""), (b"-----BEGIN PRIVATE KEY-----", "")] {
            let mut broken = data.clone();
            broken.insert(key.to_owned(), bad.to_vec());
            let said = Trust::parse(&broken).unwrap_err().to_string();
            assert!(said.contains(key) && said.contains(wanted), "{said}");
        }
    }
    let mut swapped = data.clone();
    swapped.insert("root.key".into(), data["issuer.key"].clone());
    let said = Trust::parse(&swapped).unwrap_err().to_string();
    assert_eq!(said, "key root.crt does not belong to its private key");
}

fn has_ended(cert: &CertificateDer<'_>, at: SystemTime) -> bool {
    let (_, cert) = X509Certificate::from_der(cert).unwrap();
    let end = cert.validity().not_after.timestamp();
    at > SystemTime::UNIX_EPOCH + Duration::from_secs(end.try_into().unwrap())
}

/// A container with a client that reads what it trusts once, next to a proxy that renews its leaf.
#[derive(Debug)]
struct Container {
    trusts: Vec<CertificateDer<'static>>,
    leaf: Vec<CertificateDer<'static>>,
    renew_at: SystemTime,
}

impl Container {
    fn start(trust: &Trust, purpose: &Purpose, at: SystemTime) -> Self {
        let leaf = signed(trust, purpose, at);
        Self { trusts: published(trust.root()), leaf, renew_at: at + DAY * 2 / 3 }
    }
}

/// The events of six hours.
#[derive(Clone, Debug)]
struct Quarter {
    restarts: Option<usize>,
    manager_is_there: bool,
    manager_restarts: bool,
    serving_is_known: bool,
}

fn quarters() -> impl Strategy<Value = Vec<Quarter>> {
    let quarter = (
        proptest::option::weighted(0.4, 0..3_usize),
        prop::bool::weighted(0.7),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(restarts, manager_is_there, manager_restarts, serving_is_known)| Quarter {
            restarts,
            manager_is_there,
            manager_restarts,
            serving_is_known,
        });
    prop::collection::vec(quarter, 320)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() })]

    /// No client meets a leaf that it does not trust, unless its root has ended. This holds over eighty days,
    /// with roots of thirty days, however long ago the client started.
    #[test]
    fn no_client_meets_a_leaf_that_it_does_not_trust(quarters in quarters()) {
        let purpose = purpose();
        let mut at = begin();
        let mut trust = Trust::make(&purpose, at).unwrap();
        let mut containers: Vec<_> = (0..3).map(|_| Container::start(&trust, &purpose, at)).collect();
        let mut promotions = 0;
        for quarter in quarters {
            at += 6 * HOUR;
            if quarter.manager_restarts {
                trust = Trust::parse(&trust.to_data()).unwrap();
            }
            if quarter.manager_is_there {
                let next = trust.root().next().map(Authority::cert);
                let has_next = |c: &Container| next.is_some_and(|next| c.trusts.contains(next));
                let next_root = containers.iter().all(has_next);
                let known = Known { next_serving: quarter.serving_is_known, next_root };
                let steps = settle(&mut trust, &purpose, known, at);
                promotions += usize::from(steps.contains(&Step::Root(Move::Promoted)));
            }
            if trust.issuer.validity().to <= at {
                let key = LeafKey::of_request(&request(|_| {}).1).unwrap();
                let refused = trust.sign(&purpose, &key, &pod(), &clock(at));
                prop_assert!(matches!(refused, Err(NotSigned::Ended)));
                continue;
            }
            if let Some(which) = quarter.restarts {
                // The client alone: the proxy keeps its leaf over a restart.
                containers[which].trusts = published(trust.root());
            }
            for container in &mut containers {
                // Late by up to six hours.
                if at >= container.renew_at && quarter.manager_is_there {
                    container.leaf = signed(&trust, &purpose, at);
                    container.renew_at = at + DAY * 2 / 3;
                }
                let met = accepts(&container.trusts, &container.leaf, "kubernetes", KeyUsage::server_auth(), at);
                let has_ended = matches!(met, Err(webpki::Error::CertExpired { .. }))
                    || container.trusts.iter().all(|root| has_ended(root, at));
                prop_assert!(met.is_ok() || has_ended, "{met:?}");
            }
        }
        prop_assert!(promotions >= 1);
    }

    #[test]
    fn a_request_of_any_bytes_is_read_without_a_panic(at in any::<prop::sample::Index>(), byte: u8) {
        let (_, mut der) = request(|_| {});
        let at = at.index(der.len());
        der[at] = byte;
        let _ = LeafKey::of_request(&der);
    }
}

/// Kubernetes' own certificates bear five minutes; a clock without NTP is off by more.
#[test]
fn i12_clocks_ten_minutes_apart_accept_what_is_signed() {
    const APART: Duration = Duration::from_secs(600);
    let (at, purpose) = (begin(), purpose());
    for [ours, theirs] in [[at, at + APART], [at + APART, at]] {
        let trust = Trust::make(&purpose, ours).unwrap();
        let chain = signed(&trust, &purpose, ours);
        let roots = published(trust.root());
        for end in [theirs, theirs + DAY - 2 * APART] {
            accepts(&roots, &chain, "10.96.0.1", KeyUsage::server_auth(), end).unwrap();
        }
    }
}

/// Each replica leads in turn, and judges by its own clock what the other made.
#[test]
fn i12_leaders_ten_minutes_apart_undo_nothing_of_each_other() {
    const APART: Duration = Duration::from_secs(600);
    let purpose = purpose();
    let life = |clocks: [Duration; 2]| {
        let mut trust = Trust::make(&purpose, begin()).unwrap();
        let mut steps = 0;
        for hour in 0..24 * 60 {
            let at = begin() + hour * HOUR + clocks[hour as usize % 2];
            steps += settle(&mut trust, &purpose, ALL, at).len();
            let chain = signed(&trust, &purpose, at);
            let roots = published(trust.root());
            accepts(&roots, &chain, "kubernetes", KeyUsage::server_auth(), begin() + hour * HOUR)
                .unwrap();
        }
        steps
    };
    let together = life([Duration::ZERO; 2]);
    let apart = life([Duration::ZERO, APART]);
    assert!(together > 20 && apart.abs_diff(together) <= 2, "{together} steps, apart {apart}");
}
