//! A node on which pods can be injected: the base of every scene with pods.
//!
//! 1. [`Mesh::start`]: a node, our two images, the mesh CA and our CRDs.
//! 2. [`Node::import_image`] and [`Node::apply`]: the needs of the scene's pods.
//! 3. [`Mesh::inject`]: any manifest, as `ctrlmesh inject` prints it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{Families, Network, Node, NodeBuilder, images};

/// The ranges of the API server's Service addresses on every node of the test bed.
const SERVICE_RANGES: &str = "10.96.0.0/12,fd00::/8";

/// The static binaries that are put into images.
#[derive(Clone, Debug)]
pub struct Binaries {
    directory: PathBuf,
}

/// A node for injected pods; see the module.
pub struct Mesh {
    node: Node,
    binaries: Binaries,
    mesh_ca: PathBuf,
}

impl Binaries {
    /// The directory of `ctrlmesh` and `ctrlmesh-init`, both static.
    ///
    /// # Errors
    ///
    /// When one is missing.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = directory.into();
        for name in ["ctrlmesh", "ctrlmesh-init"] {
            let path = directory.join(name);
            if !path.is_file() {
                bail!("{} is missing: scripts/test and scripts/demo build it", path.display());
            }
        }
        Ok(Self { directory })
    }

    /// The directory that the environment variable `CTRLMESH_STATIC_DIR` names, as the scripts
    /// set it.
    ///
    /// # Errors
    ///
    /// When it is not set, or as [`Self::in_directory`].
    pub fn from_env() -> Result<Self> {
        let directory = std::env::var_os("CTRLMESH_STATIC_DIR")
            .context("CTRLMESH_STATIC_DIR is not set: scripts/test and scripts/demo set it")?;
        Self::in_directory(directory)
    }

    /// The path of `ctrlmesh`.
    #[must_use]
    pub fn ctrlmesh(&self) -> PathBuf {
        self.directory.join("ctrlmesh")
    }

    fn init(&self) -> PathBuf {
        self.directory.join("ctrlmesh-init")
    }
}

impl Mesh {
    /// Starts a node with the images and CRDs that injected pods need.
    ///
    /// # Errors
    ///
    /// When a part does not start.
    pub fn start(binaries: Binaries, families: Families) -> Result<Self> {
        Self::start_on(binaries, Node::builder().families(families))
    }

    /// [`Self::start`] on a given node.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_on(binaries: Binaries, node: NodeBuilder) -> Result<Self> {
        let crds = run(&binaries.ctrlmesh(), &["crds"], "")?;
        let mesh = Self::bare_on(binaries, node.custom_resource_definitions(crds))?;
        let ca = mesh.mesh_ca.to_string_lossy().into_owned();
        mesh.ctrlmesh(&["mesh-ca", &ca, "--ip", SERVICE_RANGES], "")?;
        Ok(mesh)
    }

    /// Starts a node with the images alone, for a scene that installs the rest.
    pub(super) fn bare_on(binaries: Binaries, node: NodeBuilder) -> Result<Self> {
        let node = node.start()?;
        let mesh_ca = node.api().directory().join("mesh-ca");
        let mesh = Self { node, binaries, mesh_ca };
        mesh.import(&mesh.binaries)?;
        Ok(mesh)
    }

    /// Imports the images of these programs in place of those before.
    pub(super) fn import(&self, binaries: &Binaries) -> Result<()> {
        self.node.import_image(&images::proxy(&binaries.ctrlmesh())?)?;
        self.node.import_image(&images::init(&binaries.init())?)
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The directory of the mesh CA that signs for the node's API server.
    #[must_use]
    pub fn mesh_ca(&self) -> &Path {
        &self.mesh_ca
    }

    /// The output of `ctrlmesh inject` for a manifest, with more arguments if the scene needs them.
    ///
    /// # Errors
    ///
    /// When it refuses; the error quotes its stderr.
    pub fn inject(&self, manifest: &str, more: &[&str]) -> Result<String> {
        let ca = self.mesh_ca.to_string_lossy().into_owned();
        let cluster_ca = self.node.api().ca_file().to_string_lossy().into_owned();
        let args = [
            "inject",
            "-f",
            "-",
            "--init-image",
            images::INIT,
            "--proxy-image",
            images::PROXY,
            "--mesh-ca-dir",
            &ca,
            "--cluster-ca",
            &cluster_ca,
        ];
        self.ctrlmesh(&[&args, more].concat(), manifest)
    }

    /// A pod's network, to run programs and make connections in as its containers do.
    ///
    /// # Errors
    ///
    /// When the pod has no process.
    pub fn pod_network(&self, namespace: &str, pod: &str) -> Result<Network> {
        let uid = ["get", "pod", pod, "-o=jsonpath={.metadata.uid}"];
        let uid = self.node.kubectl(&[&["--namespace", namespace], &uid[..]].concat())?;
        let cgroup = format!("/pod{uid}/");
        for process in fs::read_dir("/proc")? {
            let path = process?.path();
            let groups = fs::read_to_string(path.join("cgroup")).unwrap_or_default();
            if groups.contains(&cgroup) {
                return Ok(Network::Namespace(path.join("ns/net")));
            }
        }
        bail!("{pod} has no process")
    }

    /// The metrics of a pod's proxy.
    ///
    /// # Errors
    ///
    /// When the pod does not answer.
    pub fn metrics(&self, namespace: &str, pod: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:5441/proxy/metrics");
        self.node.kubectl(&["get", "--raw", &path])
    }

    /// The path of the `ctrlmesh` binary.
    pub(crate) fn binary(&self) -> PathBuf {
        self.binaries.ctrlmesh()
    }

    /// Runs the `ctrlmesh` binary and returns its output.
    ///
    /// # Errors
    ///
    /// When it fails; the error quotes its stderr.
    pub fn ctrlmesh(&self, args: &[&str], input: &str) -> Result<String> {
        run(&self.binary(), args, input)
    }
}

fn run(program: &Path, args: &[&str], input: &str) -> Result<String> {
    use std::{io::Write, process::Stdio};

    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {}", program.display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{} {}: {}\n{errors}", program.display(), args.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}
