//! Container images, built by buildah without a registry.

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::cache::{self, Key};

/// The image of every pod's sandbox.
pub const PAUSE: &str = "localhost/pause:1";

/// A shell with the usual small programs and iptables, in every node; runs as root by default.
pub const BUSYBOX: &str = "localhost/busybox:1";

/// The proxy, as `deploy/Containerfile` builds it.
pub const PROXY: &str = "localhost/ctrlmesh:dev";

/// The init container, as `deploy/Containerfile.init` builds it.
pub const INIT: &str = "localhost/ctrlmesh-init:dev";

/// The packages of the images' base here: a shell with the usual small programs, iptables with its
/// libraries, and nothing else.
const BASE_PACKAGES: [&str; 11] = [
    "busybox",
    "iptables",
    "libc6",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libxtables12",
    "netbase",
];

/// Removes the symbols of a program: they are more than half of what each node would import.
const STRIP: &str = "strip";

/// Directories that a package's script would create, and that any image has.
const BASE_DIRECTORIES: [(&str, u32); 1] = [("tmp", 0o1777)];

const PAUSE_FILE: &str = r#"ARG BASE
FROM ${BASE}
ENTRYPOINT ["/bin/busybox", "sleep", "2147483647"]
"#;

const BUSYBOX_FILE: &str = r#"ARG BASE
FROM ${BASE}
RUN ["/bin/busybox", "--install", "-s", "/bin"]
ENTRYPOINT ["/bin/sh"]
"#;

/// An image in an archive, ready for [`crate::Node::import_image`].
#[derive(Clone, Debug)]
pub struct Image {
    /// The name by which a pod refers to it.
    pub name: String,
    /// The archive, in the cache.
    pub archive: PathBuf,
}

/// One build: a Containerfile, the programs of its context, and its arguments.
struct Build<'a> {
    name: &'a str,
    containerfile: &'a str,
    /// (name in the context, program)
    context: &'a [(&'a str, PathBuf)],
    base: Option<&'a Path>,
}

/// The image of a pod's sandbox.
///
/// # Errors
///
/// When apt-get cannot download the base or buildah fails.
pub fn pause() -> Result<Image> {
    let base = base()?;
    Build { name: PAUSE, containerfile: PAUSE_FILE, context: &[], base: Some(&base) }.image()
}

/// The image with a shell.
///
/// # Errors
///
/// As [`pause`].
pub fn busybox() -> Result<Image> {
    let base = base()?;
    Build { name: BUSYBOX, containerfile: BUSYBOX_FILE, context: &[], base: Some(&base) }.image()
}

/// The proxy's image, from the static binary at `binary`, without its symbols.
///
/// # Errors
///
/// When the binary does not exist or buildah fails.
pub fn proxy(binary: &Path) -> Result<Image> {
    let containerfile = deployed("Containerfile")?;
    let context = [("ctrlmesh", binary.to_owned())];
    Build { name: PROXY, containerfile: &containerfile, context: &context, base: None }.image()
}

/// The init container's image, from the static binary at `binary`. Its base is made from packages.
/// It replaces the base that a user's build pulls.
///
/// # Errors
///
/// When the binary does not exist, apt-get cannot download the base, or buildah fails.
pub fn init(binary: &Path) -> Result<Image> {
    let containerfile = deployed("Containerfile.init")?;
    let context = [("ctrlmesh-init", binary.to_owned())];
    let base = base()?;
    let base = Some(base.as_path());
    Build { name: INIT, containerfile: &containerfile, context: &context, base }.image()
}

/// The image of one static program, such as an operator's, by `containerfile`.
///
/// # Errors
///
/// When a file does not exist or buildah fails.
pub fn of_program(name: &str, containerfile: &Path, program: &Path) -> Result<Image> {
    let text = fs::read_to_string(containerfile)
        .with_context(|| format!("reading {}", containerfile.display()))?;
    let file = text
        .lines()
        .find_map(|line| line.strip_prefix("COPY ")?.split_whitespace().next())
        .with_context(|| format!("{} copies nothing", containerfile.display()))?;
    let context = [(file, program.to_owned())];
    Build { name, containerfile: &text, context: &context, base: None }.image()
}

impl Build<'_> {
    fn image(&self) -> Result<Image> {
        let mut key = Key::default().add(self.name).add(self.containerfile).add(STRIP);
        for (name, file) in self.context {
            key = key.add(name).add_file(file)?;
        }
        if let Some(base) = self.base {
            key = key.add(base.display().to_string());
        }
        let stem: String =
            self.name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let archive = cache::file(&format!("image-{stem}"), key, |path| self.build(path))?;
        Ok(Image { name: self.name.to_owned(), archive })
    }

    fn build(&self, archive: &Path) -> Result<()> {
        let work = Scratch::make("image")?;
        let context = work.subdirectory("context")?;
        for (name, program) in self.context {
            run(Command::new(STRIP).arg("-o").arg(context.join(name)).arg(program))?;
        }
        let containerfile = work.0.join("Containerfile");
        fs::write(&containerfile, self.containerfile)?;
        let mut build = work.buildah();
        // Without timestamps the same input gives the same image.
        build
            .args(["build", "--quiet", "--isolation=chroot", "--timestamp=0", "--format=docker"])
            .args(["--pull-never", "--tag", self.name, "--file"])
            .arg(&containerfile);
        if let Some(base) = self.base {
            build.arg(format!("--build-arg=BASE=oci-archive:{}", base.display()));
        }
        run(build.arg(&context))?;
        let target = format!("docker-archive:{}:{}", archive.display(), self.name);
        run(work.buildah().args(["push", "--quiet", self.name, &target]))
    }
}

/// The base of the images, made once from this machine's packages.
fn base() -> Result<PathBuf> {
    let key = BASE_PACKAGES.iter().fold(Key::default(), Key::add);
    let key =
        BASE_DIRECTORIES.iter().fold(key, |key, (name, mode)| key.add(format!("{name} {mode:o}")));
    cache::file("image-base", key, |archive| {
        cache::note("making the base of the images from packages");
        let work = Scratch::make("base")?;
        let packages = work.subdirectory("packages")?;
        run(Command::new("apt-get").current_dir(&packages).arg("download").args(BASE_PACKAGES))?;
        let root = work.subdirectory("context/root")?;
        for package in fs::read_dir(&packages)? {
            run(Command::new("dpkg-deb").arg("--extract").arg(package?.path()).arg(&root))?;
        }
        trim(&root)?;
        let containerfile = work.0.join("Containerfile");
        fs::write(&containerfile, "FROM scratch\nADD root /\n")?;
        run(work
            .buildah()
            .args(["build", "--quiet", "--isolation=chroot", "--timestamp=0", "--tag=base:1"])
            .arg("--file")
            .arg(&containerfile)
            .arg(work.0.join("context")))?;
        let target = format!("oci-archive:{}:localhost/base:1", archive.display());
        run(work.buildah().args(["push", "--quiet", "base:1", &target]))
    })
}

/// Removes files that no program of the base reads, and adds those of a package's script.
fn trim(root: &Path) -> Result<()> {
    let libraries = format!("usr/lib/{}-linux-gnu", env::consts::ARCH);
    for unused in ["usr/share", "usr/lib/locale", &format!("{libraries}/gconv")] {
        match fs::remove_dir_all(root.join(unused)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    // If Debian has merged these into /usr, the links belong to another package.
    for directory in ["bin", "sbin", "lib", "lib64"] {
        let merged = Path::new("usr").join(directory);
        if !root.join(directory).exists() && root.join(&merged).exists() {
            symlink(merged, root.join(directory))?;
        }
    }
    symlink("busybox", root.join("bin/sh")).context("the base's shell")?;
    for (name, mode) in BASE_DIRECTORIES {
        let directory = root.join(name);
        fs::create_dir(&directory).with_context(|| format!("making the base's /{name}"))?;
        fs::set_permissions(&directory, Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn deployed(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}\n{errors}", args.join(" "), output.status);
    }
    Ok(())
}

/// A directory for one build with buildah's storage in it, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn make(what: &str) -> Result<Self> {
        let name: String = std::iter::repeat_with(fastrand::lowercase).take(8).collect();
        let path = cache::directory()?.join(format!(".{what}-{name}"));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }

    fn subdirectory(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    fn buildah(&self) -> Command {
        let mut command = Command::new("buildah");
        command
            .args(["--storage-driver=vfs", "--root"])
            .arg(self.0.join("storage"))
            .arg("--runroot")
            .arg(self.0.join("run"));
        command
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Leftovers are in the cache, which may be removed at any time.
        let _ = fs::remove_dir_all(&self.0);
    }
}
