//! The client programs of this machine, as a pod has them: mounted at the paths that they have here.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{go_clients, kube_binary, python_client};

/// The paths of the programs.
pub struct Tools {
    kube: PathBuf,
    go: PathBuf,
    python: PathBuf,
    python_client: PathBuf,
    /// Where the interpreter is that the Python environment stands on.
    python_home: PathBuf,
    rust: PathBuf,
}

/// A client program.
#[derive(Clone, Copy, Debug)]
pub enum Tool {
    /// kubectl.
    Kubectl,
    /// `clients/go`: client-go.
    Go,
    /// `clients/rust`: the crate kube.
    Rust,
    /// `clients/python`: the official package.
    Python,
    /// curl.
    Curl,
    /// A shell, which takes one line.
    Shell,
}

impl Tools {
    /// Finds the programs, or builds them; `rust` is the binary `kube-client` of this package.
    ///
    /// # Errors
    ///
    /// When one cannot be built.
    pub fn find(rust: impl Into<PathBuf>) -> Result<Self> {
        let (python, python_client) = python_client()?;
        let asked = Command::new(&python)
            .args(["-c", "import sys; print(sys.base_prefix, end='')"])
            .output()
            .context("asking Python where it is")?;
        Ok(Self {
            kube: kube_binary()?,
            go: go_clients()?,
            python,
            python_client,
            python_home: String::from_utf8(asked.stdout)?.into(),
            rust: rust.into(),
        })
    }

    /// The words of a command line that runs a program.
    ///
    /// # Errors
    ///
    /// When a path is not UTF-8.
    pub fn line(&self, tool: Tool) -> Result<Vec<&str>> {
        Ok(match tool {
            Tool::Kubectl => vec![text(&self.kube)?, "kubectl"],
            Tool::Go => vec![text(&self.go)?],
            Tool::Rust => vec![text(&self.rust)?],
            Tool::Python => vec![text(&self.python)?, text(&self.python_client)?],
            Tool::Curl => vec!["/usr/bin/curl"],
            Tool::Shell => vec!["/bin/sh", "-c"],
        })
    }

    /// The directories and files that the pod needs; `/usr` brings curl and the libraries.
    ///
    /// # Errors
    ///
    /// When a program has no directory.
    pub fn mounted(&self) -> Result<Vec<&Path>> {
        let cache = self.kube.parent().context("a file has a directory")?;
        let client = self.python_client.parent().context("a file has a directory")?;
        let all = [Path::new("/usr"), cache, client, &self.python_home, &self.rust];
        let is_needed = |path: &&Path| *path == all[0] || !path.starts_with(all[0]);
        Ok(all.into_iter().filter(is_needed).collect())
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
