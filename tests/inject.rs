//! `ctrlmesh inject`: its output, the refused input, and that twice is once.
//! `BLESS=1` rewrites the golden files.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "inject/admission.rs"]
mod admission;
#[path = "inject/api_names.rs"]
mod api_names;
#[path = "inject/core.rs"]
mod core;
#[path = "inject/documents.rs"]
mod documents;
#[path = "inject/golden.rs"]
mod golden;
#[path = "inject/hardened.rs"]
mod hardened;
#[path = "inject/own_settings.rs"]
mod own_settings;
#[path = "inject/random.rs"]
mod random;
#[path = "inject/reviews.rs"]
mod reviews;
#[path = "inject/siblings.rs"]
mod siblings;
#[path = "inject/standards.rs"]
mod standards;
#[path = "inject/wait.rs"]
mod wait;
#[path = "inject/with_manager.rs"]
mod with_manager;

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use ctrlmesh::inject::{Injected, NotInjected, Settings, Sidecar, inject};
use ctrlmesh_init::ProxyUid;
use serde_json::{Value, json};

/// The two CAs that every run needs.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        for ca in ["mesh", "cluster"] {
            let dir = this.path(ca);
            let made =
                Command::new(env!("CARGO_BIN_EXE_ctrlmesh")).arg("mesh-ca").arg(dir).status();
            assert!(made.unwrap().success());
        }
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, input: &str, more: &[&str]) -> Output {
        self.run_without("", input, more)
    }

    /// `left_out` is the flag, one of those that every run needs, for which `more` has a value.
    fn run_without(&self, left_out: &str, input: &str, more: &[&str]) -> Output {
        let mut flags = vec![
            "--filename=-".to_owned(),
            "--init-image=example.com/ctrlmesh-init:1".to_owned(),
            "--proxy-image=example.com/ctrlmesh:1".to_owned(),
            format!("--mesh-ca-dir={}", self.path("mesh").display()),
            format!("--cluster-ca={}", self.path("cluster/ca.crt").display()),
        ];
        flags.retain(|flag| flag.split('=').next() != Some(left_out));
        let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
        command
            .arg("inject")
            .args(flags)
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // Who refuses its flags reads nothing.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    fn injected(&self, input: &str, more: &[&str]) -> String {
        let output = self.run(input, more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[track_caller]
fn golden(name: &str, text: &str) {
    let file = golden_file(name);
    if env::var_os("BLESS").is_some() {
        fs::write(&file, text).unwrap();
    }
    let wanted = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, wanted, "{name} differs; BLESS=1 rewrites it");
}

fn golden_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/inject").join(name)
}

fn settings(sidecar: Sidecar) -> Settings {
    let image = |name: &str| name.parse().unwrap();
    Settings::new(image("ctrlmesh:1"), image("ctrlmesh-init:1"), sidecar, ProxyUid::DEFAULT)
        .unwrap()
}

/// A pod that asks for the mesh, with one container.
fn pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "one",
            "labels": { "ctrlmesh.kusionstack.io/enable-proxy": "true" },
        },
        "spec": { "containers": [{ "name": "app", "image": "app" }] },
    })
}

/// The pod with `value` at a place, which is made.
fn pod_with(pointer: &str, value: Value) -> Value {
    let mut pod = pod();
    let mut place = &mut pod;
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/");
        place = match step.parse::<usize>() {
            Ok(at) => {
                if place.is_null() {
                    *place = json!([]);
                }
                let items = place.as_array_mut().unwrap();
                if at == items.len() {
                    items.push(json!({ "name": format!("added-{at}") }));
                }
                &mut items[at]
            }
            Err(_) => &mut place[step],
        };
    }
    *place = value;
    pod
}

fn done(mut pod: Value, sidecar: Sidecar) -> Value {
    match inject(&mut pod, &settings(sidecar), None) {
        Ok(Injected::Done { .. }) => pod,
        other => panic!("{other:?}"),
    }
}

fn refusal(pod: &Value, sidecar: Sidecar) -> NotInjected {
    let mut after = pod.clone();
    let refused = inject(&mut after, &settings(sidecar), None).unwrap_err();
    assert_eq!(after, *pod, "a refused pod was changed");
    refused
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let items = pod["spec"][list].as_array().into_iter().flatten();
    items.map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

fn named<'a>(pod: &'a Value, list: &str, name: &str) -> &'a Value {
    let items = pod["spec"][list].as_array().into_iter().flatten();
    items.into_iter().find(|item| item["name"] == name).expect(name)
}
