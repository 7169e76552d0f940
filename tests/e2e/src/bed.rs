//! The directory of one cluster, and the removal of those whose owners were killed.

use std::{
    env,
    fs::{self, File, TryLockError},
    io::{ErrorKind, Write},
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use nix::unistd::getuid;

use crate::programs::until;

/// The time limit for the processes of a killed owner to end.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

/// The lock that the owner of a bed holds for life; the kernel releases it on any death.
const OWNER: &str = "owner.lock";

/// The variable with the path of a file in which each cluster that starts is a line.
pub const CLUSTERS: &str = "CTRLMESH_TEST_CLUSTERS";

/// The variable with the mark of a group of tests, which all processes of the group inherit.
pub const GROUP: &str = "CTRLMESH_TEST_GROUP";

/// Writes down that a cluster of this kind starts, where someone counts them.
pub(crate) fn count_cluster(kind: &str) -> Result<()> {
    let Some(path) = env::var_os(CLUSTERS).filter(|path| !path.is_empty()) else { return Ok(()) };
    let context = || format!("counting clusters in {}", path.display());
    let mut file = File::options().create(true).append(true).open(&path).with_context(context)?;
    // One write, so that lines of several threads do not mix.
    file.write_all(format!("{kind}\n").as_bytes()).with_context(context)
}

/// A directory with all files of a cluster, removed on drop.
#[derive(Debug)]
pub(crate) struct Bed {
    path: PathBuf,
    _owner: File,
}

impl Bed {
    /// Makes a bed, after sweeping those whose owners are dead.
    pub(crate) fn make() -> Result<Self> {
        sweep()?;
        let _turn = turn()?;
        loop {
            let name: String = std::iter::repeat_with(fastrand::lowercase).take(8).collect();
            let path = root().join(name);
            match fs::DirBuilder::new().mode(0o755).create(&path) {
                Ok(()) => {
                    let mut owner = File::create_new(path.join(OWNER))?;
                    owner.try_lock().context("locking a bed just made")?;
                    owner.write_all(env::var_os(GROUP).unwrap_or_default().as_bytes())?;
                    return Ok(Self { path, _owner: owner });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).context(format!("making {}", path.display())),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the parent cgroup of all pods of the bed, in every hierarchy, and returns its name.
    /// Removed with the bed.
    pub(crate) fn make_cgroup(&self) -> Result<String> {
        let name = cgroup(&self.path);
        for hierarchy in hierarchies()? {
            let path = hierarchy.join(&name);
            fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        }
        Ok(format!("/{name}"))
    }

    /// Writes a file of the bed and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Makes a directory of the bed and returns its path.
    pub(crate) fn subdirectory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // The next sweep removes and reports the rest.
        let _ = remove(&self.path);
    }
}

/// A bed that was removed.
#[derive(Debug)]
pub struct Swept {
    /// Its directory.
    pub bed: PathBuf,
    /// The mark of the group of tests that made it: empty if none did.
    pub group: String,
}

/// Removes the beds whose owners are dead.
///
/// A living owner is recognized by the lock that it holds, not by its process id, which another
/// process may have already.
///
/// # Errors
///
/// When a dead owner's bed cannot be removed.
pub fn sweep() -> Result<Vec<Swept>> {
    let _turn = turn()?;
    let mut swept = Vec::new();
    for entry in fs::read_dir(root())? {
        let bed = entry?.path();
        if !bed.is_dir() || has_owner(&bed)? {
            continue;
        }
        // An owner that was killed at once has not written it.
        let group = fs::read_to_string(bed.join(OWNER)).unwrap_or_default();
        remove(&bed).with_context(|| format!("sweeping {}", bed.display()))?;
        swept.push(Swept { bed, group });
    }
    Ok(swept)
}

fn has_owner(bed: &Path) -> Result<bool> {
    match File::open(bed.join(OWNER)).map(|owner| owner.try_lock()) {
        Ok(Ok(())) => Ok(false),
        Ok(Err(TryLockError::WouldBlock)) => Ok(true),
        Ok(Err(TryLockError::Error(error))) => Err(error.into()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes a bed with its cgroups. The processes of an owner killed just before may still be
/// ending, and hold both.
fn remove(bed: &Path) -> Result<()> {
    let mut last = None;
    let removed = until("it is removed", REMOVAL_LIMIT, || {
        last = remove_now(bed).err();
        Ok(last.is_none().then_some(()))
    });
    removed.map_err(|late| last.take().map_or(late, |error| error.context("removing a bed")))
}

fn remove_now(bed: &Path) -> Result<()> {
    for hierarchy in hierarchies()? {
        remove_cgroup(&hierarchy.join(cgroup(bed)))?;
    }
    match fs::remove_dir_all(bed) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Removes a tree of cgroups, leaves first; the files in it are the kernel's.
fn remove_cgroup(path: &Path) -> Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(path).with_context(|| format!("removing the cgroup {}", path.display()))
}

/// The roots of all cgroup hierarchies: of version 2, and of each controller of version 1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let of_cgroups = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind) = (fields.next()?, fields.next()?);
        matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(point))
    });
    Ok(of_cgroups.collect())
}

fn cgroup(bed: &Path) -> String {
    let name = bed.file_name().unwrap_or_default().to_string_lossy();
    format!("ctrlmesh-e2e-{name}")
}

/// Serialises making and sweeping, so that a bed between its creation and its lock is not swept.
fn turn() -> Result<File> {
    let root = root();
    fs::create_dir_all(&root).with_context(|| format!("making {}", root.display()))?;
    let turn = File::create(root.join("turn.lock"))?;
    turn.lock()?;
    Ok(turn)
}

/// The parent of all beds. Short, since the path of a Unix socket has at most 107 bytes.
fn root() -> PathBuf {
    env::temp_dir().join(format!("ctrlmesh-e2e-{}", getuid()))
}
