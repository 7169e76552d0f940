//! The choice of the iptables programs, and their failures.

use std::fs::{self, File, OpenOptions};
use std::os::linux::fs::MetadataExt as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::lab::Lab;
use crate::traffic::{Actors, V4, V6, wrong};

const ARGS: [&str; 2] = ["--upstream=10.96.0.1:443", "--upstream=[fd00:96::1]:443"];
const NFT: [&str; 4] =
    ["iptables-nft-save", "iptables-nft-restore", "ip6tables-nft-save", "ip6tables-nft-restore"];
const LEGACY: [&str; 4] = [
    "iptables-legacy-save",
    "iptables-legacy-restore",
    "ip6tables-legacy-save",
    "ip6tables-legacy-restore",
];

fn scripts<'a>(names: &[&'a str], script: &'a str) -> Vec<(&'a str, &'a str)> {
    names.iter().map(|name| (*name, script)).collect()
}

#[test]
fn i05_nft_is_taken_where_it_works_and_legacy_is_never_run() {
    let lab = Lab::new();
    let mark = lab.directory().join("legacy-was-run");
    let telltale = format!(": > {}; exit 1", mark.display());
    let path = lab.programs(&NFT, &scripts(&LEGACY, &telltale));
    lab.init(&ARGS).path(&path).ok().says("backend nft: a no-op commit succeeded");
    lab.init(&["--clean"]).path(&path).ok();
    assert!(!mark.exists());
    let names = "/proc/thread-self/net/ip_tables_names";
    assert_eq!(lab.pod.run(|| fs::read_to_string(names).unwrap_or_default()), "");
}

#[test]
fn i05_legacy_is_taken_where_nft_is_shown_not_to_work() {
    let broken = "echo 'RULE_APPEND failed (No such file or directory)' >&2; exit 4";
    for (nft, says) in [
        (Vec::new(), "iptables-nft-save is not in PATH"),
        (scripts(&NFT, broken), "RULE_APPEND failed (No such file or directory)"),
    ] {
        let lab = Lab::new();
        let path = lab.programs(&LEGACY, &nft);
        let ran = lab.init(&ARGS).path(&path).ok();
        ran.says("backend legacy: nft did not work").says(says);
        let _actors = Actors::start(&lab);
        for family in [V4, V6] {
            assert_eq!(wrong(&lab, family, true, false), Vec::<String>::new());
        }
        assert!(lab.saved("legacy", false).contains("CTRLMESH_OUT"));
        assert!(!lab.saved("nft", false).contains("CTRLMESH_OUT"));
    }
}

#[test]
fn i05_a_family_that_nft_lacks_makes_it_legacy_for_both() {
    let lab = Lab::new();
    let broken = scripts(&NFT[2..], "echo 'table nat: Operation not supported' >&2; exit 3");
    let path = lab.programs(&[&NFT[..2], &LEGACY[..]].concat(), &broken);
    lab.init(&ARGS).path(&path).ok().says("backend legacy").says("Operation not supported");
    assert!(!lab.saved("nft", false).contains("CTRLMESH"));
}

#[test]
fn i05_without_a_backend_that_works_both_reasons_are_told() {
    let lab = Lab::new();
    let nft = scripts(&NFT, "echo nft says no >&2; exit 1");
    let legacy = scripts(&LEGACY, "echo \"can't initialize iptables table 'nat'\" >&2; exit 3");
    let path = lab.programs(&[], &[nft, legacy].concat());
    lab.init(&ARGS)
        .path(&path)
        .exits(69)
        .says("nft says no")
        .says("can't initialize iptables table 'nat'")
        .says("ctrlmesh.kusionstack.io/enable-iptables: \"false\"");
}

#[test]
fn i05_a_backend_that_was_asked_for_is_not_replaced() {
    let lab = Lab::new();
    let path = lab.programs(&LEGACY, &[]);
    lab.init(&[ARGS[0], "--backend=nft"])
        .path(&path)
        .exits(69)
        .says("the nft backend does not work: iptables-nft-save is not in PATH");
    let path = lab.programs(&NFT, &[]);
    lab.init(&[ARGS[0], "--backend=legacy"])
        .path(&path)
        .exits(69)
        .says("the legacy backend does not work: iptables-legacy-save is not in PATH");
}

#[test]
fn i05_a_conflict_is_committed_again_and_a_fight_is_reported() {
    for (conflicts, code) in [(2, 0), (3, 69)] {
        let lab = Lab::new();
        let calls = lab.directory().join("calls").display().to_string();
        // The first call is the proof of the backend.
        let script = format!(
            "echo >> {calls}; n=$(wc -l < {calls}); \
             if [ $n -gt 1 ] && [ $n -le {} ]; then echo 'Device or resource busy' >&2; exit 4; fi; \
             exec /usr/sbin/iptables-nft-restore \"$@\"",
            conflicts + 1,
        );
        let path = lab.programs(&NFT[..1], &[("iptables-nft-restore", &script)]);
        let path = format!("{path}:/usr/bin:/bin");
        lab.init(&[ARGS[0]]).path(&path).exits(code).says("Device or resource busy");
        let calls = fs::read_to_string(calls).unwrap().lines().count();
        assert_eq!(calls, 4, "one proof and three transactions");
    }
}

fn lock(lab: &Lab) -> Flock<File> {
    let file = OpenOptions::new().create(true).append(true).open(lab.lock_file()).unwrap();
    Flock::lock(file, FlockArg::LockExclusive).unwrap()
}

/// Returns once a process waits for the lock file.
fn await_waiter(lab: &Lab) {
    let inode = format!(":{} ", fs::metadata(lab.lock_file()).unwrap().st_ino());
    let is_waited_for = |locks: String| {
        locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&inode))
    };
    let start = Instant::now();
    while !is_waited_for(fs::read_to_string("/proc/locks").unwrap()) {
        assert!(start.elapsed() < Duration::from_secs(4), "no one waits for the lock");
        thread::yield_now();
    }
}

#[test]
fn i06_a_lock_that_is_freed_is_waited_for() {
    let lab = Lab::new();
    let held = lock(&lab);
    thread::scope(|scope| {
        let init = scope.spawn(|| lab.init(&[ARGS[0], "--backend=legacy"]).run());
        await_waiter(&lab);
        assert!(!init.is_finished());
        drop(held);
        let ran = init.join().unwrap();
        assert_eq!(ran.code, Some(0), "{}", ran.log);
    });
}

#[test]
fn i06_a_lock_that_stays_held_ends_the_wait() {
    let lab = Lab::new();
    let _held = lock(&lab);
    let start = Instant::now();
    let ran = lab.init(&[ARGS[0], "--backend=legacy"]).exits(69);
    ran.says("xtables lock").says("XTABLES_LOCKFILE");
    assert!(!ran.log.contains("nf_tables"), "the remedy is not the kernel's:\n{}", ran.log);
    let waited = start.elapsed();
    assert!((5..8).contains(&waited.as_secs()), "{waited:?}");
}

#[test]
fn i06_nft_needs_no_lock() {
    let lab = Lab::new();
    let _held = lock(&lab);
    lab.init(&[ARGS[0]]).ok();
}
