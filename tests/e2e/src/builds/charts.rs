//! Charts and operators of others: from the modules that the Go proxy serves, without a registry.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    go::{go_program, go_tool},
    images::{self, Image},
};

/// The name of cert-manager's image here.
const CERT_MANAGER: &str = "localhost/cert-manager:e2e";
/// The name of Argo Rollouts' image here, and its version, that of the chart.
const ARGO_ROLLOUTS: &str = "localhost/argo-rollouts:e2e";
const ARGO_ROLLOUTS_VERSION: &str = "v1.10.0";
/// The name of ECK's image here.
const ECK: &str = "localhost/eck:e2e";

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
    operator("cert-manager", CERT_MANAGER)
}

/// The image of the program `operators/eck`, which takes minutes to build.
///
/// # Errors
///
/// When Go is missing or the build fails.
pub fn eck() -> Result<Image> {
    operator("eck", ECK)
}

/// The image of Argo Rollouts' controller, which takes minutes to build.
///
/// # Errors
///
/// When Go is missing or the build fails.
pub fn argo_rollouts() -> Result<Image> {
    let module = go_module("github.com/argoproj/argo-rollouts", ARGO_ROLLOUTS_VERSION)?;
    let program = go_tool("rollouts-controller", &module, "./cmd/rollouts-controller")?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("operators/argo-rollouts");
    images::of_program(ARGO_ROLLOUTS, &sources.join("Containerfile"), &program)
}

fn operator(name: &str, image: &str) -> Result<Image> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("operators").join(name);
    let program = go_program(name, &sources)?;
    images::of_program(image, &sources.join("Containerfile"), &program)
}
