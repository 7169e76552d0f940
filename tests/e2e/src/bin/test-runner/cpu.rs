//! Processor time: of the machine, of this process with all that it waited for, of one process.

use std::{
    fs,
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::{
    sys::resource::{UsageWho, getrusage},
    unistd::{SysconfVar, sysconf},
};
use sha2::{Digest, Sha256};

/// The number of processors that this process may use.
pub(crate) fn cores() -> Result<usize> {
    Ok(thread::available_parallelism().context("the number of cores")?.get())
}

/// Memory that is available, in bytes.
pub(crate) fn memory_available() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("/proc/meminfo has no MemAvailable")? << 10)
}

/// Seconds that processors were busy since the machine started, with programs.
pub(crate) fn busy() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    // user, nice, system; the rest is idle, or of no one's.
    let ticks: f64 =
        line.split_whitespace().skip(1).take(3).filter_map(|n| n.parse::<f64>().ok()).sum();
    Ok(ticks / ticks_a_second()?)
}

/// Seconds of processor time of this process and of all processes below it that have ended.
pub(crate) fn own() -> Result<f64> {
    let mut seconds = 0.0;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        for time in [usage.user_time(), usage.system_time()] {
            seconds += time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        }
    }
    Ok(seconds)
}

/// Seconds of processor time of a process that has ended and was not waited for. They include the
/// time of all processes that it waited for.
pub(crate) fn of_process(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name stands in parentheses and may hold any character; user, system, and those of the
    // children are the fields 14 to 17 of proc_pid_stat(5), the 12th and on behind the name.
    let (_, fields) = text.rsplit_once(") ").context("/proc/PID/stat has no name")?;
    let ticks: f64 = fields.split(' ').skip(11).take(4).filter_map(|n| n.parse::<f64>().ok()).sum();
    Ok(ticks / ticks_a_second()?)
}

fn ticks_a_second() -> Result<f64> {
    let ticks = sysconf(SysconfVar::CLK_TCK)?.context("the kernel's clock tick")?;
    Ok(ticks as f64)
}

/// Seconds that a fixed piece of work takes on all cores at once: how fast the machine is now.
pub(crate) fn calibrate() -> Result<f64> {
    let cores = cores()?;
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let block = [0_u8; 1 << 16];
                let mut hash = Sha256::new();
                for _ in 0..1_000 {
                    hash.update(block);
                }
                black_box(hash.finalize());
            });
        }
    });
    Ok(began.elapsed().max(Duration::from_millis(1)).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::{
        sys::wait::{Id, WaitPidFlag, waitid},
        unistd::Pid,
    };

    use super::*;

    #[test]
    fn the_time_of_an_ended_process_has_that_of_its_children() {
        let work = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'";
        let mut child = Command::new("sh").args(["-c", &format!("{work}; true")]).spawn().unwrap();
        let pid = Id::Pid(Pid::from_raw(child.id().try_into().unwrap()));
        waitid(pid, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        let seconds = of_process(child.id()).unwrap();
        child.wait().unwrap();
        assert!(seconds > 0.02, "{seconds}");
        assert!(own().unwrap() >= seconds);
        assert!(busy().unwrap() >= seconds);
    }
}
