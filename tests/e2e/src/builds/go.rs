//! Go programs of this crate, built on demand and cached outside the tree.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::cache::{self, Key};

/// The linker's flags that leave out symbols and debug information.
pub(super) const STRIPPED: &str = "-s -w";

/// The static program of the module in `directory`; builds it if these sources have no cached
/// build.
pub(crate) fn go_program(name: &str, directory: &Path) -> Result<PathBuf> {
    go_tool(name, directory, ".")
}

/// [`go_program`] of another package, which the module in `directory` requires.
pub(super) fn go_tool(name: &str, directory: &Path, package: &str) -> Result<PathBuf> {
    let version = Command::new("go").arg("version").output().context("running go")?;
    let mut files = Vec::new();
    add_sources(directory, &mut files)?;
    files.sort();
    let mut key = Key::default().add(version.stdout);
    for file in &files {
        let relative = file.strip_prefix(directory).unwrap_or(file);
        key = key.add(relative.to_string_lossy().as_bytes()).add_file(file)?;
    }
    cache::file(name, key, |path| {
        cache::run_with_progress(
            &format!("building {name}"),
            &mut go_build(directory, package, STRIPPED, path),
        )
    })
}

/// The command that builds the static program of a package at `path`, as the module in `directory`
/// sees it. It leaves out the debug information, which no one reads: an eighth of the compiler's
/// time.
pub(super) fn go_build(
    directory: &Path,
    package: &str,
    linker_flags: &str,
    path: &Path,
) -> Command {
    let mut go = Command::new("go");
    go.current_dir(directory)
        .env("CGO_ENABLED", "0")
        .args(["build", "-v", "-mod=readonly", "-trimpath", "-gcflags=all=-dwarf=false"])
        .args(["-ldflags", linker_flags, "-o"])
        .arg(path)
        .arg(package);
    go
}

fn add_sources(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            add_sources(&path, files)?;
        } else if path.extension().is_some_and(|ext| ext == "go" || ext == "mod" || ext == "sum") {
            files.push(path);
        }
    }
    Ok(())
}
