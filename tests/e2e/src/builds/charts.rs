//! Charts and operators of others: from the modules that the Go proxy serves, without a registry.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    go::go_program,
    images::{self, Image},
};

/// The name of cert-manager's image here.
const CERT_MANAGER: &str = "localhost/cert-manager:e2e";

/// The files of a Go module at a version. Go checks their hash.
///
/// # Errors
///
/// When Go is missing or the module cannot be downloaded.
pub fn go_module(module: &str, version: &str) -> Result<PathBuf> {
    let mut go = Command::new("go");
    go.current_dir(std::env::temp_dir()).args(["mod", "download", "-json"]);
    let output = go.arg(format!("{module}@{version}")).output().context("running go")?;
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "go mod download {module}@{version}: {told} {error}");
    Ok(told["Dir"].as_str().context("a module has a directory")?.into())
}

/// The image of the program `operators/cert-manager`, which takes minutes to build.
///
/// # Errors
///
/// When Go is missing or the build fails.
pub fn cert_manager() -> Result<Image> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("operators/cert-manager");
    let program = go_program("cert-manager", &sources)?;
    images::of_program(CERT_MANAGER, &sources.join("Containerfile"), &program)
}
