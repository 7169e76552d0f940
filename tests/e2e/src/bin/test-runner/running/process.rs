//! The process of one group, and the threads that wait for it.

use std::{
    collections::VecDeque,
    env, fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStderr, ChildStdout, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use ctrlmesh_e2e::{CLUSTERS, GROUP, tied};
use nix::{
    sys::wait::{Id, WaitPidFlag, waitid},
    unistd::Pid,
};

use super::Told;
use crate::{
    cpu,
    events::{self, LineOf},
    groups::Group,
    leftovers,
};

/// The last bytes of its standard error that a report of a dead process quotes.
const QUOTED: usize = 16 << 10;

/// How a group's process ended.
pub(crate) struct End {
    pub(crate) status: String,
    /// Seconds of processor time, of all that it waited for too.
    pub(crate) cpu: f64,
    /// The end of what it wrote to its standard error.
    pub(crate) errors: String,
    /// What it left, though it passed.
    pub(crate) left: Vec<String>,
    /// A line for each cluster that it started.
    clusters: String,
}

impl End {
    /// The number of clusters of a kind that the group started.
    pub(crate) fn started(&self, kind: &str) -> usize {
        self.clusters.lines().filter(|line| *line == kind).count()
    }
}

/// A process with the tests of a group.
pub(crate) struct GroupProcess {
    child: Arc<Mutex<Child>>,
    waiter: Option<JoinHandle<()>>,
}

impl GroupProcess {
    /// Starts it. `tell` gets the events of its tests, and at last its end.
    pub(crate) fn start(
        group: &Group,
        number: usize,
        tell: impl Fn(Told) + Clone + Send + 'static,
    ) -> Result<Self> {
        let mark = mark(&number.to_string());
        let clusters = env::temp_dir().join(format!("ctrlmesh-test-clusters-{mark}"));
        let mut command = tied(&group.executable.path);
        command
            .current_dir(&group.executable.directory)
            .args(events::ARGS)
            .arg(format!("--test-threads={}", group.threads))
            .args(&group.tests)
            .env("RUSTC_BOOTSTRAP", "1")
            .env(GROUP, &mark)
            .env(CLUSTERS, &clusters)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // The main thread starts it: the kernel kills the process when this thread ends.
        let mut child = command.spawn()?;
        let output = child.stdout.take().context("the pipe just asked for")?;
        let errors = child.stderr.take().context("the pipe just asked for")?;
        let child = Arc::new(Mutex::new(child));
        let of_thread = Arc::clone(&child);
        let waiter = thread::spawn(move || {
            let readers = (read_events(output, tell.clone()), read_errors(errors));
            let end = wait(&of_thread, readers, &mark, &clusters);
            tell(Told::End(end));
        });
        Ok(Self { child, waiter: Some(waiter) })
    }

    /// Kills it. Its end is notified as ever.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // It fails where the process has ended.
        let _ = child.kill();
    }

    /// Waits for its threads, once its end was told.
    pub(crate) fn join(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            // A panic of the thread was printed.
            let _ = waiter.join();
        }
    }
}

/// The mark of processes that this run started, different in each run.
pub(crate) fn mark(name: &str) -> String {
    format!("{}-{name}", std::process::id())
}

/// Waits for the end of the process, and removes what it left: that may hold its pipes open.
fn wait(
    child: &Mutex<Child>,
    (events, errors): (JoinHandle<()>, JoinHandle<Vec<u8>>),
    mark: &str,
    clusters: &Path,
) -> End {
    let id = child.lock().unwrap_or_else(PoisonError::into_inner).id();
    // Not waited for yet: its times can still be read, and no other process has its id.
    let pid = Pid::from_raw(i32::try_from(id).unwrap_or_default());
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while waitid(Id::Pid(pid), flags) == Err(nix::Error::EINTR) {}
    let cpu = cpu::of_process(id).unwrap_or_default();
    let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
    let is_green = status.as_ref().is_ok_and(ExitStatus::success);
    let left = leftovers::remove(mark, is_green);
    // Both end with the pipes.
    let _ = events.join();
    let errors = errors.join().unwrap_or_default();
    let started = fs::read_to_string(clusters).unwrap_or_default();
    // A group that started no cluster has no such file.
    let _ = fs::remove_file(clusters);
    End {
        status: status.map_or_else(|error| error.to_string(), |status| status.to_string()),
        cpu,
        errors: String::from_utf8_lossy(&errors).into_owned(),
        left: left.unwrap_or_else(|error| vec![format!("{error:#}")]),
        clusters: started,
    }
}

fn read_events(output: ChildStdout, tell: impl Fn(Told) + Send + 'static) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut output = BufReader::with_capacity(64 << 10, output);
        let mut line = LineOf::default();
        loop {
            let Ok(bytes) = output.fill_buf() else { return };
            if bytes.is_empty() {
                return;
            }
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            line.push(part);
            let taken = part.len() + usize::from(end.is_some());
            if end.is_some()
                && let Some(event) = events::read(&line.take())
            {
                tell(Told::Test(event));
            }
            output.consume(taken);
        }
    })
}

/// Keeps the end of the output.
fn read_errors(mut errors: ChildStderr) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut kept = VecDeque::new();
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = errors.read(&mut buffer) {
            kept.extend(&buffer[..read]);
            kept.drain(..kept.len().saturating_sub(QUOTED));
        }
        kept.into()
    })
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::sync_channel,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{
        events::{Event, Verdict},
        groups::{Weight, tests::group},
    };

    /// Behaves as a test executable with tests that are named by what they do.
    const SCRIPT: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/test-runner/running/scripted.sh");

    /// Runs these tests; kills the process as soon as `kill_at` has started. Returns the results,
    /// and the end.
    fn run(number: usize, tests: &[&str], kill_at: &str) -> (Vec<(String, Verdict, usize)>, End) {
        let mut group = group("scripted", Weight::InProcess);
        group.executable.path = SCRIPT.into();
        group.tests = tests.iter().map(|&name| name.to_owned()).collect();
        let (outbox, inbox) = sync_channel(16);
        let tell = move |told| outbox.send(told).unwrap();
        let mut process = GroupProcess::start(&group, number, tell).unwrap();
        let mut results = Vec::new();
        loop {
            match inbox.recv().unwrap() {
                Told::Test(Event::Started(name)) if name == kill_at => process.kill(),
                Told::Test(Event::Started(_)) => {}
                Told::Test(Event::Ended(test)) => {
                    results.push((test.name, test.verdict, test.output.len()));
                }
                Told::End(end) => {
                    process.join();
                    return (results, end);
                }
            }
        }
    }

    #[test]
    fn results_and_processor_time_are_told() {
        let (results, end) = run(1, &["passes", "panics", "works"], "");
        let told: Vec<_> = results.iter().map(|(name, verdict, _)| (&**name, *verdict)).collect();
        let (passed, failed) = (Verdict::Passed, Verdict::Failed);
        assert_eq!(told, [("passes", passed), ("panics", failed), ("works", passed)]);
        assert!(end.cpu > 0.02 && end.status.contains("101"), "{} {}", end.cpu, end.status);
        assert_eq!((end.started("api-server"), end.started("node")), (2, 1));
    }

    #[test]
    fn a_group_that_is_killed_for_memory_says_what_it_said_last() {
        let (results, end) = run(2, &["passes", "dies", "passes"], "");
        assert_eq!(results.len(), 1);
        assert!(end.status.contains("SIGKILL"), "{}", end.status);
        assert!(end.errors.ends_with("its last words\n") && end.left.is_empty(), "{}", end.errors);
    }

    #[test]
    fn a_group_that_hangs_ends_when_it_is_killed_and_leaves_nothing() {
        let began = Instant::now();
        let (results, end) = run(3, &["passes", "hangs"], "hangs");
        assert_eq!(results.len(), 1);
        assert!(end.status.contains("SIGKILL") && began.elapsed() < Duration::from_secs(60));
        assert_eq!(leftovers::remove(&mark("3"), true).unwrap(), [""; 0]);
    }

    #[test]
    fn what_a_green_group_leaves_is_named_and_ended() {
        let (results, end) = run(4, &["leaves"], "");
        assert_eq!(results[0].1, Verdict::Passed);
        assert!(end.left.len() == 1 && end.left[0].starts_with("sleep"), "{:?}", end.left);
    }

    #[test]
    fn a_test_that_prints_100_mb_is_told_within_little_memory() {
        let (results, end) = run(5, &["prints", "passes"], "");
        let (_, verdict, length) = &results[0];
        assert!(*verdict == Verdict::Failed && *length < 4 * events::KEPT, "{length}");
        assert!(results.len() == 2 && end.errors.len() <= QUOTED, "{}", end.errors.len());
    }
}
