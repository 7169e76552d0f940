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

use serde::{Deserialize, Serialize};

use crate::policy::{
    Epoch, GroupResource, Sharding,
    positions::{Floor, Forgotten, Former, FormerSharding, Marks, Past, Positions},
    ring::{area_text, read_area},
};

/// Bytes of the file for as many resources as have a position of their own, with the longest names, and
/// for the boundaries of before.
const MAX_BYTES: u64 = 2 << 20;
/// Most bytes of the boundaries of before. One has 192 KiB at most.
const MAX_FORMER: usize = 1 << 20;

/// The positions that clients were shown of one API server, and the file that keeps them.
#[derive(Debug)]
pub(in crate::proxy) struct KeptPositions {
    path: Option<PathBuf>,
    at_start: AtStart,
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

/// Boundaries, the oldest first, and the marks of those that were forgotten.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Boundaries {
    former: Vec<Boundary>,
    /// The last ones, whose marks are not known: those in force, and one that is about to be.
    present: Vec<String>,
    forgotten: Vec<Entry>,
    /// Whether any position of other resources may be of a boundary that was forgotten, and whether
    /// there is one.
    is_unknown: bool,
    is_any: bool,
}

/// A boundary, and the highest position of each resource that was shown until it ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Boundary {
    area: String,
    /// The positions. `None` if any may be of it.
    marks: Option<Vec<Entry>>,
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
pub(in crate::proxy) struct Unwritable {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl KeptPositions {
    /// Opens the file. Without a directory nothing is known of any process before this one. Fails
    /// with [`Unwritable`] if the next process would not know that there was this one.
    pub(in crate::proxy) fn open(state_dir: Option<PathBuf>) -> Result<Self, Unwritable> {
        let present = OnceLock::new();
        let Some(path) = state_dir.map(|dir| dir.join("positions.json")) else {
            return Ok(Self { path: None, at_start: AtStart::Unknown, present });
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
        Ok(Self { path: Some(path), at_start, present })
    }

    /// The positions; `None` before the first policy.
    pub(in crate::proxy) fn get(&self) -> Option<&Positions> {
        self.present.get()
    }

    /// Raises the floors: `sharding` is about to come into force in `epoch`.
    pub(in crate::proxy) fn raise_floors(&self, epoch: Epoch, sharding: &Arc<Sharding>) {
        self.present
            .get_or_init(|| Positions::new(self.read(sharding), Arc::clone(sharding)))
            .change(epoch, sharding);
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
    pub(in crate::proxy) fn begin_change(
        &self,
        sharding: &Sharding,
        is_first: bool,
    ) -> Result<(), Unwritable> {
        let Some(path) = &self.path else { return Ok(()) };
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
        let present = area_text(&sharding.area());
        let Some(positions) = self.get() else {
            let mut boundaries = match &self.at_start {
                AtStart::Nothing => Boundaries::new(Former::default(), [])?,
                AtStart::Content(content) => content.boundaries.clone()?,
                AtStart::Unknown => return None,
            };
            boundaries.present.push(present?);
            return Some(boundaries);
        };
        let shown = area_text(&positions.present().area());
        Boundaries::new(positions.past().former, [shown, present])
    }

    /// Stores the past, valid under `sharding`: nothing is shown under any other from now on.
    pub(in crate::proxy) fn store(&self, sharding: &Sharding) {
        let (Some(path), Some(positions)) = (&self.path, self.get()) else { return };
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
            boundaries: Boundaries::new(past.former.clone(), [area_text(&sharding.area())]),
        }
    }

    fn vouches_for(&self, sharding: &Sharding) -> bool {
        self.policy.as_ref() == Some(&hex(sharding))
    }

    /// The past under the sharding for which it vouches.
    fn past(&self, sharding: &Arc<Sharding>) -> Past {
        let floors = marks(&self.floors);
        let unknown =
            || Forgotten { marks: floors.clone(), is_unknown: self.unknown, is_any: true };
        let former = self.boundaries.as_ref().and_then(|known| known.former(sharding));
        let former = former.unwrap_or_else(|| Former::new([], unknown()));
        Past { floors, unknown: self.unknown, had_process: true, former }
    }

    /// All boundaries, under any of which any position may have been shown.
    fn all(&self, sharding: &Arc<Sharding>) -> Former {
        let all = || {
            let known = self.boundaries.as_ref()?;
            let mut former = known.former(sharding)?;
            for text in &known.present {
                former.add(of_area(text, None, sharding)?);
            }
            let all = former.all().cloned().map(|one| FormerSharding { marks: None, ..one });
            Some(Former::new(all.collect::<Vec<_>>(), former.forgotten().clone()))
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
            let all = former.all().map(|FormerSharding { sharding, marks }| {
                let marks = marks.as_ref().map(entries);
                Some(Boundary { area: area_text(&sharding.area())?, marks })
            });
            let all: Option<Vec<_>> = all.collect();
            let has_room = |all: &Vec<Boundary>| {
                all.iter().map(|one| one.area.len()).sum::<usize>() <= MAX_FORMER
            };
            if let Some(all) = all.filter(has_room) {
                let Forgotten { marks, is_unknown, is_any } = former.forgotten();
                let (forgotten, is_unknown, is_any) = (entries(marks), *is_unknown, *is_any);
                return Some(Self { former: all, present, forgotten, is_unknown, is_any });
            }
            if !former.forget() {
                return None;
            }
        }
    }

    /// The shardings of before, as those of the shard of `sharding`. `None` if one cannot be read.
    fn former(&self, sharding: &Arc<Sharding>) -> Option<Former> {
        let all = self.former.iter().map(|Boundary { area, marks }| {
            of_area(area, marks.as_deref().map(self::marks), sharding)
        });
        let forgotten = Forgotten {
            marks: marks(&self.forgotten),
            is_unknown: self.is_unknown,
            is_any: self.is_any,
        };
        Some(Former::new(all.collect::<Option<Vec<_>>>()?, forgotten))
    }
}

fn of_area(text: &str, marks: Option<Marks>, like: &Arc<Sharding>) -> Option<FormerSharding> {
    Some(FormerSharding { sharding: like.within(&read_area(text)?), marks })
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
