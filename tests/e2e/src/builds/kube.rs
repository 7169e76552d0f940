//! The one binary with every component of Kubernetes, built from `cluster/` on demand.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

use anyhow::{Context, Result, bail};

use super::{
    cache::{self, Key},
    go::{STRIPPED, go_build},
};

/// The version of Kubernetes that `cluster/go.mod` requires.
pub const KUBERNETES_VERSION: &str = "1.37.1";

/// The path of the binary; builds it if these sources have no cached build (six minutes from
/// nothing).
///
/// # Errors
///
/// When Go is missing or the build fails.
pub fn kube_binary() -> Result<PathBuf> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    // A poisoned lock holds a path or `None`: both are valid.
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(path) = built.as_ref() {
        return Ok(path.clone());
    }
    let path = build()?;
    Ok(built.insert(path).clone())
}

fn build() -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster");
    let flags = linker_flags()?;
    let mut key = Key::default().add(go_version()?).add(&flags);
    for source in go_sources(&sources)? {
        key = key.add_file(&source)?;
    }
    cache::file("kube", key, |path| {
        let mut go = go_build(&sources, ".", &flags, path);
        cache::run_with_progress("building Kubernetes from source", &mut go)
    })
}

fn linker_flags() -> Result<String> {
    let mut numbers = KUBERNETES_VERSION.split('.');
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        bail!("KUBERNETES_VERSION {KUBERNETES_VERSION:?} is not MAJOR.MINOR.PATCH");
    };
    let version = "k8s.io/component-base/version";
    Ok(format!(
        "{STRIPPED} -X {version}.gitVersion=v{KUBERNETES_VERSION} -X {version}.gitMajor={major} \
         -X {version}.gitMinor={minor}"
    ))
}

fn go_version() -> Result<Vec<u8>> {
    let output = Command::new("go")
        .arg("version")
        .output()
        .context("running go: it builds Kubernetes; `testbed deps` says what else is needed")?;
    Ok(output.stdout)
}

fn go_sources(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_source = path.extension().is_some_and(|ext| ext == "go")
            || path.ends_with("go.mod")
            || path.ends_with("go.sum");
        if is_source {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}
