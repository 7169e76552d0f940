//! The positions on disk, so that a restart of this process costs no relist.
//!
//! The file is valid under one policy; without a valid file the past is unknown. An empty directory
//! is that of a new pod, which was shown nothing: so the file is created before anything is served,
//! and is emptied, never removed, if it cannot be written.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::positions::{Floor, Former, FormerSharding, Marks, Past, Positions, Shown};
use ctrlmesh_policy::{
    Epoch, GroupResource, Sharding,
    ring::{boundary_text, read_boundary},
};

/// The most bytes of the file. They fit the most resources that have a position of their own, with the longest
/// names. They also fit the former boundaries.
const MAX_BYTES: u64 = 2 << 20;
/// Most bytes of the boundaries of before. One has 192 KiB at most.
const MAX_FORMER: usize = 1 << 20;

/// The positions that clients were shown of one API server, and the file that keeps them.
#[derive(Debug)]
pub(crate) struct PositionStore {
    path: Option<PathBuf>,
    at_start: AtStart,
    /// The hash of the sharding that came into force last, or is about to: of no other may the file
    /// say that it is valid. Locked while the file is written.
    last: Mutex<Option<[u8; 32]>>,
    /// The positions, set by the first policy.
    present: OnceLock<Positions>,
}

/// The file's content at the start of the process.
#[derive(Debug)]
enum AtStart {
    /// Nothing: no process ran in this pod before.
    Nothing,
    Content(Content),
    /// Unknown: clients may have been shown anything.
    Unknown,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Content {
    /// The hash of the sharding under which this is valid, or `None` while a change is under way.
    policy: Option<String>,
    /// Whether resources that `floors` lacks have an unknown past.
    unknown: bool,
    floors: Vec<Entry>,
    /// The boundaries under which positions were shown. `None` in a file of an older version.
    #[serde(default)]
    boundaries: Option<Boundaries>,
}

/// Boundaries, the oldest first, and what was shown under those that were forgotten.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Boundaries {
    former: Vec<Boundary>,
    /// The last ones, of which nothing is known: those in force, and one that is about to be.
    present: Vec<String>,
    forgotten: NotedPositions,
}

/// A boundary, and what was shown under it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Boundary {
    area: String,
    shown: NotedPositions,
}

/// What was shown under boundaries: see [`Shown`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NotedPositions {
    marks: Vec<Entry>,
    is_whole: bool,
    is_over: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    group: String,
    resource: String,
    /// The floor. `None` if it is unknown.
    floor: Option<u64>,
}

/// The file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be written", .path.display())]
pub(crate) struct Unwritable {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl PositionStore {
    /// Opens the file. Without a directory nothing is known of any process before this one. Fails
    /// with [`Unwritable`] if the next process would not know that there was this one.
    pub(crate) fn open(state_dir: Option<PathBuf>) -> Result<Self, Unwritable> {
        let (last, present) = (Mutex::new(None), OnceLock::new());
        let Some(path) = state_dir.map(|dir| dir.join("positions.json")) else {
            return Ok(Self { path: None, at_start: AtStart::Unknown, last, present });
        };
        let at_start = match read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_or(AtStart::Unknown, AtStart::Content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => AtStart::Nothing,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot read positions");
                AtStart::Unknown
            }
        };
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        opened.map_err(|source| Unwritable { path: path.clone(), source })?;
        Ok(Self { path: Some(path), at_start, last, present })
    }

    /// The positions; `None` before the first policy.
    pub(crate) fn get(&self) -> Option<&Positions> {
        self.present.get()
    }

    /// Raises the floors: `sharding` is about to come into force in `epoch`.
    pub(crate) fn raise_floors(&self, epoch: Epoch, sharding: &Arc<Sharding>) {
        self.present
            .get_or_init(|| Positions::new(self.read(sharding), Arc::clone(sharding)))
            .change(epoch, sharding);
    }

    /// The shardings of the last process that its clients may still follow. There are some if it ended before its
    /// clients were shown this one.
    pub(crate) fn unfinished(&self, sharding: &Arc<Sharding>) -> Vec<Arc<Sharding>> {
        let AtStart::Content(content) = &self.at_start else { return Vec::new() };
        if content.vouches_for(sharding) {
            return Vec::new();
        }
        let boundaries = content.boundaries.iter();
        boundaries.flat_map(|known| known.unfinished(sharding)).collect()
    }

    /// The positions shown before this process, if it starts with `sharding`.
    fn read(&self, sharding: &Arc<Sharding>) -> Past {
        match &self.at_start {
            AtStart::Nothing => Past::none(),
            AtStart::Content(content) if content.vouches_for(sharding) => content.past(sharding),
            AtStart::Content(content) => Past { former: content.all(sharding), ..Past::unknown() },
            AtStart::Unknown => Past::unknown(),
        }
    }

    /// Invalidates the file, since `sharding` is about to come into force. It stays if it is valid
    /// under it and `is_first`: no other of this process came before. Fails with [`Unwritable`] if
    /// the file stays valid for another.
    pub(crate) fn begin_change(
        &self,
        sharding: &Sharding,
        is_first: bool,
    ) -> Result<(), Unwritable> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut last = self.last.lock();
        *last = Some(*sharding.hash());
        let is_true = match &self.at_start {
            AtStart::Content(content) => content.vouches_for(sharding),
            AtStart::Nothing | AtStart::Unknown => false,
        };
        if is_first && is_true {
            return Ok(());
        }
        let boundaries = self.boundaries_with(sharding);
        let unknown = Content { policy: None, unknown: true, floors: Vec::new(), boundaries };
        let Err(error) = replace(path, &unknown) else { return Ok(()) };
        // A full disk has no room for another file, but always for less of this one.
        tracing::error!(%error, path = %path.display(), "cannot write positions");
        let emptied = OpenOptions::new().write(true).truncate(true).open(path);
        emptied.map(drop).map_err(|source| Unwritable { path: path.clone(), source })
    }

    /// The boundaries of before, and this one, which is about to come into force. `None` if nothing is
    /// known of them.
    fn boundaries_with(&self, sharding: &Sharding) -> Option<Boundaries> {
        let present = boundary_text(sharding);
        let Some(positions) = self.get() else {
            let mut boundaries = match &self.at_start {
                AtStart::Nothing => Boundaries::new(Former::default(), [])?,
                AtStart::Content(content) => content.boundaries.clone()?,
                AtStart::Unknown => return None,
            };
            let present = present?;
            if !boundaries.present.contains(&present) {
                boundaries.present.push(present);
            }
            return Some(boundaries);
        };
        let shown = boundary_text(&positions.present());
        Boundaries::new(positions.past().former, [shown, present])
    }

    /// Stores the past, valid under `sharding`, of `epoch`: no request runs that was decided before,
    /// so nothing is shown under any other from now on, unless another has begun.
    pub(crate) fn store(&self, epoch: Epoch, sharding: &Sharding) {
        let (Some(path), Some(positions)) = (&self.path, self.get()) else { return };
        let last = self.last.lock();
        if last.as_ref() != Some(sharding.hash()) {
            return;
        }
        positions.are_over(epoch);
        if let Err(error) = replace(path, &Content::new(sharding, &positions.past())) {
            tracing::error!(%error, path = %path.display(), "cannot write positions");
        }
    }
}

impl Content {
    fn new(sharding: &Sharding, past: &Past) -> Self {
        Self {
            policy: Some(hex(sharding)),
            unknown: past.unknown,
            floors: entries(&past.floors),
            boundaries: Boundaries::new(past.former.clone(), [boundary_text(sharding)]),
        }
    }

    fn vouches_for(&self, sharding: &Sharding) -> bool {
        self.policy.as_ref() == Some(&hex(sharding))
    }

    /// The past under the sharding for which it vouches.
    fn past(&self, sharding: &Arc<Sharding>) -> Past {
        let floors = marks(&self.floors);
        let unknown = || {
            let shown = Shown { marks: floors.clone(), is_whole: !self.unknown, is_over: true };
            Former::new([], shown)
        };
        let former = self.boundaries.as_ref().and_then(|known| known.former(sharding));
        let former = former.unwrap_or_else(unknown);
        Past { floors, unknown: self.unknown, had_process: true, former }
    }

    /// All boundaries, also those under which it is not known what was shown.
    fn all(&self, sharding: &Arc<Sharding>) -> Former {
        let all = || {
            let known = self.boundaries.as_ref()?;
            let mut former = known.former(sharding)?;
            for area in &known.present {
                former.add(of_area(area, Shown::anything(), sharding)?);
            }
            Some(former)
        };
        all().unwrap_or_else(Former::unknown)
    }
}

impl Boundaries {
    /// Those of before, as many as there is room for, and the present ones. `None` if a present one
    /// cannot be said.
    fn new<const N: usize>(mut former: Former, present: [Option<String>; N]) -> Option<Self> {
        let present = present.into_iter().collect::<Option<Vec<_>>>()?;
        loop {
            let all = former.all().map(|FormerSharding { sharding, shown }| {
                Some(Boundary { area: boundary_text(sharding)?, shown: NotedPositions::new(shown) })
            });
            let all: Option<Vec<_>> = all.collect();
            let has_room =
                |all: &Vec<Boundary>| all.iter().map(Boundary::bytes).sum::<usize>() <= MAX_FORMER;
            if let Some(all) = all.filter(has_room) {
                let forgotten = NotedPositions::new(former.forgotten());
                return Some(Self { former: all, present, forgotten });
            }
            if !former.forget() {
                return None;
            }
        }
    }

    /// The shardings by which clients may go still, as those of the shard of `sharding`.
    fn unfinished(&self, sharding: &Arc<Sharding>) -> impl Iterator<Item = Arc<Sharding>> {
        let former = self.former.iter().filter(|former| !former.shown.is_over);
        let areas = former.map(|former| &former.area).chain(&self.present);
        areas.filter_map(|area| Some(of_area(area, Shown::anything(), sharding)?.sharding))
    }

    /// The shardings of before, as those of the shard of `sharding`. `None` if one cannot be read.
    fn former(&self, sharding: &Arc<Sharding>) -> Option<Former> {
        let all = self
            .former
            .iter()
            .map(|Boundary { area, shown }| of_area(area, shown.read(), sharding));
        Some(Former::new(all.collect::<Option<Vec<_>>>()?, self.forgotten.read()))
    }
}

impl Boundary {
    /// About as many bytes as it has in the file.
    fn bytes(&self) -> usize {
        let mark = |mark: &Entry| mark.group.len() + mark.resource.len() + 60;
        self.area.len() + self.shown.marks.iter().map(mark).sum::<usize>()
    }
}

impl NotedPositions {
    fn new(Shown { marks, is_whole, is_over }: &Shown) -> Self {
        Self { marks: entries(marks), is_whole: *is_whole, is_over: *is_over }
    }

    /// What an earlier process noted.
    fn read(&self) -> Shown {
        let Self { is_whole, is_over, .. } = *self;
        Shown { marks: marks(&self.marks), is_whole, is_over }.by_earlier_process()
    }
}

fn of_area(text: &str, shown: Shown, like: &Arc<Sharding>) -> Option<FormerSharding> {
    Some(FormerSharding { sharding: read_boundary(text, like)?, shown })
}

fn entries(marks: &Marks) -> Vec<Entry> {
    let entry = |(resource, mark): (&GroupResource, &Floor)| Entry {
        group: resource.group().to_owned(),
        resource: resource.resource().to_owned(),
        floor: match mark {
            Floor::At(mark) => Some(*mark),
            Floor::Unknown => None,
        },
    };
    marks.iter().map(entry).collect()
}

fn marks(entries: &[Entry]) -> Marks {
    let mark = |Entry { group, resource, floor }: &Entry| {
        (GroupResource::new(group, resource), floor.map_or(Floor::Unknown, Floor::At))
    };
    entries.iter().map(mark).collect()
}

/// Reads the file. One that is longer than any that we write is not ours.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(length).is_ok_and(|length| length <= MAX_BYTES) {
        return Ok(bytes);
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

fn replace(path: &Path, content: &Content) -> io::Result<()> {
    let bytes = serde_json::to_vec(content)?;
    let fresh = path.with_extension("new");
    let written = fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        // Half a file is useless, and may be what fills the disk.
        let _ = fs::remove_file(&fresh);
    }
    written
}

fn hex(sharding: &Sharding) -> String {
    sharding.hash().iter().map(|byte| format!("{byte:02x}")).collect()
}
