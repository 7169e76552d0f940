//! The capabilities that the container needs.

use crate::lab::{BACKENDS, Lab};

const ARG: &str = "--upstream=10.96.0.1:443";

/// Root with only these capabilities, as with `drop: [ALL]`, `add: [...]`.
fn root(capabilities: &str) -> [String; 2] {
    [format!("--bounding-set=-all{capabilities}"), "--inh-caps=-all".to_owned()]
}

#[test]
fn capability_matrix_of_root() {
    for (backend, capabilities, code, says) in [
        ("nft", ",+net_admin", 0, "intercepted by proof"),
        ("auto", ",+net_admin", 0, "backend nft"),
        ("legacy", ",+net_admin,+net_raw", 0, "intercepted by proof"),
        ("legacy", ",+net_admin", 77, "NET_RAW"),
        ("nft", "", 77, "NET_ADMIN"),
        ("auto", "", 77, "NET_ADMIN"),
        ("legacy", "", 77, "NET_ADMIN"),
        ("nft", ",+net_raw", 77, "NET_ADMIN"),
    ] {
        let lab = Lab::new();
        let root = root(capabilities);
        lab.init(&[ARG, "--backend", backend])
            .setpriv(&root.each_ref().map(String::as_str))
            .exits(code)
            .says(says);
    }
}

#[test]
fn without_capabilities_every_remedy_is_named_and_legacy_is_not_run() {
    let lab = Lab::new();
    let root = root("");
    let mark = lab.directory().join("legacy-was-run");
    let telltale = format!(": > {}; exit 1", mark.display());
    let path = lab.programs(
        &["iptables-nft-save", "iptables-nft-restore"],
        &[("iptables-legacy-save", &telltale)],
    );
    lab.init(&[ARG])
        .path(&path)
        .setpriv(&root.each_ref().map(String::as_str))
        .exits(77)
        .says("Pod Security")
        .says("OpenShift")
        .says("ctrlmesh.kusionstack.io/enable-iptables: \"false\"");
    lab.init(&["--clean"]).setpriv(&root.each_ref().map(String::as_str)).exits(77);
}

/// Another user with the capability in its ambient set.
#[test]
fn net_admin_is_enough_without_root() {
    let lab = Lab::new();
    lab.init(&[ARG])
        .setpriv(&[
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all,+net_admin",
            "--ambient-caps=+net_admin",
            "--bounding-set=-all,+net_admin",
            "--no-new-privs",
        ])
        .ok()
        .says("backend nft");
}

#[test]
fn a_dry_run_needs_nothing_and_changes_nothing() {
    let lab = Lab::new();
    let root = root("");
    let ran = lab
        .init(&[ARG, "--dry-run"])
        .setpriv(&root.each_ref().map(String::as_str))
        .path("/nonexistent")
        .ok();
    assert!(ran.out.contains("-A CTRLMESH_OUT"), "{}", ran.out);
    for backend in BACKENDS {
        assert!(!lab.saved(backend, false).contains("CTRLMESH"));
    }
}
