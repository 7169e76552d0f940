//! Runs all tests of the workspace: groups of tests side by side, each in a process of its own.
//!
//! The life of a run:
//!
//! 1. [`executables`] reads from cargo which test executables there are, and asks each for its tests.
//! 2. [`groups`] forms groups: the tests of one process, which share a cluster.
//! 3. [`times`] has the committed time of each test: the longest group starts first.
//! 4. [`schedule`] chooses the next group that the machine has room for.
//! 5. [`running`] starts it, reads its [`events`], and ends it when a test hangs.
//! 6. [`leftovers`] ends what a group left: processes, directories, cgroups.
//! 7. [`report`] prints the tables, the failures, what was slow, and cargo's closing line.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the output of the program")]

mod committed;
mod cpu;
mod disks;
mod events;
mod executables;
mod groups;
mod leftovers;
mod report;
mod running;
mod schedule;
mod steps;
mod times;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use clap::Parser;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use self::{groups::Lane, running::Run, times::Times};

/// Runs the tests that cargo has built, groups side by side, and prints what they took.
#[derive(Parser)]
struct Cli {
    /// What `cargo test --no-run --message-format=json` printed
    #[arg(long, value_name = "FILE")]
    executables: PathBuf,
    /// The committed times of the tests
    #[arg(long, value_name = "FILE")]
    times: PathBuf,
    /// Rewrite the committed times, if all tests pass
    #[arg(long)]
    record_times: bool,
    /// Fail where a test or the whole run takes much longer than committed, or a test is missing
    #[arg(long)]
    enforce_times: bool,
    /// Only the tests that need no cluster
    #[arg(long)]
    quick: bool,
    /// Only the end-to-end tests whose names contain this; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// The steps before, as lines of: name, wall seconds, CPU seconds, with tabs between
    #[arg(long, value_name = "FILE")]
    steps: Option<PathBuf>,
    /// When the whole run began, in seconds since 1970
    #[arg(long, value_name = "SECONDS")]
    began: Option<u64>,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    // Handlers, not a mask: the tests' processes would inherit a mask, and no SIGTERM would end them.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&interrupted))?;
    }

    let began = cli.began.map_or_else(SystemTime::now, |seconds| {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    });
    let steps = cli.steps.as_deref().map(steps::read).transpose()?.unwrap_or_default();
    let calibration = cpu::calibrate()?;
    let committed = Times::read(&cli.times)?;
    let lane = if cli.quick { Lane::InProcess } else { Lane::All };
    let executables = executables::read(&cli.executables)?;
    let all = executables::list(&executables)?;
    let groups = groups::form(&executables, &all, lane, &cli.only)?;
    anyhow::ensure!(!groups.is_empty(), "no test is named so: --only {}", cli.only.join(" "));
    let is_whole = lane == Lane::All && cli.only.is_empty();

    let plan = schedule::Plan::new(groups, &committed, schedule::Room::of_machine()?);
    let scale = committed.scale(calibration);
    let finished = Run::new(plan, &committed, scale, interrupted)?.finish()?;
    let Some(finished) = finished else {
        eprintln!("interrupted: all that the tests started has ended; no times are written");
        return Ok(ExitCode::from(130));
    };

    let took = began.elapsed().unwrap_or_default();
    let judged = committed::judge(&committed, &all, &finished, scale, is_whole, took);
    report::print(&steps, &finished, &judged, took);
    if cli.record_times && is_whole && finished.is_ok() {
        Times::of(&finished, calibration).write(&cli.times).context("recording the times")?;
    }
    let is_ok = finished.is_ok() && !(cli.enforce_times && judged.is_refused());
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
