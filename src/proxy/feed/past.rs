//! The positions on disk, so that a restart of this process costs no relist.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::policy::{GroupResource, Policy, positions::Past};

/// The file in the state directory.
#[derive(Debug)]
pub(super) struct PastFile {
    path: Option<PathBuf>,
}

/// What stands in the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Content {
    /// The hash of the policy under which all of this holds; nothing while a change is under way.
    policy: Option<String>,
    /// Whether resources that `floors` lacks have an unknown past.
    unknown: bool,
    floors: Vec<Floor>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Floor {
    group: String,
    resource: String,
    floor: u64,
}

impl PastFile {
    pub(super) fn new(state_dir: Option<PathBuf>) -> Self {
        Self { path: state_dir.map(|dir| dir.join("positions.json")) }
    }

    /// What is known of the time before this process. An empty directory is that of a new pod, to
    /// which nothing was shown yet.
    pub(super) fn read(&self, policy: &Policy) -> Past {
        let Some(path) = &self.path else {
            return Past::unknown();
        };
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Past::none(),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot read positions");
                return Past::unknown();
            }
        };
        match serde_json::from_slice::<Content>(&bytes) {
            Ok(content) if content.policy == Some(hex(policy)) => content.into_past(),
            _ => Past::unknown(),
        }
    }

    /// From now on what stands in the file is not true any more.
    pub(super) fn begin_change(&self) {
        self.put(&Content { policy: None, unknown: true, floors: Vec::new() });
    }

    /// All that is shown from now on is shown under `policy`.
    pub(super) fn write(&self, policy: &Policy, past: &Past) {
        let floor = |(resource, floor): (&GroupResource, &u64)| Floor {
            group: resource.group().to_owned(),
            resource: resource.resource().to_owned(),
            floor: *floor,
        };
        self.put(&Content {
            policy: Some(hex(policy)),
            unknown: past.unknown,
            floors: past.floors.iter().map(floor).collect(),
        });
    }

    fn put(&self, content: &Content) {
        let Some(path) = &self.path else { return };
        if let Err(error) = replace(path, content) {
            // A stale file would vouch for positions that it knows nothing of.
            let removed = fs::remove_file(path).is_ok();
            tracing::error!(%error, removed, path = %path.display(), "cannot write positions");
        }
    }
}

impl Content {
    fn into_past(self) -> Past {
        let floors = self
            .floors
            .into_iter()
            .map(|floor| (GroupResource::new(&floor.group, &floor.resource), floor.floor))
            .collect();
        Past { floors, unknown: self.unknown, had_process: true }
    }
}

fn replace(path: &Path, content: &Content) -> io::Result<()> {
    let bytes = serde_json::to_vec(content)?;
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes)?;
    fs::rename(&fresh, path)
}

fn hex(policy: &Policy) -> String {
    policy.hash().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
