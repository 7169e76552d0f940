//! kubectl, of the same version as the server, with its caches inside the bed.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{bed::Bed, builds::kube_binary, programs::Network};

/// kubectl for one cluster and one user.
#[derive(Clone, Debug)]
pub struct Kubectl {
    binary: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
    network: Network,
}

impl Kubectl {
    pub(crate) fn new(bed: &Bed, kubeconfig: &Path, network: &Network) -> Result<Self> {
        Ok(Self {
            binary: kube_binary()?,
            kubeconfig: kubeconfig.to_owned(),
            cache: bed.subdirectory("kubectl-cache")?,
            network: network.clone(),
        })
    }

    /// The same kubectl with another kubeconfig, such as one that points at a proxy.
    #[must_use]
    pub fn with_kubeconfig(&self, kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), ..self.clone() }
    }

    /// A command line to add arguments to.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = self.network.command(&self.binary);
        command
            .arg("kubectl")
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .env("KUBECACHEDIR", &self.cache)
            .stdin(Stdio::null());
        command
    }

    /// The command line for a person's shell.
    #[must_use]
    pub fn shown(&self) -> String {
        let command = self.command();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// Runs kubectl and returns its output.
    ///
    /// # Errors
    ///
    /// When it fails; the error quotes its stderr.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        let output = self.command().args(args).output().context("running kubectl")?;
        printed(args, output)
    }

    /// [`Self::run`] with an input, such as a manifest for `apply -f -`.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn run_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("running kubectl")?;
        let mut stdin = child.stdin.take().context("the pipe just asked for")?;
        // kubectl reads all of its input before it prints, so neither side blocks the other. A
        // broken pipe means that it has failed already; its stderr gives the reason.
        let written = stdin.write_all(input.as_bytes());
        drop(stdin);
        let out = printed(args, child.wait_with_output()?)?;
        written.context("writing to kubectl")?;
        Ok(out)
    }
}

fn printed(args: &[&str], output: Output) -> Result<String> {
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("kubectl {}: {}\n{errors}", args.join(" "), output.status);
    }
    String::from_utf8(output.stdout).context("kubectl printed bytes that are not UTF-8")
}

/// Writes a kubeconfig; `user` is its user entry.
pub(crate) fn write_kubeconfig(
    path: &Path,
    server: &str,
    ca_file: &Path,
    user: &Value,
) -> Result<()> {
    // JSON is YAML.
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "bed",
            "cluster": { "server": server, "certificate-authority": ca_file },
        }],
        "users": [{ "name": "bed", "user": user }],
        "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": "bed" } }],
        "current-context": "bed",
    });
    std::fs::write(path, text.to_string()).with_context(|| format!("writing {}", path.display()))
}
