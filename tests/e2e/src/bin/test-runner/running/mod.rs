//! The groups that run: started, read, ended.

mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    io::Write,
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ctrlmesh_e2e::{GROUP, tied};

use self::process::{End, GroupProcess};
use crate::{
    committed::Limits,
    cpu, disks,
    events::{Ended, Event, Verdict},
    groups::Group,
    leftovers,
    schedule::Plan,
    times::Times,
};

/// How often the loop looks for room, signals and tests that hang.
const TICK: Duration = Duration::from_millis(250);

/// What a whole run found.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    /// By the name of the executable and of the test.
    pub(crate) tests: BTreeMap<String, Ended>,
    pub(crate) groups: Vec<GroupReport>,
    /// What was wrong apart from failed tests: with what, and what.
    pub(crate) faults: Vec<(String, String)>,
    pub(crate) wall: Duration,
    /// Seconds of processor time of all groups.
    pub(crate) cpu: f64,
    /// The share of all processors that was busy while end-to-end groups ran.
    pub(crate) busy: f64,
    /// The share of all processors that other programs took meanwhile.
    pub(crate) others: f64,
}

impl Finished {
    pub(crate) fn count(&self, verdict: Verdict) -> usize {
        self.tests.values().filter(|test| test.verdict == verdict).count()
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.count(Verdict::Failed) == 0 && self.faults.is_empty()
    }
}

/// What one group took.
#[derive(Clone, Debug)]
pub(crate) struct GroupReport {
    pub(crate) suite: String,
    pub(crate) tests: usize,
    pub(crate) wall: Duration,
    pub(crate) cpu: f64,
    pub(crate) api_servers: usize,
    pub(crate) nodes: usize,
}

/// What the threads of a group tell the loop.
enum Told {
    Test(Event),
    End(End),
}

/// A group that runs.
struct Running {
    group: Group,
    process: GroupProcess,
    began: Instant,
    /// The tests that have begun and not ended.
    open: BTreeMap<String, Instant>,
    ended: BTreeSet<String>,
    /// Why it was killed.
    killed: Option<String>,
}

/// Processor time at a moment: of the machine, and of this process and what it waited for.
#[derive(Clone, Copy)]
struct Used {
    at: Instant,
    busy: f64,
    own: f64,
}

impl Used {
    fn now() -> Result<Self> {
        Ok(Self { at: Instant::now(), busy: cpu::busy()?, own: cpu::own()? })
    }
}

/// A run that goes on.
pub(crate) struct Run<'t> {
    plan: Plan,
    times: &'t Times,
    scale: f64,
    /// Set by a signal.
    interrupted: Arc<AtomicBool>,
    inbox: Receiver<(usize, Told)>,
    outbox: SyncSender<(usize, Told)>,
    running: BTreeMap<usize, Running>,
    next: usize,
    /// The build of Kubernetes, until it has ended.
    kubernetes: Option<Child>,
    has_kubernetes: bool,
    /// When the first end-to-end group started.
    clusters_from: Option<Used>,
    clusters_until: Option<Used>,
    began: Instant,
    finished: Finished,
}

impl<'t> Run<'t> {
    pub(crate) fn new(
        plan: Plan,
        times: &'t Times,
        scale: f64,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Self> {
        // Room for what all threads say while the loop starts a group.
        let (outbox, inbox) = sync_channel(64);
        let kubernetes = if plan.needs_kubernetes() { Some(build_kubernetes()?) } else { None };
        Ok(Self {
            plan,
            times,
            scale,
            interrupted,
            inbox,
            outbox,
            running: BTreeMap::new(),
            next: 0,
            kubernetes,
            has_kubernetes: false,
            clusters_from: None,
            clusters_until: None,
            began: Instant::now(),
            finished: Finished::default(),
        })
    }

    /// Runs all groups. `None` if a signal ended it before.
    pub(crate) fn finish(mut self) -> Result<Option<Finished>> {
        while !self.plan.is_done() {
            if self.interrupted.load(Relaxed) {
                self.interrupt();
                return Ok(None);
            }
            self.look_for_kubernetes()?;
            self.start_groups()?;
            match self.inbox.recv_timeout(TICK) {
                Ok((number, told)) => self.take(number, told)?,
                Err(RecvTimeoutError::Timeout) => self.end_what_hangs(),
                Err(RecvTimeoutError::Disconnected) => bail!("the run has lost its threads"),
            }
        }
        self.measure();
        self.finished.wall = self.began.elapsed();
        Ok(Some(self.finished))
    }

    fn look_for_kubernetes(&mut self) -> Result<()> {
        let Some(build) = &mut self.kubernetes else { return Ok(()) };
        let Some(status) = build.try_wait()? else { return Ok(()) };
        self.kubernetes = None;
        if status.success() {
            self.has_kubernetes = true;
            return Ok(());
        }
        self.finished.faults.push(("Kubernetes".to_owned(), format!("the build: {status}")));
        for group in self.plan.give_up_kubernetes() {
            let tests = group.tests.iter().cloned().collect();
            self.fail(&group, &tests, "it did not run, since Kubernetes was not built");
        }
        Ok(())
    }

    fn start_groups(&mut self) -> Result<()> {
        loop {
            let memory = cpu::memory_available()?;
            let Some(group) = self.plan.start(memory, self.has_kubernetes) else { return Ok(()) };
            if group.needs_kubernetes && self.clusters_from.is_none() {
                self.clusters_from = Some(Used::now()?);
            }
            let (number, outbox) = (self.next, self.outbox.clone());
            self.next += 1;
            let process = GroupProcess::start(&group, number, move |told| {
                // The loop reads until all groups have ended.
                let _ = outbox.send((number, told));
            })
            .with_context(|| format!("starting {}", group.name))?;
            let running = Running {
                group,
                process,
                began: Instant::now(),
                open: BTreeMap::new(),
                ended: BTreeSet::new(),
                killed: None,
            };
            self.running.insert(number, running);
        }
    }

    fn take(&mut self, number: usize, told: Told) -> Result<()> {
        match told {
            Told::Test(event) => self.take_event(number, event),
            Told::End(end) => self.take_end(number, end)?,
        }
        Ok(())
    }

    fn take_event(&mut self, number: usize, event: Event) {
        let Some(running) = self.running.get_mut(&number) else { return };
        match event {
            Event::Started(name) => drop(running.open.insert(name, Instant::now())),
            Event::Ended(test) => {
                running.open.remove(&test.name);
                running.ended.insert(test.name.clone());
                let key = running.group.key(&test.name);
                self.tell(&key, &test);
                self.finished.tests.insert(key, test);
            }
        }
    }

    fn tell(&self, key: &str, test: &Ended) {
        let verdict = match test.verdict {
            Verdict::Passed => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Ignored => "ignored",
        };
        let at = self.began.elapsed().as_secs();
        println!("[{at:4}s] test {key} ... {verdict} <{:.1}s>", test.seconds);
        // Whether anybody reads it makes no difference to the tests.
        let _ = std::io::stdout().flush();
    }

    fn take_end(&mut self, number: usize, end: End) -> Result<()> {
        let Some(mut running) = self.running.remove(&number) else { return Ok(()) };
        running.process.join();
        let group = running.group;
        self.plan.end(group.weight);
        let has_failed = |name: &String| {
            let test = self.finished.tests.get(&group.key(name));
            test.is_none_or(|test| test.verdict == Verdict::Failed)
        };
        if group.tests.iter().any(has_failed) {
            self.look_at_disks();
        }
        self.finished.cpu += end.cpu;
        self.finished.groups.push(GroupReport {
            suite: group.suite(),
            tests: group.tests.len(),
            wall: running.began.elapsed(),
            cpu: end.cpu,
            api_servers: end.started("api-server"),
            nodes: end.started("node"),
        });
        if !end.left.is_empty() {
            let left = format!("it passed, and left what is removed now:\n{}", end.left.join("\n"));
            self.finished.faults.push((format!("group {}", group.name), left));
        }
        let all: BTreeSet<String> = group.tests.iter().cloned().collect();
        let lost: BTreeSet<String> = all.difference(&running.ended).cloned().collect();
        if !lost.is_empty() {
            let how =
                running.killed.unwrap_or_else(|| format!("its process ended: {}", end.status));
            let why = format!("{how}\n{}", end.errors);
            self.fail(&group, &lost, why.trim_end());
        }
        if group.needs_kubernetes {
            self.clusters_until = Some(Used::now()?);
        }
        Ok(())
    }

    /// A full disk fails tests with errors of all kinds.
    fn look_at_disks(&mut self) {
        let mut directories = vec![env::temp_dir()];
        directories.extend(env::current_exe());
        directories.extend(ctrlmesh_e2e::cache_directory());
        for (directory, free) in disks::full(&directories, disks::FULL) {
            let name = format!("the disk of {}", directory.display());
            if !self.finished.faults.iter().any(|(known, _)| *known == name) {
                let full = format!("it is full: {free} MB are free");
                self.finished.faults.push((name, full));
            }
        }
    }

    /// Tests of a group that have no result.
    fn fail(&mut self, group: &Group, tests: &BTreeSet<String>, why: &str) {
        for name in tests {
            let (verdict, output) = (Verdict::Failed, why.to_owned());
            let test = Ended { name: name.clone(), verdict, seconds: 0.0, output };
            let key = group.key(name);
            self.tell(&key, &test);
            self.finished.tests.insert(key, test);
        }
    }

    fn end_what_hangs(&mut self) {
        for running in self.running.values_mut().filter(|running| running.killed.is_none()) {
            let hangs = running.open.iter().find(|(name, began)| {
                let committed = self.times.of_test(&running.group.key(name));
                began.elapsed().as_secs_f64() > Limits::of(committed, self.scale).hangs
            });
            if let Some((name, began)) = hangs {
                let seconds = began.elapsed().as_secs();
                running.killed = Some(format!("{name} hung: it was ended after {seconds} s"));
                running.process.kill();
            }
        }
    }

    /// Ends everything. The threads of the groups remove the rest.
    fn interrupt(&mut self) {
        eprintln!("interrupted: ending {} groups of tests", self.running.len());
        if let Some(mut build) = self.kubernetes.take() {
            // It may have ended meanwhile.
            let _ = build.kill();
            let _ = build.wait();
            let _ = leftovers::remove(&process::mark("kubernetes"), false);
        }
        for running in self.running.values_mut() {
            running.process.kill();
        }
        while !self.running.is_empty() {
            if let Ok((number, Told::End(_))) = self.inbox.recv()
                && let Some(mut running) = self.running.remove(&number)
            {
                running.process.join();
            }
        }
    }

    fn measure(&mut self) {
        let (Some(from), Some(until)) = (self.clusters_from, self.clusters_until) else { return };
        let cores = cpu::cores().unwrap_or(1) as f64;
        let whole = until.at.duration_since(from.at).as_secs_f64().max(0.001) * cores;
        let busy = until.busy - from.busy;
        self.finished.busy = busy / whole;
        self.finished.others = ((busy - (until.own - from.own)) / whole).max(0.0);
    }
}

/// Starts the build of Kubernetes, or of its cached binary: done at once.
fn build_kubernetes() -> Result<Child> {
    let testbed = env::current_exe()?.with_file_name("testbed");
    let mut command = tied(testbed);
    command.arg("build").env(GROUP, process::mark("kubernetes"));
    command.stdout(std::process::Stdio::null());
    command.spawn().context("starting the build of Kubernetes")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run in which these tests passed, in so many seconds.
    pub(crate) fn finished(tests: &[(&str, f64)]) -> Finished {
        let tests = tests.iter().map(|(name, seconds)| {
            let (verdict, output) = (Verdict::Passed, String::new());
            let test = Ended { name: (*name).to_owned(), verdict, seconds: *seconds, output };
            ((*name).to_owned(), test)
        });
        Finished { tests: tests.collect(), ..Finished::default() }
    }
}
