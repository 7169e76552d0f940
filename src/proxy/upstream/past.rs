//! The positions on disk, so that a restart of this process costs no relist.
//!
//! The file is valid under one policy; without a valid file the past is unknown. An empty directory
//! is that of a new pod, which was shown nothing: so the file is created before anything is served,
//! and is emptied, never removed, if it cannot be written.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use serde::{Deserialize, Serialize};

use crate::policy::{
    Epoch, GroupResource, Sharding,
    positions::{Floor, Past, Positions},
};

/// Bytes of the file for as many resources as have a position of their own, with the longest names.
const MAX_BYTES: u64 = 1 << 20;

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
}

#[derive(Debug, Serialize, Deserialize)]
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
    fn read(&self, sharding: &Sharding) -> Past {
        match &self.at_start {
            AtStart::Nothing => Past::none(),
            AtStart::Content(content) if content.vouches_for(sharding) => content.past(),
            AtStart::Content(_) | AtStart::Unknown => Past::unknown(),
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
        let unknown = Content { policy: None, unknown: true, floors: Vec::new() };
        let Err(error) = replace(path, &unknown) else { return Ok(()) };
        // A full disk has no room for another file, but always for less of this one.
        tracing::error!(%error, path = %path.display(), "cannot write positions");
        let emptied = OpenOptions::new().write(true).truncate(true).open(path);
        emptied.map(drop).map_err(|source| Unwritable { path: path.clone(), source })
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
        let entry = |(resource, floor): (&GroupResource, &Floor)| Entry {
            group: resource.group().to_owned(),
            resource: resource.resource().to_owned(),
            floor: match floor {
                Floor::At(floor) => Some(*floor),
                Floor::Unknown => None,
            },
        };
        Self {
            policy: Some(hex(sharding)),
            unknown: past.unknown,
            floors: past.floors.iter().map(entry).collect(),
        }
    }

    fn vouches_for(&self, sharding: &Sharding) -> bool {
        self.policy.as_ref() == Some(&hex(sharding))
    }

    fn past(&self) -> Past {
        let floors: HashMap<_, _> = self
            .floors
            .iter()
            .map(|Entry { group, resource, floor }| {
                (GroupResource::new(group, resource), floor.map_or(Floor::Unknown, Floor::At))
            })
            .collect();
        Past { floors, unknown: self.unknown, had_process: true }
    }
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
