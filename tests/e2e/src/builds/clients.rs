//! The client programs of `clients/`, built once and cached outside the tree.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{
    cache::{self, Key},
    go::go_program,
};

/// The path of the Go client program of `clients/go`; builds it if these sources have no cached
/// build.
///
/// # Errors
///
/// When Go is missing or the build fails.
pub fn go_clients() -> Result<PathBuf> {
    go_program("clients", &sources().join("go"))
}

/// A Python with the packages of `clients/python/requirements.txt`, and the program to run with it.
///
/// # Errors
///
/// When Python or its `venv` is missing, or the packages cannot be installed.
pub fn python_client() -> Result<(PathBuf, PathBuf)> {
    let directory = sources().join("python");
    let requirements = directory.join("requirements.txt");
    let version = Command::new("python3").arg("--version").output().context("running python3")?;
    let key = Key::default().add(&version.stdout).add_file(&requirements)?;
    // An environment finds its packages relative to its interpreter, so it may be moved when done.
    let environment = cache::file("python", key, |path| {
        let mut make = Command::new("python3");
        make.args(["-m", "venv"]).arg(path);
        cache::run_with_progress("making a Python environment", &mut make)?;
        let mut install = Command::new(path.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]);
        install.arg(&requirements);
        cache::run_with_progress("installing the Python client", &mut install)
    })?;
    Ok((environment.join("bin/python"), directory.join("client.py")))
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}
