//! The user instructions of a program, counted by callgrind: the same work takes nearly the same
//! number each time, whatever else the machine does.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::running::Running;

/// Reads the counts of one program.
pub(crate) struct Counter {
    /// The file of the n-th count is this with `.n` behind it.
    profiles: PathBuf,
    read: Cell<u32>,
}

impl Counter {
    pub(crate) fn new(profiles: PathBuf) -> Self {
        Self { profiles, read: Cell::default() }
    }

    /// The command that runs `program` under callgrind, which counts once it is notified to.
    pub(crate) fn command(&self, program: &Path, args: Vec<String>) -> (PathBuf, Vec<String>) {
        let mut all = vec![
            "--tool=callgrind".to_owned(),
            "--instr-atstart=no".to_owned(),
            format!("--callgrind-out-file={}", self.profiles.display()),
            program.display().to_string(),
        ];
        all.extend(args);
        ("valgrind".into(), all)
    }

    /// Counts from now on.
    pub(crate) fn begin(&self, program: &Running) -> Result<()> {
        control(program, "--instr=on")
    }

    /// The instructions since the last call, or since the beginning.
    pub(crate) fn take(&self, program: &Running) -> Result<f64> {
        self.read.set(self.read.get() + 1);
        control(program, "--dump")?;
        let profile = format!("{}.{}", self.profiles.display(), self.read.get());
        let text = fs::read_to_string(&profile).with_context(|| profile.clone())?;
        let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(totals.with_context(|| format!("{profile} has no totals"))?.parse()?)
    }
}

fn control(program: &Running, order: &str) -> Result<()> {
    let said =
        Command::new("callgrind_control").arg(order).arg(program.id().to_string()).output()?;
    let text = String::from_utf8_lossy(&said.stdout);
    ensure!(said.status.success() && text.contains("OK."), "callgrind_control {order}: {text}");
    Ok(())
}
