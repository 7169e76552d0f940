//! Enrolment: the proxy has its certificate from the manager, and has the next one in time.
//!
//! [`ask`] is one request; [`Enrol::keep`] decides when there is to be one: at the start where no
//! certificate was kept, when two thirds of the life of the present one are over, when the mesh's
//! root is another. The present certificate stays until there is the next. [`pause`] says how long to
//! wait after a failure. What a certificate must be good for is checked where it is shown
//! ([`ctrlmesh_net::leaf::enrolment`]).

mod ask;
mod pause;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::time::sleep;

pub use self::ask::Manager;
use self::{ask::NotEnrolled, pause::Failed};
use super::metrics::Metrics;
use ctrlmesh_base::cluster::chain;
use ctrlmesh_net::{
    Clock,
    leaf::enrolment::{Enrolment, LeafRequest},
};

/// Interval of checks for what does not come by itself: the time by the clock of certificates, and
/// the bundle.
const LOOK: Duration = Duration::from_secs(2);
/// The part of the last third of its life by which a certificate is renewed earlier or later. It keeps proxies
/// that started together from coming back together.
const JITTER: f64 = 0.1;

/// The label values of the results.
const RESULTS: [&str; 4] = [OK, "refused", "unreachable", "bad_certificate"];
const OK: &str = "ok";

/// The signer of certificates.
pub(super) trait Signer: fmt::Display + Send + Sync {
    /// Asks for the certificate of a key.
    fn sign(
        &self,
        request: &LeafRequest,
        clock: &Clock,
    ) -> impl Future<Output = Result<Bytes, NotEnrolled>> + Send;
}

impl Signer for Manager {
    async fn sign(&self, request: &LeafRequest, clock: &Clock) -> Result<Bytes, NotEnrolled> {
        self.ask(request, clock).await
    }
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the manager {}", self.addr)
    }
}

/// The enrolment, and those whom it asks and notifies.
#[derive(Debug)]
pub(super) struct Enrol<S> {
    pub(super) signer: S,
    pub(super) enrolment: Enrolment,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

impl<S: Signer> Enrol<S> {
    /// Keeps the certificate valid. Does not return.
    pub(super) async fn keep(self) {
        for result in RESULTS {
            self.metrics.enrolments.get_or_create_owned(&[("result", result)]);
        }
        let kept = self.enrolment.leaf().validity();
        let mut due = kept.map(|kept| self.renewal(kept.signed_at()));
        let mut is_bundle_readable = true;
        let mut times = 0_u32;
        loop {
            let is_trusted = self.is_trusted(&mut is_bundle_readable);
            if is_trusted && due.is_some_and(|due| self.clock.now() < due) {
                if std::mem::take(&mut times) > 0 {
                    // What it failed for is there again, as a bundle that was taken back.
                    self.enrolment.leaf().report(None);
                }
                sleep(LOOK).await;
                continue;
            }
            match self.enrol().await {
                Ok(()) => {
                    (times, due) = (0, Some(self.renewal(self.clock.now())));
                    // A certificate that is due at once must not be a reason to ask without a pause.
                    sleep(LOOK).await;
                }
                Err(why) => {
                    times = times.saturating_add(1);
                    sleep(self.pause(times, &why)).await;
                }
            }
        }
    }

    /// The time of the renewal of the present certificate, which was signed or taken then.
    fn renewal(&self, since: SystemTime) -> SystemTime {
        let end = self.enrolment.leaf().not_after().unwrap_or(since);
        let third = end.duration_since(since).unwrap_or_default() / 3;
        let jitter = third.mul_f64(JITTER * 2.0 * fastrand::f64());
        since + third * 2 - third.mul_f64(JITTER) + jitter
    }

    /// Whether clients accept the certificate. They are taken to if the bundle cannot be read, which
    /// is notified once.
    fn is_trusted(&self, was_readable: &mut bool) -> bool {
        let trusted = self.enrolment.is_trusted(&self.clock);
        let is_readable = trusted.is_ok();
        if let Err(error) = &trusted
            && std::mem::replace(was_readable, is_readable)
        {
            let error = chain(error);
            tracing::warn!(error, "--mesh-bundle unreadable, trust check skipped");
        }
        *was_readable = is_readable;
        trusted.unwrap_or(true)
    }

    /// Asks once, and takes the certificate if it is good.
    async fn enrol(&self) -> Result<(), NotEnrolled> {
        let enrolled = self.ask_and_take().await;
        let result = enrolled.as_ref().map_or_else(NotEnrolled::result, |()| OK);
        self.metrics.enrolments.get_or_create_owned(&[("result", result)]).inc();
        let leaf = self.enrolment.leaf();
        leaf.report(enrolled.as_ref().err().map(|why| format!("{}: {}", self.signer, chain(why))));
        enrolled
    }

    async fn ask_and_take(&self) -> Result<(), NotEnrolled> {
        let request = LeafRequest::new()?;
        let answer = self.signer.sign(&request, &self.clock).await?;
        let taken = self.enrolment.take(&request, &answer, &self.clock);
        let not_kept = taken.map_err(NotEnrolled::Certificate)?;
        let end = self.enrolment.leaf().not_after().and_then(|end| Timestamp::try_from(end).ok());
        tracing::info!(end = end.map(tracing::field::display), "certificate signed");
        if let Some(error) = not_kept {
            let error = chain(&error);
            tracing::warn!(error, "--leaf cannot be written, so a restart will ask the manager");
        }
        Ok(())
    }

    /// The pause after a failure, which is logged.
    fn pause(&self, times: u32, why: &NotEnrolled) -> Duration {
        let end = self.enrolment.leaf().not_after();
        let left = end.and_then(|end| end.duration_since(self.clock.now()).ok());
        let (is_answered, retry_after) = match why {
            NotEnrolled::Refused(refused) => (true, refused.retry_after),
            NotEnrolled::Certificate(_) | NotEnrolled::TooLong => (true, None),
            _ => (false, None),
        };
        let failed = Failed { times, is_answered, retry_after, left: left.unwrap_or_default() };
        let pause = failed.pause(fastrand::f64());
        let error = format!("{}: {}", self.signer, chain(why));
        tracing::warn!(error, again_in_ms = pause.as_millis(), "no new certificate");
        pause
    }
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        sync::{
            Mutex,
            atomic::{AtomicU64, Ordering},
        },
    };

    use rcgen::CertificateSigningRequestParams;
    use rustls::time_provider::TimeProvider;
    use rustls_pki_types::{ServerName, UnixTime};
    use tokio::time::Instant;

    use super::*;
    use ctrlmesh_net::{
        ClusterDomain,
        ca::{Authority, CaSpec, Constraints, LeafSpec, Validity, certificate_pem},
        leaf::{BadLeaf, Leaf, enrolment::Kept},
    };

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);
    /// The time that the scripted signer takes.
    const ANSWER: Duration = Duration::from_millis(100);

    /// A clock that goes with the runtime's time, which the tests pause.
    #[derive(Debug)]
    struct Runtimes(Instant);

    impl TimeProvider for Runtimes {
        fn current_time(&self) -> Option<UnixTime> {
            Some(UnixTime::since_unix_epoch(Duration::from_secs(1_780_000_000) + self.0.elapsed()))
        }
    }

    type Verdict = fn(usize) -> Option<NotEnrolled>;

    /// A signer that records when it was asked, and refuses as it is notified.
    struct Scripted {
        ca: Authority,
        life: Duration,
        refuse: Verdict,
        began: Instant,
        asked: Mutex<Vec<Duration>>,
        /// The number of requests that were answered: a run may end within one.
        answered: AtomicU64,
    }

    impl fmt::Display for Scripted {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the manager m.svc:1")
        }
    }

    impl Signer for Arc<Scripted> {
        async fn sign(&self, request: &LeafRequest, clock: &Clock) -> Result<Bytes, NotEnrolled> {
            let times = {
                let mut asked = self.asked.lock().unwrap();
                asked.push(self.began.elapsed());
                asked.len() - 1
            };
            sleep(ANSWER).await;
            self.answered.fetch_add(1, Ordering::Relaxed);
            if let Some(why) = (self.refuse)(times) {
                return Err(why);
            }
            let key = CertificateSigningRequestParams::from_der(&request.der().into()).unwrap();
            let names = &[ServerName::try_from("kubernetes").unwrap()];
            let validity = Validity::starting(clock.now(), self.life);
            let spec = LeafSpec { names, uri: None, validity };
            let leaf = self.ca.sign(&spec, &key.public_key).unwrap();
            Ok(certificate_pem(&leaf).into())
        }
    }

    struct Scene {
        clock: Clock,
        signer: Arc<Scripted>,
        metrics: Arc<Metrics>,
        dir: tempfile::TempDir,
    }

    impl Scene {
        fn new(life: Duration, refuse: Verdict) -> Self {
            let clock = Clock::of(Arc::new(Runtimes(Instant::now())));
            let constraints =
                &Constraints::kubernetes_and(&ClusterDomain::default(), vec![], vec![]);
            let validity = Validity::starting(clock.now(), 1000 * HOUR);
            let ca = CaSpec { name: "mesh", constraints, below: 0, validity };
            let ca = Authority::root(&ca).unwrap();
            let (began, asked, answered) = (Instant::now(), Mutex::default(), AtomicU64::new(0));
            let signer = Arc::new(Scripted { ca, life, refuse, began, asked, answered });
            let metrics = Arc::new(Metrics::new().0);
            Self { clock, signer, metrics, dir: tempfile::tempdir().unwrap() }
        }

        /// Runs for a time, as a process that starts now. Returns its leaf.
        async fn run(&self, time: Duration) -> Arc<Leaf> {
            self.run_trusting(time, None).await
        }

        async fn run_trusting(&self, time: Duration, bundle: Option<PathBuf>) -> Arc<Leaf> {
            let kept = Kept { path: self.dir.path().join("leaf"), called: None, bundle };
            let (enrolment, _) = Enrolment::new(kept, &self.clock);
            let leaf = Arc::clone(enrolment.leaf());
            let (signer, metrics) = (Arc::clone(&self.signer), Arc::clone(&self.metrics));
            let enrol = Enrol { signer, enrolment, metrics, clock: self.clock.clone() };
            tokio::select! {
                () = enrol.keep() => panic!("it does not return"),
                () = sleep(time) => {}
            }
            leaf
        }

        /// The times at which the signer was asked.
        fn asked(&self) -> Vec<Duration> {
            self.signer.asked.lock().unwrap().clone()
        }

        fn answered(&self) -> u64 {
            self.signer.answered.load(Ordering::Relaxed)
        }

        fn count(&self, result: &'static str) -> u64 {
            self.metrics.enrolments.get_or_create_owned(&[("result", result)]).get()
        }

        fn put(&self, name: &str, ca: &Authority) -> PathBuf {
            let path = self.dir.path().join(name);
            std::fs::write(&path, certificate_pem(ca.cert())).unwrap();
            path
        }
    }

    fn gaps(times: &[Duration]) -> Vec<Duration> {
        times.windows(2).map(|two| two[1] - two[0]).collect()
    }

    fn refused(retry_after: Option<Duration>) -> NotEnrolled {
        let message = Some("pod ns/one is not injected".to_owned());
        NotEnrolled::Refused(ask::Denial { code: 403, message, retry_after })
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_is_renewed_when_two_thirds_of_its_life_are_over_at_times_that_scatter() {
        for life in [24 * HOUR, 2 * MINUTE] {
            let scene = Scene::new(life, |_| None);
            assert_eq!(scene.run(life * 10).await.problem(), None);
            let asked = scene.asked();
            let gaps = gaps(&asked);
            assert!(asked[0] < LOOK && gaps.len() > 10, "{asked:?}");
            let (third, slack) = (life / 3, 2 * LOOK);
            for gap in &gaps {
                let off = gap.abs_diff(third * 2);
                assert!(off <= third.mul_f64(0.1) + slack, "{life:?}: {gap:?}");
            }
            let [min, max] = [gaps.iter().min(), gaps.iter().max()].map(Option::unwrap);
            assert!(*max - *min > third.mul_f64(0.04), "{life:?}: {gaps:?}");
            assert_eq!(scene.count(OK), scene.answered());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_starts_again_asks_when_it_would_have_asked() {
        let scene = Scene::new(24 * HOUR, |_| None);
        scene.run(6 * HOUR).await;
        assert_eq!(scene.asked().len(), 1);
        scene.run(9 * HOUR).await;
        assert_eq!(scene.asked().len(), 1, "15 hours are less than two thirds and their jitter");
        scene.run(2 * HOUR).await;
        assert_eq!(scene.asked().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_asks_again_after_pauses_that_grow_and_says_why() {
        let scene = Scene::new(24 * HOUR, |_| Some(refused(None)));
        let leaf = scene.run(HOUR).await;
        let problem = leaf.problem().unwrap();
        assert!(!leaf.is_present());
        assert_eq!(problem, "the manager m.svc:1: the response is 403: pod ns/one is not injected");
        let gaps = gaps(&scene.asked());
        for (at, gap) in gaps.iter().enumerate() {
            let whole = Duration::from_secs(1 << at.min(6)).min(MINUTE);
            let slack = ANSWER + Duration::from_millis(10);
            assert!(*gap >= whole / 2 && *gap <= whole + slack, "{at}: {gap:?}");
        }
        assert_eq!(scene.count("refused"), scene.answered());
        assert_eq!(scene.count(OK), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_fails_is_told_and_the_present_certificate_stays() {
        let scene =
            Scene::new(24 * HOUR, |at| (at > 0).then(|| refused(Some(Duration::from_secs(30)))));
        let leaf = scene.run(18 * HOUR).await;
        assert!(leaf.problem().unwrap().contains("not injected"), "{:?}", leaf.problem());
        assert!(leaf.covers("kubernetes"), "it stays");
        let asked = scene.asked();
        for gap in gaps(&asked[1..4]) {
            assert!(gap >= Duration::from_secs(30) && gap <= Duration::from_secs(34), "{gap:?}");
        }
        assert_eq!(scene.count("refused"), scene.answered() - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_root_that_is_replaced_has_the_proxy_enrol_at_once() {
        let scene = Scene::new(24 * HOUR, |_| None);
        let other = Scene::new(24 * HOUR, |_| None);
        let bundle = scene.put("ca.crt", &scene.signer.ca);
        assert_eq!(scene.run_trusting(HOUR, Some(bundle.clone())).await.problem(), None);
        assert_eq!(scene.asked().len(), 1);

        // The bundle is another's, whose CA does not sign yet: it is asked, and not taken.
        let change = async {
            sleep(MINUTE).await;
            scene.put("ca.crt", &other.signer.ca);
        };
        let began = scene.signer.began.elapsed();
        let (leaf, ()) = tokio::join!(scene.run_trusting(10 * MINUTE, Some(bundle)), change);
        let problem = leaf.problem().unwrap();
        assert!(problem.contains("is not accepted by the CAs of --mesh-bundle"), "{problem}");
        let asked = scene.asked();
        assert!(asked[1] - began - MINUTE <= LOOK, "{asked:?}");
        assert!((10..30).contains(&asked.len()), "it keeps its pauses: {asked:?}");
        assert_eq!(scene.count("bad_certificate"), scene.answered() - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn bad_life_that_is_over_at_once_does_not_make_the_proxy_ask_without_pauses() {
        let scene = Scene::new(Duration::ZERO, |_| None);
        let leaf = scene.run(MINUTE).await;
        assert!(leaf.is_present() && scene.asked().len() <= 31, "{:?}", scene.asked());
    }

    #[test]
    fn the_results_are_those_that_metrics_name() {
        let bad = NotEnrolled::Certificate(BadLeaf::OtherKey);
        for why in [refused(None), bad, NotEnrolled::TooLong, NotEnrolled::Timeout] {
            assert!(RESULTS.contains(&why.result()), "{why}");
        }
    }
}
