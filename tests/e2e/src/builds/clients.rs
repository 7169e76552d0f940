//! The client programs of `clients/`, built once and cached outside the tree.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{
    cache::{self, Key},
    deps,
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

/// The command of the Java client program of `clients/java`.
///
/// # Errors
///
/// When Java or Maven is missing or the build fails.
pub fn java_client() -> Result<Command> {
    let built = java_classes()?;
    let mut java = Command::new("java");
    // A program of seconds is not worth what the second compiler and a concurrent collector cost.
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
    java.arg(format!("{0}/target/client-0.jar:{0}/target/lib/*", built.display()));
    java.arg("e2e.Client");
    Ok(java)
}

fn java_classes() -> Result<PathBuf> {
    let files = ["pom.xml", "src/main/java/e2e/Client.java"];
    built("java", "javac", &files, |path| {
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "-f"]).arg(path.join("pom.xml")).arg("package");
        maven
    })
}

/// The command of the Node client program of `clients/node`.
///
/// # Errors
///
/// When Node or npm is missing or the packages cannot be installed.
pub fn node_client() -> Result<Command> {
    let mut node = Command::new("node");
    node.arg(node_modules()?.join("client.js"));
    Ok(node)
}

fn node_modules() -> Result<PathBuf> {
    let files = ["package.json", "package-lock.json", "client.js"];
    built("node", "node", &files, |path| {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund", "--prefix"]).arg(path);
        npm
    })
}

/// A copy of these files of a client's sources, with what a command makes of them there.
fn built(
    language: &str,
    tool: &str,
    files: &[&str],
    command: impl FnOnce(&Path) -> Command,
) -> Result<PathBuf> {
    deps::install_for_clients()?;
    let sources = sources().join(language);
    let version = Command::new(tool).arg("--version").output();
    let version = version.with_context(|| format!("running {tool}"))?;
    let mut key = Key::default().add(&version.stdout);
    for file in files {
        key = key.add_file(&sources.join(file))?;
    }
    cache::file(&format!("client-{language}"), key, |path| {
        for file in files {
            let copy = path.join(file);
            let directory = copy.parent().context("a copy is in a directory")?;
            fs::create_dir_all(directory)?;
            fs::copy(sources.join(file), &copy)?;
        }
        cache::run_with_progress(&format!("building the {language} client"), &mut command(path))
    })
}

/// Builds the clients of all languages; returns where each is.
///
/// # Errors
///
/// When one cannot be built.
pub fn all_clients() -> Result<Vec<PathBuf>> {
    Ok(vec![go_clients()?, python_client()?.0, java_classes()?, node_modules()?])
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}
