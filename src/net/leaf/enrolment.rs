//! A leaf that someone else signs for a key of ours.
//!
//! Hides the checks before a certificate is shown, and the file that keeps key and chain. So a
//! process that starts again has them at once. Does not know who signs.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};

use super::{
    Leaf, LeafError, Maker,
    certified::{BadLeaf, Certified, chain},
    file::{LeafFile, replace},
};
use crate::{
    Clock,
    ca::certificate_pem,
    tls::{BadRoots, read_roots},
};

/// The place of an enrolled leaf, and what it must be good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The file of key and chain. No one else writes it.
    pub path: PathBuf,
    /// The name or address by which clients call, if that is known.
    pub called: Option<ServerName<'static>>,
    /// The file of the CAs that clients trust, if that is known.
    pub bundle: Option<PathBuf>,
}

/// A leaf that is signed on request.
#[derive(Debug)]
pub struct Enrolment {
    leaf: Arc<Leaf>,
    file: LeafFile,
    bundle: Option<PathBuf>,
}

/// A new key of ours, and the request to certify it.
pub struct LeafRequest {
    key: KeyPair,
    der: Vec<u8>,
}

impl LeafRequest {
    /// Makes a key, ECDSA P-256, and its request. Fails with the crypto library's error.
    pub fn new() -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let der = params.serialize_request(&key)?.der().to_vec();
        Ok(Self { key, der })
    }

    /// The request (PKCS#10, DER). It has no names: the signer decides on them.
    pub fn der(&self) -> &[u8] {
        &self.der
    }
}

impl fmt::Debug for LeafRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeafRequest").finish_non_exhaustive()
    }
}

impl Enrolment {
    /// Reads what an earlier process kept. Without a file that is good now there is no leaf, and the
    /// error says why.
    pub fn new(kept: Kept, clock: &Clock) -> (Self, Option<LeafError>) {
        let Kept { path, called, bundle } = kept;
        let file = LeafFile::new(path, called);
        let read = file.read(clock).and_then(|read| {
            check_trust(bundle.as_deref(), &read, clock)?;
            Ok(read)
        });
        let (current, error) = match read {
            Ok(current) => (Some(current), None),
            Err(bad) => (None, Some(LeafError::File(file.path.clone(), bad))),
        };
        let leaf = Arc::new(Leaf::of(Maker::Others, current));
        (Self { leaf, file, bundle }, error)
    }

    /// The leaf.
    pub fn leaf(&self) -> &Arc<Leaf> {
        &self.leaf
    }

    /// Whether clients that trust the bundle accept the leaf now. Fails if the bundle cannot be
    /// read.
    pub fn is_trusted(&self, clock: &Clock) -> Result<bool, BadRoots> {
        let roots = self.bundle.as_deref().map(read_roots).transpose()?;
        let current = self.leaf.current.load();
        Ok(match (&*current, roots) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(current), Some(roots)) => current.verify(&roots, clock).is_ok(),
        })
    }

    /// Takes the answer to a request: a chain as PEM, the leaf first. It is checked, written into
    /// the file and shown. Returns the error of the file if that could not be written: the leaf is
    /// shown all the same. Fails with [`BadLeaf`]; nothing has changed.
    pub fn take(
        &self,
        request: &LeafRequest,
        answer: &[u8],
        clock: &Clock,
    ) -> Result<Option<io::Error>, BadLeaf> {
        let chain = chain(answer).ok_or(BadLeaf::NoChain("PEM that is broken"))?;
        if chain.is_empty() {
            return Err(BadLeaf::NoChain("no certificate"));
        }
        let text = text(request, &chain);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(request.key.serialize_der()));
        let current = Certified::new(key, chain, clock).map_err(|bad| match bad {
            BadLeaf::OtherKey => BadLeaf::Certificate("is for another key than ours"),
            bad => bad,
        })?;
        self.file.check_name(&current)?;
        check_trust(self.bundle.as_deref(), &current, clock)?;
        let written = replace(&self.file.path, text.as_bytes());
        self.leaf.show(current);
        Ok(written.err())
    }
}

/// Checks that clients accept a certificate. A bundle that cannot be read judges none.
fn check_trust(bundle: Option<&Path>, current: &Certified, clock: &Clock) -> Result<(), BadLeaf> {
    let Some(bundle) = bundle else { return Ok(()) };
    let Ok(roots) = read_roots(bundle) else { return Ok(()) };
    let verdict = current.verify(&roots, clock);
    verdict.map_err(|error| BadLeaf::Distrusted(bundle.display().to_string(), error))
}

/// Key and chain as one PEM text.
fn text(request: &LeafRequest, chain: &[CertificateDer<'_>]) -> String {
    let certificates = chain.iter().map(certificate_pem);
    [request.key.serialize_pem()].into_iter().chain(certificates).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

    use rcgen::{CertificateSigningRequestParams, PublicKeyData};
    use tempfile::TempDir;

    use super::*;
    use crate::{
        ClusterDomain,
        ca::{Authority, CaSpec, Constraints, LeafSpec, Validity},
    };

    const HOUR: Duration = Duration::from_secs(3600);

    /// A root, and an issuer below it.
    struct Mesh {
        root: Authority,
        issuer: Authority,
    }

    impl Mesh {
        fn new() -> Self {
            let vip = "10.96.0.1".parse().unwrap();
            let constraints =
                &Constraints::kubernetes_and(&ClusterDomain::default(), vec![], vec![vip]);
            let validity = Validity::starting(Clock::system().now(), 1000 * HOUR);
            let root = CaSpec { name: "root", constraints, below: 1, validity };
            let root = Authority::root(&root).unwrap();
            let issuer =
                root.issue(&CaSpec { name: "issuer", constraints, below: 0, validity }).unwrap();
            Self { root, issuer }
        }

        /// The answer to a request for the API server's address.
        fn answer(&self, request: &LeafRequest) -> String {
            let key = CertificateSigningRequestParams::from_der(&request.der().into()).unwrap();
            self.signed(&key.public_key, "10.96.0.1", 24 * HOUR)
        }

        fn signed(&self, key: &impl PublicKeyData, name: &'static str, life: Duration) -> String {
            self.signed_by(&Clock::system(), key, name, life)
        }

        fn signed_by(
            &self,
            clock: &Clock,
            key: &impl PublicKeyData,
            name: &'static str,
            life: Duration,
        ) -> String {
            let names = &[ServerName::try_from(name).unwrap()];
            let validity = Validity::starting(clock.now(), life);
            let spec = LeafSpec { names, uri: Some("spiffe://ctrlmesh/x"), validity };
            let leaf = self.issuer.sign(&spec, key).unwrap();
            [&leaf, self.issuer.cert()].map(certificate_pem).concat()
        }
    }

    /// The files of a pod whose clients trust a mesh.
    struct Pod(TempDir);

    impl Pod {
        fn trusting(mesh: &Mesh) -> Self {
            let pod = Self(tempfile::tempdir().unwrap());
            pod.trust(mesh);
            pod
        }

        fn trust(&self, mesh: &Mesh) {
            let cluster = Mesh::new();
            let bundle = [&cluster, mesh].map(|it| certificate_pem(it.root.cert())).concat();
            fs::write(self.0.path().join("ca.crt"), bundle).unwrap();
        }

        fn leaf(&self) -> PathBuf {
            self.0.path().join("leaf.pem")
        }

        fn started(&self) -> (Enrolment, Option<LeafError>) {
            let kept = Kept {
                path: self.leaf(),
                called: Some(ServerName::try_from("10.96.0.1").unwrap()),
                bundle: Some(self.0.path().join("ca.crt")),
            };
            Enrolment::new(kept, &Clock::system())
        }
    }

    fn said(error: &dyn std::error::Error) -> String {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}")
    }

    #[test]
    fn what_was_taken_is_there_for_the_next_process_and_for_nobody_else() {
        let mesh = Mesh::new();
        let pod = Pod::trusting(&mesh);
        let (first, why) = pod.started();
        assert!(!first.leaf().is_present() && !first.leaf().covers("10.96.0.1"));
        let why = said(&why.unwrap());
        assert!(why.contains("leaf.pem: cannot be read"), "{why}");

        let request = LeafRequest::new().unwrap();
        fs::write(pod.0.path().join("leaf.pem.new"), "half of a key, of a process that died")
            .unwrap();
        let taken = first.take(&request, mesh.answer(&request).as_bytes(), &Clock::system());
        assert!(taken.unwrap().is_none());
        assert!(first.leaf().covers("10.96.0.1") && !first.leaf().covers("10.96.0.2"));
        let files = fs::read_dir(pod.0.path()).unwrap().count();
        assert_eq!(files, 2, "nothing but bundle and leaf");
        let mode = fs::metadata(pod.leaf()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let (second, why) = pod.started();
        assert!(why.is_none(), "{why:?}");
        assert!(second.leaf().not_after().is_some());
        assert_eq!(second.leaf().not_after(), first.leaf().not_after());
        let chain = |enrolment: &Enrolment| {
            enrolment.leaf().current.load().as_ref().unwrap().key.cert.clone()
        };
        assert_eq!(chain(&second), chain(&first));
        assert_eq!(chain(&second).len(), 2);
    }

    #[test]
    fn a_request_is_of_a_key_of_its_own_and_names_nobody() {
        let [one, other] = [(), ()].map(|()| LeafRequest::new().unwrap());
        let params = [&one, &other].map(|request| {
            CertificateSigningRequestParams::from_der(&request.der().into()).unwrap()
        });
        assert_ne!(params[0].public_key.der_bytes(), params[1].public_key.der_bytes());
        for params in params {
            assert_eq!(params.public_key.algorithm(), &PKCS_ECDSA_P256_SHA256);
            assert!(params.params.subject_alt_names.is_empty());
            assert!(params.params.distinguished_name.iter().next().is_none());
        }
    }

    #[test]
    fn bad_answers_change_nothing_and_say_what_is_wrong() {
        let (mesh, foreign) = (Mesh::new(), Mesh::new());
        let pod = Pod::trusting(&mesh);
        let (enrolment, _) = pod.started();
        let request = LeafRequest::new().unwrap();
        let good = mesh.answer(&request);
        let key = CertificateSigningRequestParams::from_der(&request.der().into()).unwrap();
        let signed = |name, life| mesh.signed(&key.public_key, name, life);
        let end_of_leaf = good.find("-----END").unwrap();
        let other_key = KeyPair::generate().unwrap();
        let an_hour_ahead = Clock::ahead_by(HOUR);
        let early = mesh.signed_by(&an_hour_ahead, &key.public_key, "10.96.0.1", HOUR);
        for (answer, wanted) in [
            (String::new(), "has no certificate"),
            ("<html>Bad Gateway</html>".to_owned(), "has no certificate"),
            (good.replace("MII", "!!!"), "has PEM that is broken"),
            (good[..end_of_leaf].to_owned(), "has PEM that is broken"),
            (mesh.signed(&other_key, "10.96.0.1", HOUR), "is for another key than ours"),
            (signed("10.96.0.1", Duration::ZERO), "is not valid after"),
            (early, "is not valid before"),
            (signed("kubernetes", HOUR), "is not valid for 10.96.0.1"),
            (foreign.answer(&request), "is not accepted by the CAs of --mesh-bundle"),
            (certificate_pem(mesh.root.cert()), "is that of a CA"),
            (good[..good.rfind("-----BEGIN").unwrap()].to_owned(), "UnknownIssuer"),
        ] {
            let later = Clock::ahead_by(Duration::from_secs(2));
            let refused = said(&enrolment.take(&request, answer.as_bytes(), &later).unwrap_err());
            assert!(refused.contains(wanted), "no {wanted:?} in {refused}");
            assert!(!refused.contains("BEGIN"), "{refused}");
            assert!(!enrolment.leaf().is_present() && !pod.leaf().exists(), "{refused}");
        }
        let ended = Clock::ahead_by(25 * HOUR);
        let refused = enrolment.take(&request, good.as_bytes(), &ended).unwrap_err();
        assert!(refused.to_string().contains("is not valid after"), "{refused}");
        assert!(enrolment.take(&request, good.as_bytes(), &Clock::system()).unwrap().is_none());
    }

    #[test]
    fn what_was_kept_is_not_shown_if_it_is_no_good_any_more() {
        let (mesh, other) = (Mesh::new(), Mesh::new());
        let pod = Pod::trusting(&mesh);
        let (enrolment, _) = pod.started();
        let request = LeafRequest::new().unwrap();
        enrolment.take(&request, mesh.answer(&request).as_bytes(), &Clock::system()).unwrap();
        assert!(enrolment.is_trusted(&Clock::system()).unwrap());

        pod.trust(&other);
        assert!(!enrolment.is_trusted(&Clock::system()).unwrap());
        assert!(enrolment.leaf().is_present(), "it stays until there is another");
        let (again, why) = pod.started();
        assert!(!again.leaf().is_present());
        let LeafError::File(path, why) = why.unwrap() else { panic!("another error") };
        assert!(path == pod.leaf() && said(&why).contains("--mesh-bundle"), "{}", said(&why));

        // A bundle that cannot be read judges nothing.
        fs::write(pod.0.path().join("ca.crt"), "not PEM").unwrap();
        assert!(enrolment.is_trusted(&Clock::system()).is_err());
        assert!(pod.started().0.leaf().is_present());
    }

    #[test]
    fn bad_place_for_the_leaf_does_not_keep_it_from_clients() {
        let mesh = Mesh::new();
        let pod = Pod::trusting(&mesh);
        let (enrolment, _) = pod.started();
        fs::create_dir(pod.leaf()).unwrap();
        let request = LeafRequest::new().unwrap();
        let answer = mesh.answer(&request);
        let error = enrolment.take(&request, answer.as_bytes(), &Clock::system()).unwrap();
        assert!(error.is_some() && enrolment.leaf().is_present());
    }
}
