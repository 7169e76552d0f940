//! Whole outputs, and the help.

use std::{fs, process::Command};

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{Files, golden, golden_file};

/// The output without what differs from run to run.
fn masked(files: &Files, output: &str) -> String {
    let read = |name: &str| fs::read_to_string(files.path(name)).unwrap();
    let indented = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let (mesh, key, cluster) = (read("mesh/ca.crt"), read("mesh/ca.key"), read("cluster/ca.crt"));
    let masked = output
        .replace(&STANDARD.encode(&mesh), "(mesh CA)")
        .replace(&STANDARD.encode(&key), "(key of the mesh CA)")
        .replace(&indented(&mesh), "    (mesh CA)\n")
        .replace(&indented(&cluster), "    (cluster's CA)\n");
    assert!(!masked.contains("BEGIN"), "{masked}");
    masked
}

fn check(kind: &str) {
    let files = Files::new();
    let input = fs::read_to_string(golden_file(&format!("{kind}/input.yaml"))).unwrap();
    for sidecar in ["native", "classic"] {
        for mode in ["iptables", "env"] {
            let asked = "enable-proxy: \"true\"\n";
            let (before, after) = input.split_once(asked).unwrap();
            let indent = before.rsplit('\n').next().unwrap().split_once(|c| c != ' ').unwrap();
            let spaces = " ".repeat(before.rsplit('\n').next().unwrap().len() - indent.1.len() - 1);
            let label = match mode {
                "env" => format!("{spaces}ctrlmesh.kusionstack.io/enable-iptables: \"false\"\n"),
                _ => String::new(),
            };
            let input = format!("{before}{asked}{label}{after}");
            let flag = format!("--sidecar={sidecar}");
            let output = files.injected(&input, &[&flag]);
            golden(&format!("{kind}/{sidecar}-{mode}.yaml"), &masked(&files, &output));
            assert_eq!(files.injected(&output, &[&flag]), output, "{kind} {flag} {mode} twice");
            let other = if sidecar == "native" { "--sidecar=classic" } else { "--sidecar=native" };
            let through = files.injected(&files.injected(&input, &[other]), &[&flag]);
            assert_eq!(through, output, "{kind} {mode} by way of {other}");
        }
    }
}

#[test]
fn pods() {
    check("pod");
}

#[test]
fn deployments() {
    check("deployment");
}

#[test]
fn stateful_sets() {
    check("statefulset");
}

#[test]
fn help() {
    let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
        .args(["inject", "--help"])
        .env_clear()
        .output()
        .unwrap();
    golden("help.txt", &String::from_utf8(output.stdout).unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("  inject ") && !help.contains("  wait "), "{help}");
}
