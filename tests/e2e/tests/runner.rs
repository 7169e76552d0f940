//! The program that runs the tests, with an executable that only says what tests do.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

/// A directory with what one run of the program reads and writes.
struct Scene {
    directory: PathBuf,
}

impl Scene {
    /// `tests`: the names of the tests of the executable.
    fn new(tests: &str) -> Result<Self> {
        let name: String = std::iter::repeat_with(fastrand::lowercase).take(8).collect();
        let directory = env::temp_dir().join(format!("ctrlmesh-runner-{name}"));
        fs::create_dir(&directory)?;
        let script =
            concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/test-runner/running/scripted.sh");
        let artifact = json!({
            "manifest_path": directory.join("Cargo.toml"),
            "target": { "name": "scripted", "kind": ["test"] },
            "profile": { "test": true },
            "executable": script,
        });
        fs::write(directory.join("executables"), artifact.to_string())?;
        fs::write(directory.join("tests"), tests)?;
        Ok(Self { directory })
    }

    fn runner(&self, flags: &[&str]) -> Command {
        let mut runner = Command::new(env!("CARGO_BIN_EXE_test-runner"));
        runner.arg("--executables").arg(self.directory.join("executables"));
        runner.arg("--times").arg(self.times()).args(flags);
        runner
    }

    fn run(&self, flags: &[&str]) -> Result<(bool, String)> {
        let Output { status, stdout, .. } = self.runner(flags).output()?;
        Ok((status.success(), String::from_utf8(stdout)?))
    }

    fn times(&self) -> PathBuf {
        self.directory.join("times.txt")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn times_are_recorded_and_what_is_gone_or_slow_is_refused() -> Result<()> {
    let scene = Scene::new("passes works")?;
    let (is_ok, text) = scene.run(&["--enforce-times"])?;
    ensure!(is_ok && text.contains("2 tests have no committed time"), "{text}");
    ensure!(!scene.times().exists(), "no one asked for times");
    let (is_ok, text) = scene.run(&["--record-times"])?;
    ensure!(is_ok && text.contains("\ntest result: ok. 2 passed; 0 failed;"), "{text}");
    let (is_ok, text) = scene.run(&["--enforce-times"])?;
    ensure!(is_ok && !text.contains("committed"), "{text}");

    fs::write(scene.directory.join("tests"), "passes late")?;
    let recorded = fs::read_to_string(scene.times())?;
    // Recorded by a slow machine: however busy this one is, no test gets more time.
    let mut lines: Vec<_> = recorded.lines().collect();
    let calibration = lines.iter_mut().find(|line| line.starts_with("calibration "));
    *calibration.context("a calibration")? = "calibration 3600";
    let recorded = lines.join("\n") + "\n";
    let with_late = |seconds: &str| {
        let line = format!("{seconds} scripted late\n0.1 scripted passes");
        let text = recorded.replace("0.1 scripted passes", &line);
        fs::write(scene.times(), text.replace("tests 2", "tests 3"))
    };
    // It says that it took 50 s.
    with_late("30.0")?;
    let (is_ok, text) = scene.run(&[])?;
    ensure!(is_ok && text.contains("missing: scripted works"), "{text}");
    let (is_ok, text) = scene.run(&["--enforce-times"])?;
    ensure!(!is_ok && text.contains("missing: scripted works"), "{text}");

    fs::write(scene.directory.join("tests"), "passes works late")?;
    let (is_ok, text) = scene.run(&["--enforce-times"])?;
    ensure!(is_ok && !text.contains("slow: "), "{text}");
    with_late("10.0")?;
    let (is_ok, text) = scene.run(&["--enforce-times"])?;
    ensure!(is_ok && text.contains("\nslow: scripted late took 50.0 s"), "{text}");
    with_late("1.0")?;
    let (is_ok, text) = scene.run(&["--enforce-times"])?;
    ensure!(!is_ok && text.contains("\ntoo slow: scripted late took 50.0 s"), "{text}");
    ensure!(scene.run(&[])?.0, "it is only named where no one enforces times");
    Ok(())
}

#[test]
fn torn_times_and_a_filter_that_matches_nothing_are_refused() -> Result<()> {
    let scene = Scene::new("passes")?;
    ensure!(scene.run(&["--record-times"])?.0);
    let text = fs::read_to_string(scene.times())?;
    fs::write(scene.times(), text.replace("tests 1", "tests 2"))?;
    let output = scene.runner(&[]).output()?;
    let errors = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && errors.contains("is torn or was edited"), "{errors}");
    let output = scene.runner(&["--only", "no such test"]).output()?;
    ensure!(!output.status.success());
    Ok(())
}

#[test]
fn a_failed_test_fails_the_run_and_no_times_are_recorded() -> Result<()> {
    let scene = Scene::new("passes panics leaves")?;
    let (is_ok, text) = scene.run(&["--record-times"])?;
    ensure!(!is_ok && text.contains("---- scripted panics failed ----\nwhy"), "{text}");
    ensure!(text.contains("\ntest result: FAILED. 2 passed; 1 failed;"), "{text}");
    ensure!(!scene.times().exists(), "times of a run that failed");
    Ok(())
}

/// SIGTERM reaches the processes of tests, too: they inherit no mask of signals.
#[test]
fn a_signal_ends_everything_and_no_times_are_written() -> Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let scene = Scene::new("passes masks hangs")?;
        let mut runner = scene.runner(&["--record-times"]).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(runner.stdout.take().context("a pipe")?);
        let mut seen = String::new();
        for line in output.lines() {
            let line = line?;
            seen = seen + &line + "\n";
            if line.contains("scripted masks ...") {
                kill(Pid::from_raw(i32::try_from(runner.id())?), signal)?;
            }
        }
        ensure!(runner.wait()?.code() == Some(130), "{seen}");
        ensure!(seen.contains("scripted masks ... ok"), "a mask of signals: {seen}");
        ensure!(!scene.times().exists(), "times of a run that was interrupted");
        let mark = format!("CTRLMESH_TEST_GROUP={}-0", runner.id());
        let left = fs::read_dir("/proc")?.flatten().filter(|entry| {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|one| one == mark.as_bytes())
        });
        ensure!(left.count() == 0, "processes are left");
    }
    Ok(())
}
