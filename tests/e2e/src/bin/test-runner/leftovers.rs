//! What a group of tests leaves: processes that carry its mark, and the beds of dead owners.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::Result;
use ctrlmesh_e2e::{GROUP, Swept, sweep, until};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The time in which what ends by itself ends: the kernel takes a node's namespaces apart.
const GRACE: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(30);

/// Ends all processes with the mark, and removes the beds whose owners are dead. Returns what a
/// green group should not have left.
pub(crate) fn remove(mark: &str, is_green: bool) -> Result<Vec<String>> {
    let began = Instant::now();
    let mut named = Vec::new();
    let ended = until("what the group left has ended", LIMIT, || {
        let left = processes(mark);
        if left.is_empty() {
            return Ok(Some(()));
        }
        if !is_green || began.elapsed() > GRACE {
            if is_green && named.is_empty() {
                named.extend(left.iter().map(|(_, command)| command.clone()));
            }
            for (pid, _) in left {
                // It may end by itself meanwhile.
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        Ok(None)
    });
    if ended.is_err() {
        let left = processes(mark).into_iter();
        named.extend(left.map(|(_, command)| format!("cannot be ended: {command}")));
    }
    let swept = sweep()?;
    if is_green {
        named.extend(of_group(mark, swept));
    }
    Ok(named)
}

/// The beds of the group with this mark. Another group may have killed an owner just now, on purpose.
fn of_group(mark: &str, swept: Vec<Swept>) -> impl Iterator<Item = String> {
    let own = swept.into_iter().filter(move |swept| swept.group == mark);
    own.map(|swept| swept.bed.display().to_string())
}

/// The processes with the mark in their environment, each with its command line. Zombies have none.
fn processes(mark: &str) -> Vec<(Pid, String)> {
    let variable = format!("{GROUP}={mark}");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let is_marked = environment.split(|&byte| byte == 0).any(|one| one == variable.as_bytes());
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        is_marked.then(|| (Pid::from_raw(pid), command.trim_end().chars().take(200).collect()))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_group_is_not_blamed_for_the_beds_of_others() {
        let swept = ["1-2", "1-22", ""]
            .map(|group| Swept { bed: format!("/of/{group}").into(), group: group.to_owned() });
        assert_eq!(of_group("1-2", swept.into()).collect::<Vec<_>>(), ["/of/1-2"]);
    }

    #[test]
    fn a_process_that_a_failed_group_left_is_ended() {
        let mark = format!("test-{}", std::process::id());
        // The shell in between ends at once; its child is no one's.
        let left = "setsid sleep 1000 >/dev/null 2>&1 &";
        let status = Command::new("sh").args(["-c", left]).env(GROUP, &mark).status().unwrap();
        assert!(status.success());
        assert_eq!(processes(&mark).len(), 1);
        assert_eq!(remove(&mark, false).unwrap(), [""; 0]);
        assert_eq!(processes(&mark), []);
    }
}
