//! The only list of the programs that the test bed needs on the machine.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use super::cache;

/// A program and the Debian package that has it.
struct Need {
    program: &'static str,
    package: &'static str,
    used_for: &'static str,
}

const NEEDS: [Need; 13] = [
    need("setpriv", "util-linux", "processes that end with their owner; namespaces"),
    need("containerd", "containerd", "the node"),
    need("runc", "runc", "the node"),
    need("/usr/lib/cni/bridge", "containernetworking-plugins", "the network of pods"),
    need("ip", "iproute2", "the node's network"),
    need("nft", "nftables", "kube-proxy; the kernel tests"),
    need("iptables-nft-restore", "iptables", "the kernel tests"),
    need("buildah", "buildah", "images"),
    need("strip", "binutils", "images"),
    need("dpkg-deb", "dpkg", "the base of the images"),
    need("curl", "curl", "a client in the tests"),
    need("openssl", "openssl", "a client in the tests"),
    need("haproxy", "haproxy", "the bench's yardstick"),
];

/// Programs that only the clients of the tests need.
const CLIENT_NEEDS: [Need; 4] = [
    need("javac", "default-jdk-headless", "the Java client"),
    need("mvn", "maven", "the Java client"),
    need("node", "nodejs", "the Node client"),
    need("npm", "npm", "the Node client"),
];

const fn need(program: &'static str, package: &'static str, used_for: &'static str) -> Need {
    Need { program, package, used_for }
}

/// Installs missing programs with apt-get, and returns the packages that it installed.
///
/// # Errors
///
/// When a program is missing without apt-get or root, and when Go is missing: the error names what
/// to install. Debian's Go is too old for Kubernetes, so no package is installed for it.
pub fn install() -> Result<Vec<&'static str>> {
    let installed = install_missing(&NEEDS)?;
    if find("go").is_none() {
        bail!("missing: go, 1.26 or later, to build Kubernetes (https://go.dev/dl/)");
    }
    Ok(installed)
}

/// The same, for what the clients of the tests are built and run with.
pub(super) fn install_for_clients() -> Result<()> {
    install_missing(&CLIENT_NEEDS).map(drop)
}

fn install_missing(needs: &'static [Need]) -> Result<Vec<&'static str>> {
    let missing: Vec<&Need> = needs.iter().filter(|need| find(need.program).is_none()).collect();
    if !missing.is_empty() {
        if !geteuid().is_root() || find("apt-get").is_none() {
            bail!("missing:\n{}", described(&missing));
        }
        let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
        apt_get(&["update", "-q"])?;
        apt_get(&[&["install", "-qy", "--no-install-recommends"], packages.as_slice()].concat())?;
    }
    Ok(missing.iter().map(|need| need.package).collect())
}

fn described(missing: &[&Need]) -> String {
    let line = |need: &&Need| {
        format!("  {} (Debian package {}): {}", need.program, need.package, need.used_for)
    };
    missing.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    // Another process may install what it needs at the same time.
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=600"]);
    command.args(args);
    cache::run_with_progress(&format!("apt-get {}", args.join(" ")), &mut command)
}

/// An absolute path that exists, or a program of `$PATH` or of the directories of root's programs.
fn find(program: &str) -> Option<PathBuf> {
    if Path::new(program).is_absolute() {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_programs_and_absolute_paths() {
        assert!(find("sh").is_some());
        assert!(find("/proc/self").is_some());
        assert!(find("no-such-program").is_none());
        assert!(find("/no/such/file").is_none());
    }

    #[test]
    fn says_what_is_missing_and_what_for() {
        let said = described(&[&NEEDS[0]]);
        assert_eq!(
            said,
            "  setpriv (Debian package util-linux): processes that end with their owner; namespaces"
        );
    }
}
