//! The pair that is shown, and those that were.

use std::{
    fmt, fs, mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::CertificateDer;

use super::{
    directory::{BadPair, Files, Pair, PairNames},
    held::{Held, HeldFile, NotKept},
};
use crate::{Clock, ca::Validity};

/// Further looks at a pair that is torn.
const LOOKS: usize = 8;

/// The pair of the operator, as its directory holds it.
pub struct WebhookCert {
    dir: PathBuf,
    /// `None` if no process comes after this one.
    file: Option<HeldFile>,
    last: Mutex<Last>,
    /// Read by every handshake, without a lock.
    shown: ArcSwap<Shown>,
}

/// The findings of the last look at the directory.
struct Last {
    names: Option<PairNames>,
    /// The hash of the files. `None` if they could not be read.
    hash: Option<[u8; 32]>,
    problem: Option<BadPair>,
    /// The certificates in the file.
    kept: Held,
    not_kept: Option<NotKept>,
}

#[derive(Default)]
struct Shown {
    pair: Option<Pair>,
    /// The first certificates of all pairs.
    held: Held,
}

impl WebhookCert {
    /// The pair in a directory, under these names or the usual ones. There may be none yet:
    /// [`Self::problem`] says why. What it held is kept in `state_dir` over a restart.
    pub fn new(dir: PathBuf, names: Option<PairNames>, state_dir: Option<&Path>) -> Self {
        let file = state_dir.map(|state_dir| HeldFile::new(state_dir, &dir));
        let kept = file.as_ref().map_or_else(|| Ok(Held::default()), HeldFile::read);
        let (kept, not_kept) =
            kept.map_or_else(|why| (Held::default(), Some(why)), |it| (it, None));
        let shown = ArcSwap::from_pointee(Shown { pair: None, held: kept.clone() });
        let last = Mutex::new(Last { names, hash: None, problem: None, kept, not_kept });
        let pair = Self { dir, file, last, shown };
        // `refresh` keeps the problem, if there is one.
        let _ = pair.refresh();
        pair
    }

    /// Looks for other names from now on. What was shown stays until they are found.
    pub fn rename(&self, names: Option<PairNames>) {
        self.last.lock().names = names;
    }

    /// Reads the directory, and shows its pair if that is good; returns whether it is another one.
    /// Fails with [`BadPair`], each time; the present pair stays. One that is not valid now is good:
    /// the operator would show it too.
    ///
    /// Reads two small files, and no more if they are as before: their times and lengths would not
    /// show a second write within one tick of the kernel's clock.
    pub fn refresh(&self) -> Result<bool, BadPair> {
        let mut last = self.last.lock();
        let mut before = (last.hash, last.problem.clone());
        let mut place = self.place();
        let mut found = self.look(&mut last);
        // The kubelet replaces all files by one link, maybe between our two reads. A torn pair
        // is read again until it no longer changes. It may be torn twice in the same way.
        for _ in 0..LOOKS {
            let (now, here) = ((last.hash, last.problem.clone()), self.place());
            if found.is_ok() || (now == before && here == place) {
                break;
            }
            (before, place) = (now, here);
            found = self.look(&mut last);
        }
        self.keep(&mut last);
        found
    }

    /// The directory of the present files in a volume of the kubelet, which has another name each
    /// time: Kubernetes, `pkg/volume/util/atomic_writer.go`. `None` in any other directory.
    fn place(&self) -> Option<PathBuf> {
        fs::read_link(self.dir.join("..data")).ok()
    }

    /// Writes the held certificates into the file, if it has others.
    fn keep(&self, last: &mut Last) {
        let (Some(file), shown) = (&self.file, self.shown.load()) else { return };
        if last.kept == shown.held {
            return;
        }
        match file.write(&shown.held) {
            Ok(()) => {
                last.kept = shown.held.clone();
                last.not_kept.take_if(|why| matches!(why, NotKept::Unwritable { .. }));
            }
            Err(why) => last.not_kept = Some(why),
        }
    }

    fn look(&self, last: &mut Last) -> Result<bool, BadPair> {
        let files = Files::read(&self.dir, last.names.as_ref());
        let hash = files.as_ref().ok().map(Files::hash);
        let before = mem::replace(&mut last.hash, hash);
        if hash.is_some() && hash == before {
            return last.problem.clone().map_or(Ok(false), Err);
        }
        match files.and_then(|files| files.pair()) {
            Ok(pair) => {
                last.problem = None;
                Ok(self.show(pair))
            }
            Err(bad) => {
                last.problem = Some(bad.clone());
                Err(bad)
            }
        }
    }

    /// Shows a pair from now on; returns whether it is another one.
    fn show(&self, pair: Pair) -> bool {
        let shown = self.shown.load();
        let is_other = shown.pair.as_ref().is_none_or(|shown| shown.key.cert != pair.key.cert);
        let first = pair.key.cert.first();
        let held = first.map_or_else(|| shown.held.clone(), |first| shown.held.and(first));
        self.shown.store(Arc::new(Shown { pair: Some(pair), held }));
        is_other
    }

    /// The pair that is shown.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.shown.load().pair.as_ref().map(|pair| Arc::clone(&pair.key))
    }

    /// The validity of the certificate that is shown.
    pub fn validity(&self) -> Option<Validity> {
        self.shown.load().pair.as_ref()?.validity
    }

    /// The problem: the reason why the directory's pair is not shown, or else that the pair which is
    /// shown is not valid now.
    pub fn problem(&self, clock: &Clock) -> Option<BadPair> {
        let problem = self.last.lock().problem.clone();
        problem.or_else(|| self.shown.load().pair.as_ref()?.not_now(clock))
    }

    /// Whether the directory holds or held this certificate, as far as is remembered.
    pub fn is_ours(&self, end_entity: &CertificateDer<'_>) -> bool {
        self.shown.load().held.has(end_entity)
    }

    /// The reason why a certificate that it held may be taken for a stranger's, now or after a restart.
    pub fn not_kept(&self) -> Option<NotKept> {
        self.last.lock().not_kept.clone()
    }

    /// Whether the directory holds or held this certificate: before it says no it looks there, for
    /// the operator may have looked first.
    pub fn recognises(&self, end_entity: &CertificateDer<'_>) -> bool {
        self.is_ours(end_entity) || {
            // A directory that holds no good pair holds none of this certificate.
            let _ = self.refresh();
            self.is_ours(end_entity)
        }
    }
}

impl Pair {
    fn not_now(&self, clock: &Clock) -> Option<BadPair> {
        let why = self.validity?.not_now(clock)?;
        Some(BadPair::NotNow { cert: self.file.clone(), why })
    }
}

impl ResolvesServerCert for WebhookCert {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

impl fmt::Debug for WebhookCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorPair").field("dir", &self.dir).finish_non_exhaustive()
    }
}
