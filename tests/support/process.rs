//! The real binary.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{sync::mpsc, task::spawn_blocking, time::timeout};

use super::{PATIENCE, proxy::Files, soon};

/// A running `ctrlmesh proxy`; killed when it is dropped.
pub struct Process {
    pub addr: SocketAddr,
    pub admin: SocketAddr,
    /// The log line with its addresses.
    pub listening: serde_json::Value,
    child: Option<Child>,
    lines: mpsc::Receiver<String>,
}

fn command(args: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    command.args(args).env_clear().stdin(Stdio::null());
    command
}

/// The flags of a proxy with these files.
pub fn flags(files: &Files, upstream: &str) -> Vec<String> {
    [
        "proxy",
        "--mode=direct",
        "--shard=blue",
        "--listen=127.0.0.1:0",
        "--admin=127.0.0.1:0",
        &format!("--upstream={upstream}"),
        &format!("--policy={}", files.policy().display()),
        &format!("--upstream-ca={}", files.upstream_ca().display()),
        &format!("--mesh-ca-dir={}", files.mesh_ca().display()),
        &format!("--state-dir={}", files.state().display()),
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Runs a command that ends by itself. Returns its exit code and its output.
pub async fn run(args: &[String]) -> (i32, String) {
    run_with(args, &[]).await
}

/// The same with these environment variables and no others.
pub async fn run_with(args: &[String], env: &[(&str, &str)]) -> (i32, String) {
    let mut command = command(args);
    command.envs(env.iter().copied());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let mut output = spawn_blocking(move || child.wait_with_output().unwrap());
    let Ok(output) = timeout(PATIENCE, &mut output).await else {
        kill(pid, Signal::SIGKILL).unwrap();
        panic!("{args:?} goes on: {:?}", output.await);
    };
    let output = output.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8(text).unwrap())
}

impl Process {
    /// Starts the proxy and waits until it serves.
    pub async fn start(args: &[String]) -> Self {
        Self::start_with(args, &[]).await
    }

    /// The same with these environment variables and no others.
    pub async fn start_with(args: &[String], env: &[(&str, String)]) -> Self {
        let mut command = command(args);
        command.envs(env.iter().map(|(key, value)| (*key, value)));
        Self::spawn(command).await
    }

    /// The same with `count` file descriptors at most.
    pub async fn start_with_descriptors(args: &[String], count: u32) -> Self {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {count}; exec \"$0\" \"$@\"");
        command.args(["-euc", &script, env!("CARGO_BIN_EXE_ctrlmesh")]).args(args);
        command.env_clear().stdin(Stdio::null());
        Self::spawn(command).await
    }

    async fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tx, lines) = mpsc::channel(4096);
        thread::spawn(move || {
            for line in stderr.lines() {
                if line.is_err() || tx.blocking_send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        let unset = "0.0.0.0:0".parse().unwrap();
        let listening = serde_json::Value::Null;
        let mut process = Self { addr: unset, admin: unset, listening, child: Some(child), lines };
        loop {
            let line = soon("a log line", process.lines.recv()).await;
            let line = line.expect("it says where it serves before it ends");
            let Ok(line) = serde_json::from_str::<serde_json::Value>(&line) else {
                panic!("not JSON: {line}")
            };
            if line["message"] == "listening" {
                let addr = |key: &str| line[key].as_str().unwrap().parse().unwrap();
                (process.addr, process.admin) = (addr("addr"), addr("admin"));
                process.listening = line;
                return process;
            }
        }
    }

    /// The next log line of this message.
    pub async fn logged(&mut self, message: &str) -> serde_json::Value {
        loop {
            let line = soon("a log line", self.lines.recv()).await.expect("it still runs");
            let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
            if line["message"] == message {
                return line;
            }
        }
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// A memory size in bytes, by the name of its line in `/proc/PID/status`.
    pub fn memory(&self, line: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let value = status.lines().find_map(|other| other.strip_prefix(line)?.strip_prefix(':'));
        let kibibytes = value.expect("a line of this name").trim().trim_end_matches(" kB");
        kibibytes.parse::<usize>().unwrap() << 10
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Waits for its end. Returns the exit code, `None` after a signal, and the rest of its log.
    pub async fn end(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        while let Some(line) = soon("the log's end", self.lines.recv()).await {
            log.push_str(&line);
            log.push('\n');
        }
        let mut child = self.child.take().expect("it is waited for once");
        let status = spawn_blocking(move || child.wait().unwrap());
        let status = soon("the process's end", status).await.unwrap();
        (status.code(), log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
