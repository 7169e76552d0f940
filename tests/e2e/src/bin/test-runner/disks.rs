//! The directories that tests write to, and whether their disks are full.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

/// Free bytes below which a test's files do not fit: its images have 50 MB.
pub(crate) const FULL: u64 = 64 << 20;

/// Those of the directories whose disks have fewer than `least` bytes free, with the megabytes that they
/// have. One that does not exist, or is on no disk, is left out.
pub(crate) fn full(directories: &[PathBuf], least: u64) -> Vec<(&Path, u64)> {
    let with_space = directories.iter().filter_map(|path| Some((path.as_path(), free(path)?)));
    with_space.filter(|(_, free)| *free < least).map(|(path, free)| (path, free >> 20)).collect()
}

fn free(directory: &Path) -> Option<u64> {
    let disk = statvfs(directory).ok().filter(|disk| disk.blocks() > 0)?;
    // Of a disk without inodes, too, nothing is free.
    let has_inodes = disk.files() == 0 || disk.files_available() > 0;
    Some(if has_inodes { disk.blocks_available() * disk.fragment_size() } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_by_its_directory() {
        let directories = ["/proc", "/does-not-exist", "/"].map(PathBuf::from);
        assert_eq!(full(&directories, 0), []);
        let found: Vec<_> =
            full(&directories, u64::MAX).into_iter().map(|(path, _)| path).collect();
        assert_eq!(found, [Path::new("/")]);
    }
}
