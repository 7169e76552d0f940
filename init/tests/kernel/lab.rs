//! A pod and its node: two network namespaces, a veth pair between them, servers in both.
//!
//! The node holds the API server's addresses. Servers send their name and the connection's original
//! destination, so one line shows which of them got it.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ctrlmesh_init::prove::original_destination;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::{Uid, setfsuid};
use tempfile::TempDir;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const PROXY_UID: u32 = 1359;
pub(crate) const APP_UID: u32 = 65532;

/// The addresses of the API server.
pub(crate) const VIP4: &str = "10.96.0.1";
pub(crate) const VIP6: &str = "fd00:96::1";
/// The addresses of the node that no plan of these tests names.
pub(crate) const OTHER4: &str = "10.96.0.9";
pub(crate) const OTHER6: &str = "fd00:96::9";
pub(crate) const POD4: &str = "10.1.0.2";
pub(crate) const POD6: &str = "fd01::2";

pub(crate) const BACKENDS: [&str; 2] = ["nft", "legacy"];

/// `HOST:PORT` for either family.
pub(crate) fn at(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

pub(crate) struct Namespace(File);

impl Namespace {
    fn new() -> Self {
        let entered = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let namespace = Self(entered.join().unwrap());
        namespace.sh("ip link set lo up");
        namespace
    }

    /// Runs `body` on a thread inside the namespace; processes that it starts are inside too.
    pub(crate) fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let joined = thread::scope(|scope| {
            let inside = || {
                setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
                body()
            };
            scope.spawn(inside).join()
        });
        joined.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }

    pub(crate) fn sh(&self, script: &str) -> String {
        self.sh_with(script, &[])
    }

    /// Waits until these own IPv6 addresses have their routes: the kernel creates them in a task of
    /// its own, even without duplicate address detection (`addrconf_dad_work`).
    fn await_routes(&self, addresses: &[&str]) {
        for address in addresses {
            let wait = format!("until ip -6 route get {address} | grep -q ^local; do :; done");
            self.sh(&format!("timeout {} bash -c '{wait}'", TIMEOUT.as_secs()));
        }
    }

    fn sh_with(&self, script: &str, env: &[(&str, &OsStr)]) -> String {
        let output = self.run(|| {
            let mut bash = Command::new("bash");
            bash.args(["-euc", script]).envs(env.iter().copied()).output().unwrap()
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{script}\n{}", text(&output.stderr));
        text(&output.stdout)
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Sends a greeting line on each connection, then echoes.
pub(crate) struct Server {
    accepted: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    namespace: Arc<Namespace>,
}

impl Server {
    pub(crate) fn start(name: &'static str, namespace: &Arc<Namespace>, address: &str) -> Self {
        let listener = namespace.run(|| TcpListener::bind(address).expect(address));
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let state = (Arc::clone(&accepted), Arc::clone(&is_over));
        let serve = move || {
            let (accepted, is_over) = state;
            thread::scope(|scope| {
                while let Ok((connection, peer)) = listener.accept() {
                    if is_over.load(Ordering::Acquire) {
                        return;
                    }
                    accepted.fetch_add(1, Ordering::AcqRel);
                    scope.spawn(move || greet_and_echo(name, connection, peer));
                }
            });
        };
        let thread = Some(thread::spawn(serve));
        Self { accepted, is_over, address, thread, namespace: Arc::clone(namespace) }
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Acquire)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let mut wake = self.address;
        if wake.ip().is_unspecified() {
            // A dual-stack listener has this address also where IPv6 is disabled.
            wake.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        let _ = self.namespace.run(|| TcpStream::connect(wake));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn greet_and_echo(name: &str, mut connection: TcpStream, peer: SocketAddr) {
    // Without NAT the kernel has no original destination.
    let destination =
        original_destination(&connection, peer).or_else(|_| connection.local_addr()).unwrap();
    let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
    connection.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut outcome = connection.write_all(format!("{name} {destination}\n").as_bytes());
    let mut buffer = [0; 4096];
    while outcome.is_ok() {
        outcome = match connection.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => connection.write_all(&buffer[..length]),
        };
    }
}

pub(crate) struct Lab {
    pub(crate) pod: Arc<Namespace>,
    pub(crate) node: Arc<Namespace>,
    directory: TempDir,
}

impl Lab {
    /// A pod with both families, the API server's addresses on the node, no rules.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let (pod, node) = (Arc::new(Namespace::new()), Arc::new(Namespace::new()));
        node.sh(&format!(
            "ip link add eth0 type veth peer name pod
             ip link set pod netns {pod} name eth0
             ip link set eth0 up
             ip addr add 10.1.0.1/24 dev eth0
             ip addr add fd01::1/64 dev eth0 nodad
             for vip in {VIP4}/32 10.96.0.2/32 {OTHER4}/32; do ip addr add $vip dev lo; done
             for vip in {VIP6}/128 fd00:96::2/128 {OTHER6}/128; do ip addr add $vip dev lo nodad; done",
            pod = pod.path(),
        ));
        node.await_routes(&["fd01::1", VIP6, "fd00:96::2", OTHER6]);
        pod.sh(&format!(
            "ip link set eth0 up
             ip addr add {POD4}/24 dev eth0
             ip addr add {POD6}/64 dev eth0 nodad
             ip route add default via 10.1.0.1
             ip -6 route add default via fd01::1"
        ));
        pod.await_routes(&[POD6]);
        Self { pod, node, directory }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.directory.path().join("xtables.lock")
    }

    /// A shell in the pod; legacy tools use this lab's own lock.
    pub(crate) fn sh(&self, script: &str) -> String {
        self.pod.sh_with(script, &[("XTABLES_LOCKFILE", self.lock_file().as_os_str())])
    }

    /// The nat table of one family without its volatile parts: remarks and counters.
    pub(crate) fn saved(&self, backend: &str, v6: bool) -> String {
        let tool = if v6 { "ip6tables" } else { "iptables" };
        let all = self.sh(&format!("{tool}-{backend}-save -t nat"));
        let lines = all.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split(" [").next().unwrap()).collect::<Vec<_>>().join("\n")
    }

    /// A run of `ctrlmesh-init` in the pod, not started yet.
    pub(crate) fn init(&self, args: &[&str]) -> Init<'_> {
        Init {
            lab: self,
            prefix: Vec::new(),
            args: args.iter().map(ToString::to_string).collect(),
            env: vec![("XTABLES_LOCKFILE".into(), self.lock_file().display().to_string())],
            path: "/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        }
    }

    /// A directory for PATH: links to the programs named, and scripts.
    pub(crate) fn programs(&self, links: &[&str], scripts: &[(&str, &str)]) -> String {
        let directory = tempfile::tempdir_in(self.directory()).unwrap().keep();
        for link in links {
            std::os::unix::fs::symlink(format!("/usr/sbin/{link}"), directory.join(link)).unwrap();
        }
        for (name, script) in scripts {
            let file = directory.join(name);
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        }
        directory.display().to_string()
    }

    /// The greeting of the server that answers a process of the app.
    pub(crate) fn ask(&self, address: &str) -> String {
        self.ask_as(APP_UID, address)
    }

    /// The greeting of the server that answers a process of this user.
    pub(crate) fn ask_as(&self, uid: u32, address: &str) -> String {
        self.pod.run(|| {
            become_user(uid);
            ask(address)
        })
    }

    /// A connection of the app that stays open, its greeting read.
    pub(crate) fn open(&self, address: &str) -> (TcpStream, String) {
        self.pod.run(|| {
            become_user(APP_UID);
            let mut stream = connect(address).unwrap();
            let greeting = read_line(&mut stream);
            (stream, greeting)
        })
    }
}

/// Sockets that this thread creates belong to this user from now on: the owner match checks the
/// file system uid with which a socket was created, and each thread has its own.
pub(crate) fn become_user(uid: u32) {
    setfsuid(Uid::from_raw(uid));
    assert_eq!(setfsuid(Uid::from_raw(uid)), Uid::from_raw(uid));
}

pub(crate) fn ask(address: &str) -> String {
    match connect(address) {
        Ok(mut stream) => read_line(&mut stream),
        Err(error) => error.kind().to_string(),
    }
}

pub(crate) fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address.parse().unwrap(), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// A socket that is not connected yet.
pub(crate) fn socket_v4() -> std::os::fd::OwnedFd {
    socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap()
}

pub(crate) fn read_line(stream: &mut TcpStream) -> String {
    let mut line = String::new();
    match BufReader::with_capacity(1, stream).read_line(&mut line) {
        Ok(_) => line.trim_end().to_owned(),
        Err(error) => error.kind().to_string(),
    }
}

/// Sends a datagram and returns the answer.
pub(crate) fn ask_udp(address: &str) -> String {
    let any: SocketAddr = match address.starts_with('[') {
        true => (Ipv6Addr::UNSPECIFIED, 0).into(),
        false => (Ipv4Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.connect(address).unwrap();
    socket.send(b"who").unwrap();
    let mut answer = [0; 64];
    match socket.recv(&mut answer) {
        Ok(length) => String::from_utf8_lossy(&answer[..length]).into_owned(),
        Err(error) => error.kind().to_string(),
    }
}

/// A run of `ctrlmesh-init`, not started yet.
pub(crate) struct Init<'a> {
    lab: &'a Lab,
    prefix: Vec<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    path: String,
}

#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) log: String,
    pub(crate) out: String,
}

impl Init<'_> {
    /// Sets PATH to these directories.
    pub(crate) fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs the program through `setpriv` with these arguments.
    pub(crate) fn setpriv(mut self, arguments: &[&str]) -> Self {
        self.prefix = arguments.iter().map(ToString::to_string).collect();
        self
    }

    pub(crate) fn run(self) -> Ran {
        // A copy that every user may execute, wherever the build directory is.
        let program = self.lab.directory().join("ctrlmesh-init");
        if !self.prefix.is_empty() {
            fs::copy(env!("CARGO_BIN_EXE_ctrlmesh-init"), &program).unwrap();
        }
        let output = self.lab.pod.run(|| {
            let mut command = if self.prefix.is_empty() {
                Command::new(env!("CARGO_BIN_EXE_ctrlmesh-init"))
            } else {
                let mut setpriv = Command::new("/usr/bin/setpriv");
                setpriv.args(&self.prefix).arg(&program);
                setpriv
            };
            command.args(&self.args).env_clear().env("PATH", &self.path);
            command.envs(self.env.iter().map(|(name, value)| (name, value)));
            command.stdin(Stdio::null()).output().unwrap()
        });
        Ran {
            code: output.status.code(),
            log: String::from_utf8(output.stderr).unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
        }
    }

    /// Runs and requires success.
    #[track_caller]
    pub(crate) fn ok(self) -> Ran {
        self.exits(0)
    }

    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Ran {
        let ran = self.run();
        assert_eq!(ran.code, Some(code), "{}", ran.log);
        ran
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(self.log.contains(text), "`{text}` is not in\n{}", self.log);
        self
    }
}
