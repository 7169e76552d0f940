//! The positions on disk, so that a restart of this process costs no relist.
//!
//! The file vouches for what it says under one policy, and whatever is not vouched for is unknown.
//! An empty directory is that of a new pod, to which nothing was shown: so the file is made before
//! anything is served, and is emptied, never removed, where it cannot be written.

use std::{
    collections::HashMap,
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::policy::{
    GroupResource, Policy,
    positions::{Floor, Past},
};

/// The file of as many resources as are told apart, with the longest names.
const MAX_BYTES: u64 = 1 << 20;

/// The file in the state directory.
#[derive(Debug)]
pub(super) struct PastFile {
    path: Option<PathBuf>,
    found: Found,
}

/// What stood there at the start of the process.
#[derive(Debug)]
enum Found {
    /// There was no process before this one.
    Nothing,
    Content(Content),
    /// Clients may have been shown anything.
    Unknown,
}

/// The file's content.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Content {
    /// The hash of the policy under which all of this holds; `None` while a change is under way.
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
    /// `None` if it is unknown.
    floor: Option<u64>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be written", .path.display())]
pub(in crate::proxy) struct Unwritable {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl PastFile {
    /// Without a directory nothing is known of any process before this one.
    ///
    /// # Errors
    /// [`Unwritable`] when the next process could not be told that there was this one.
    pub(super) fn open(state_dir: Option<PathBuf>) -> Result<Self, Unwritable> {
        let Some(path) = state_dir.map(|dir| dir.join("positions.json")) else {
            return Ok(Self { path: None, found: Found::Unknown });
        };
        let found = match read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_or(Found::Unknown, Found::Content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Nothing,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot read positions");
                Found::Unknown
            }
        };
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        opened.map_err(|source| Unwritable { path: path.clone(), source })?;
        Ok(Self { path: Some(path), found })
    }

    /// The positions shown before this process, if it starts with `policy`.
    pub(super) fn read(&self, policy: &Policy) -> Past {
        match &self.found {
            Found::Nothing => Past::none(),
            Found::Content(content) if content.vouches_for(policy) => content.past(),
            Found::Content(_) | Found::Unknown => Past::unknown(),
        }
    }

    /// From now on `policy` is in force: what stands in the file is not true any more. `is_first`
    /// says that it is the first policy of this process.
    ///
    /// # Errors
    /// [`Unwritable`] when the file goes on vouching for another policy.
    pub(super) fn begin_change(&self, policy: &Policy, is_first: bool) -> Result<(), Unwritable> {
        let Some(path) = &self.path else { return Ok(()) };
        let is_true = match &self.found {
            Found::Content(content) => content.vouches_for(policy),
            Found::Nothing | Found::Unknown => false,
        };
        if is_first && is_true {
            return Ok(());
        }
        let unknown = Content { policy: None, unknown: true, floors: Vec::new() };
        let Err(error) = replace(path, &unknown) else { return Ok(()) };
        // On a full disk there is no room for another file, but always for less of this one.
        tracing::error!(%error, path = %path.display(), "cannot write positions");
        let emptied = OpenOptions::new().write(true).truncate(true).open(path);
        emptied.map(drop).map_err(|source| Unwritable { path: path.clone(), source })
    }

    /// All that is shown from now on is shown under `policy`.
    pub(super) fn write(&self, policy: &Policy, past: &Past) {
        let Some(path) = &self.path else { return };
        if let Err(error) = replace(path, &Content::new(policy, past)) {
            tracing::error!(%error, path = %path.display(), "cannot write positions");
        }
    }
}

impl Content {
    fn new(policy: &Policy, past: &Past) -> Self {
        let entry = |(resource, floor): (&GroupResource, &Floor)| Entry {
            group: resource.group().to_owned(),
            resource: resource.resource().to_owned(),
            floor: match floor {
                Floor::At(floor) => Some(*floor),
                Floor::Unknown => None,
            },
        };
        Self {
            policy: Some(hex(policy)),
            unknown: past.unknown,
            floors: past.floors.iter().map(entry).collect(),
        }
    }

    fn vouches_for(&self, policy: &Policy) -> bool {
        self.policy.as_ref() == Some(&hex(policy))
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

/// A file longer than any that we write was not written by us.
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
        // Half a file is of no use, and may be what fills the disk.
        let _ = fs::remove_file(&fresh);
    }
    written
}

fn hex(policy: &Policy) -> String {
    policy.hash().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
