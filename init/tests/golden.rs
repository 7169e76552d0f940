//! Golden files of the output: help, rules of a dry run, the option table, exit codes. `BLESS=1`
//! rewrites the files.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

use ctrlmesh_init::ExitCode;
use strum::VariantArray;

fn init(args: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ctrlmesh-init"))
        .args(args)
        .env_clear()
        .env("POD_IPS", "10.1.0.2,fd01::2")
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

fn stdout(args: &[&str], environment: &[(&str, &str)]) -> String {
    let output = init(args, environment);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} {environment:?}\n{told}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if env::var_os("BLESS").is_some() {
        fs::write(&file, text).unwrap();
    }
    let wanted = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, wanted, "{name} differs; BLESS=1 rewrites it");
}

const V4: &str = "--upstream=10.96.0.1:443";
const V6: &str = "--upstream=[fd00:96::1]:443";

#[test]
fn help() {
    golden("help.txt", &stdout(&["--help"], &[]));
}

#[test]
fn rules() {
    golden("rules-v4.txt", &stdout(&["--dry-run", V4], &[]));
    golden("rules-v6.txt", &stdout(&["--dry-run", V6], &[]));
    golden("rules-dual.txt", &stdout(&["--dry-run", V4, V6], &[]));
    golden("rules-inbound.txt", &stdout(&["--dry-run", V4, "--inbound=9443:5445"], &[]));
}

#[test]
fn exit_codes() {
    let mut table = String::new();
    for &code in ExitCode::VARIANTS {
        let remedy = code.remedy().unwrap_or("-");
        table.push_str(&format!("{} {}: {remedy}\n", code.code(), code.reason()));
        assert_eq!(ExitCode::of(code.code().into()), Some(code));
    }
    assert_eq!(ExitCode::of(1), None);
    golden("exit-codes.txt", &table);
}

/// Each option with a value that is not its default. Options without a rule of their own decide how
/// rules get into the kernel; `backends.rs` and `meshes.rs` of the kernel tests check them.
const OPTIONS: [(&str, &str); 7] = [
    ("upstream", "[fd00::1]:6443"),
    ("proxy-uid", "1000680000"),
    ("outbound-port", "15443"),
    ("inbound", "9443:5445"),
    ("backend", "legacy"),
    ("clean", "true"),
    ("dry-run", "true"),
];
const WITHOUT_RULE: [&str; 3] = ["backend", "clean", "dry-run"];

fn api_server() -> [(&'static str, &'static str); 2] {
    [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")]
}

/// The rules that an option removes and adds.
fn change(with: &str) -> String {
    let base = stdout(&["--dry-run"], &api_server());
    let (base, with): (Vec<&str>, Vec<&str>) = (base.lines().collect(), with.lines().collect());
    let gone = base.iter().filter(|line| !with.contains(line)).map(|line| format!("- {line}\n"));
    let new = with.iter().filter(|line| !base.contains(line)).map(|line| format!("+ {line}\n"));
    gone.chain(new).collect()
}

#[test]
fn i01_every_option_changes_the_rules_by_flag_and_by_environment() {
    let mut table = String::new();
    for (option, value) in OPTIONS {
        if WITHOUT_RULE.contains(&option) {
            continue;
        }
        let flag = stdout(&["--dry-run", &format!("--{option}={value}")], &api_server());
        let variable = format!("CTRLMESH_{}", option.to_uppercase().replace('-', "_"));
        let [host, port] = api_server();
        let by_env = stdout(&["--dry-run"], &[host, port, (&variable, value)]);
        assert_eq!(by_env, flag, "{variable}");
        let change = change(&flag);
        assert!(!change.is_empty(), "--{option} is dead");
        table.push_str(&format!("--{option}={value}\n{change}\n"));
    }
    golden("options.txt", &table);
}

#[test]
fn i01_no_option_is_left_out() {
    let command = ctrlmesh_init::args::command();
    let declared = command.get_arguments().filter_map(|argument| argument.get_long());
    let declared: BTreeSet<&str> = declared.collect();
    assert_eq!(declared, OPTIONS.iter().map(|(option, _)| *option).collect());
}

#[test]
fn i01_the_environment_sets_what_has_no_rule() {
    let [host, port] = api_server();
    let dry = stdout(&[], &[host, port, ("CTRLMESH_DRY_RUN", "true")]);
    assert_eq!(dry, stdout(&["--dry-run"], &[host, port]));
    let refused = init(&["--dry-run"], &[host, port, ("CTRLMESH_BACKEND", "bpf")]);
    assert_eq!(refused.status.code(), Some(64));
    let both = init(&["--dry-run"], &[host, port, ("CTRLMESH_CLEAN", "true")]);
    assert_eq!(both.status.code(), Some(64));
}

#[test]
fn several_upstreams_in_the_environment_are_separated_by_commas() {
    let both = "10.96.0.1:443,[fd00:96::1]:443";
    let by_env = stdout(&["--dry-run"], &[("CTRLMESH_UPSTREAM", both)]);
    assert_eq!(by_env, stdout(&["--dry-run", V4, V6], &[]));
}

/// The value is not printed: it may be a Secret's.
#[test]
fn i12_an_address_from_an_env_from_is_refused_by_name() {
    let [host, port] = api_server();
    let variable = "CTRLMESH_ENV_FROM_Secret.a.b.SERVICE_HOST";
    let output = init(&[], &[host, port, (variable, "hush.example")]);
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8_lossy(&output.stderr);
    for part in ["envFrom", "the Secret `a.b` with the key SERVICE_HOST", "prefix"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("hush"), "{told}");
}

#[test]
fn a_usage_error_exits_64_and_says_so_on_stderr() {
    for args in [&["--nonsense"][..], &["--upstream=127.0.0.1:443"], &[]] {
        let output = init(args, &[]);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(output.stdout.is_empty());
        assert!(!output.stderr.is_empty());
    }
}
