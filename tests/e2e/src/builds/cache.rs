//! A cache of files that take minutes to make: outside the source tree, by content.

use std::{
    env,
    fs::{self, File, TryLockError},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{RecvTimeoutError, sync_channel},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// The maximum time between lines of progress.
const REPORT_EVERY: Duration = Duration::from_secs(10);

const KEPT_UNUSED: Duration = Duration::from_secs(7 * 24 * 3600);

/// The length of a hash, in hexadecimal digits.
const HASH_LENGTH: usize = 24;

/// The number of last lines of a failed command that an error quotes.
const QUOTED_LINES: usize = 30;

/// The key of a cached file: the hash of all inputs that decide its content.
#[derive(Default)]
pub(crate) struct Key(Sha256);

impl Key {
    pub(crate) fn add(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        // The length distinguishes ("ab", "c") from ("a", "bc").
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    pub(crate) fn add_file(self, path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        Ok(self.add(text))
    }

    fn hex(self) -> String {
        self.0.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The file `name` of this key. If there is none, `make` makes it at the path that it gets. Of
/// several processes that need it at once, one makes it and the others wait.
pub(crate) fn file(
    name: &str,
    key: Key,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    file_in(&directory()?, name, key, make)
}

fn file_in(
    directory: &Path,
    name: &str,
    key: Key,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let wanted = directory.join(format!("{name}-{}", key.hex()));
    if wanted.exists() {
        // Its age is the time since its last use; see `drop_unused`.
        File::open(&wanted)?.set_modified(SystemTime::now())?;
        return Ok(wanted);
    }
    let _turn = turn(directory, name)?;
    if !wanted.exists() {
        let unfinished = directory.join(format!(".{name}-{}", std::process::id()));
        make(&unfinished)?;
        fs::rename(&unfinished, &wanted)
            .with_context(|| format!("moving {name} to {}", wanted.display()))?;
        drop_unused(directory, name)?;
    }
    Ok(wanted)
}

/// Removes files called `name` that were not used for a week.
fn drop_unused(directory: &Path, name: &str) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_one = entry
            .file_name()
            .to_str()
            .and_then(|file| file.strip_prefix(name)?.strip_prefix('-'))
            .is_some_and(|hash| hash.len() == HASH_LENGTH);
        let unused = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
        if is_one && unused > KEPT_UNUSED {
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
    }
    Ok(())
}

/// Runs a command that takes long, with a line of progress on stderr every 10 s.
pub(crate) fn run_with_progress(what: &str, command: &mut Command) -> Result<()> {
    let started = Instant::now();
    note(&format!("{what}: started"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{what}: starting {}", command.get_program().display()))?;
    let errors = child.stderr.take().context("the pipe just asked for")?;
    let (lines, inbox) = sync_channel::<String>(16);
    let reader = thread::spawn(move || {
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let mut said: Vec<String> = Vec::new();
    let mut report_at = started + REPORT_EVERY;
    loop {
        match inbox.recv_timeout(report_at.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                said.push(line);
                if said.len() > QUOTED_LINES {
                    said.remove(0);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                report_at = Instant::now() + REPORT_EVERY;
                let last = said.last().map_or("", String::as_str);
                note(&format!("{what}: {} s {last}", started.elapsed().as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait()?;
    // The thread ended with the pipe that it read.
    let _ = reader.join();
    if !status.success() {
        bail!("{what}: {status}\n{}", said.join("\n"));
    }
    note(&format!("{what}: done in {} s", started.elapsed().as_secs()));
    Ok(())
}

/// Prints one line of progress, on stderr: stdout is for the output of the program itself.
pub(crate) fn note(line: &str) {
    // Progress that cannot be shown is not worth a failure.
    let _ = writeln!(std::io::stderr(), "testbed: {}", line.trim_end());
}

/// The cache: `$CTRLMESH_CACHE`, else `$XDG_CACHE_HOME/ctrlmesh`, else `$HOME/.cache/ctrlmesh`.
pub fn directory() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = set("CTRLMESH_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|path| path.join("ctrlmesh")))
        .or_else(|| set("HOME").map(|path| path.join(".cache/ctrlmesh")))
        .context(
            "none of CTRLMESH_CACHE, XDG_CACHE_HOME and HOME is set: no place for the cache",
        )?;
    fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    Ok(directory)
}

fn turn(directory: &Path, name: &str) -> Result<File> {
    let turn = File::create(directory.join(format!("{name}.lock")))?;
    match turn.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            note(&format!("{name}: another process makes it; waiting"));
            turn.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A directory of this test alone, removed on drop.
    struct Place(PathBuf);

    impl Place {
        fn make() -> Self {
            let name: String = std::iter::repeat_with(fastrand::lowercase).take(12).collect();
            let path = env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn of_many_who_want_it_one_makes_it() {
        let place = Place::make();
        let made = AtomicUsize::new(0);
        let make = |path: &Path| {
            made.fetch_add(1, Ordering::Relaxed);
            // Slow enough that all others ask before the file exists.
            let mut all = File::create(path)?;
            for _ in 0..1000 {
                all.write_all(b"x")?;
                all.sync_data()?;
            }
            Ok(())
        };
        let sizes: Vec<u64> = thread::scope(|scope| {
            let want = || {
                let path = file_in(&place.0, "thing", Key::default().add("a"), make).unwrap();
                fs::metadata(path).unwrap().len()
            };
            let all: Vec<_> = (0..8).map(|_| scope.spawn(want)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(sizes, [1000; 8]);
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_nobody_used_for_a_week_goes_and_the_rest_stays() {
        let place = Place::make();
        let make = |path: &Path| Ok(fs::write(path, "")?);
        let want = |name, part| file_in(&place.0, name, Key::default().add(part), make).unwrap();
        let (old, used, other) = (want("a", "old"), want("a", "used"), want("a-b", "other"));
        let long_ago = SystemTime::now() - KEPT_UNUSED * 2;
        for path in [&old, &used, &other] {
            File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        want("a", "used");
        let new = want("a", "new");
        assert!(!old.exists());
        assert!(used.exists() && other.exists() && new.exists());
    }

    #[test]
    fn a_failed_make_leaves_nothing_and_the_next_may_succeed() {
        let place = Place::make();
        let key = || Key::default().add("a");
        let fail = |path: &Path| {
            fs::write(path, "half")?;
            bail!("it failed")
        };
        assert!(file_in(&place.0, "thing", key(), fail).is_err());
        let made = file_in(&place.0, "thing", key(), |path| Ok(fs::write(path, "whole")?));
        assert_eq!(fs::read_to_string(made.unwrap()).unwrap(), "whole");
    }

    #[test]
    fn key_tells_the_parts_apart() {
        let key = |parts: &[&str]| parts.iter().fold(Key::default(), Key::add).hex();
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        assert_eq!(key(&[]).len(), HASH_LENGTH);
    }

    #[test]
    fn failed_command_is_quoted() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo why >&2; exit 3"]);
        let error = run_with_progress("trying", &mut command).unwrap_err().to_string();
        assert!(error.contains("trying") && error.contains("first\nwhy"), "{error}");
    }
}
