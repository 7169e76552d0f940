//! The server that each connection reaches.

use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::socket::{SockaddrIn, connect};

use crate::lab::{
    APP_UID, BACKENDS, Lab, Namespace, OTHER4, OTHER6, POD4, POD6, PROXY_UID, Server, VIP4, VIP6,
    ask, ask_udp, at, become_user, read_line, socket_v4,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The programs of a pod and a node while rules are in force.
pub(crate) struct Actors {
    pub(crate) api: Vec<Server>,
    _pod: Vec<Server>,
    _proxy: Vec<Server>,
    _datagrams: Datagrams,
}

impl Actors {
    pub(crate) fn start(lab: &Lab) -> Self {
        let on = |name, namespace: &Arc<Namespace>, addresses: &[&str]| {
            addresses.iter().map(|address| Server::start(name, namespace, address)).collect()
        };
        Self {
            api: on("api", &lab.node, &["[::]:443", "[::]:444"]),
            _pod: on("pod", &lab.pod, &["[::]:443", "[::]:8080", "[::]:9443"]),
            _proxy: on("proxy", &lab.pod, &["127.0.0.1:5443", "[::1]:5443", "[::]:5445"]),
            _datagrams: Datagrams::start(lab),
        }
    }
}

/// Answers datagrams to port 443 of the API server's addresses.
struct Datagrams {
    is_over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
    node: Arc<Namespace>,
}

impl Datagrams {
    fn start(lab: &Lab) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let threads = [VIP4, VIP6].map(|vip| {
            let socket = lab.node.run(|| std::net::UdpSocket::bind(at(vip, 443)).unwrap());
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                let mut question = [0; 8];
                while let Ok((_, peer)) = socket.recv_from(&mut question) {
                    if is_over.load(Ordering::Acquire) {
                        return;
                    }
                    socket.send_to(b"api", peer).unwrap();
                }
            })
        });
        Self { is_over, threads: threads.into(), node: Arc::clone(&lab.node) }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.node.run(|| {
            for vip in [VIP4, VIP6] {
                std::net::UdpSocket::bind("[::]:0")
                    .and_then(|any| any.send_to(b"end", at(vip, 443)))
                    .or_else(|_| {
                        std::net::UdpSocket::bind("0.0.0.0:0")?.send_to(b"end", at(vip, 443))
                    })
                    .unwrap();
            }
        });
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// One family's addresses.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) vip: &'static str,
    other: &'static str,
    pod: &'static str,
    loopback: &'static str,
}

pub(crate) const V4: Addresses =
    Addresses { vip: VIP4, other: OTHER4, pod: POD4, loopback: "127.0.0.1" };
pub(crate) const V6: Addresses = Addresses { vip: VIP6, other: OTHER6, pod: POD6, loopback: "::1" };

/// Tries every kind of connection. Returns those that did not reach the expected server.
pub(crate) fn wrong(lab: &Lab, family: Addresses, outbound: bool, inbound: bool) -> Vec<String> {
    let Addresses { vip, other, pod, loopback } = family;
    let api_call = if outbound { "proxy" } else { "api" };
    let webhook = if inbound { "proxy" } else { "pod" };
    let mut wrong = Vec::new();
    let mut expect = |what: &str, who: &str, address: String, answer: String| {
        let wanted = format!("{who} {address}");
        if answer != wanted {
            wrong.push(format!("{what}: wanted `{wanted}`, was `{answer}`"));
        }
    };
    for (what, who, uid, address) in [
        ("app to the API server", api_call, APP_UID, at(vip, 443)),
        ("root to the API server", api_call, 0, at(vip, 443)),
        ("proxy to the API server", "api", PROXY_UID, at(vip, 443)),
        ("app to another port", "api", APP_UID, at(vip, 444)),
        ("app to another address", "api", APP_UID, at(other, 443)),
        ("proxy to another address", "api", PROXY_UID, at(other, 443)),
        ("app to localhost", "pod", APP_UID, at(loopback, 443)),
        ("app to its own pod", "pod", APP_UID, at(pod, 443)),
        ("app to its own webhook", "pod", APP_UID, at(pod, 9443)),
    ] {
        let answer = lab.ask_as(uid, &address);
        expect(what, who, address, answer);
    }
    for (what, who, port) in [("webhook call", webhook, 9443), ("probe of the node", "pod", 8080)] {
        let answer = lab.node.run(|| ask(&at(pod, port)));
        expect(what, who, at(pod, port), answer);
    }
    let answer = lab.pod.run(|| ask_udp(&at(vip, 443)));
    expect("datagram", "api", String::new(), format!("{answer} "));
    wrong
}

#[test]
fn i02_only_api_calls_and_webhook_calls_are_redirected() {
    for backend in BACKENDS {
        let lab = Lab::new();
        lab.init(&[
            "--backend",
            backend,
            "--upstream=10.96.0.1:443",
            "--upstream=[fd00:96::1]:443",
            "--inbound=9443:5445",
        ])
        .ok()
        .says("intercepted by proof: 10.96.0.1:443 [fd00:96::1]:443");
        let _actors = Actors::start(&lab);
        for family in [V4, V6] {
            assert_eq!(wrong(&lab, family, true, true), Vec::<String>::new(), "{backend}");
        }
    }
}

#[test]
fn i02_nothing_is_redirected_without_rules() {
    let lab = Lab::new();
    let _actors = Actors::start(&lab);
    for family in [V4, V6] {
        assert_eq!(wrong(&lab, family, false, false), Vec::<String>::new());
        assert_ne!(wrong(&lab, family, true, false), Vec::<String>::new());
    }
}

#[test]
fn i02_a_mapped_destination_is_redirected_by_the_ipv4_rules() {
    let lab = Lab::new();
    lab.init(&["--upstream=10.96.0.1:443"]).ok();
    let _actors = Actors::start(&lab);
    assert_eq!(lab.ask("[::ffff:10.96.0.1]:443"), "proxy 10.96.0.1:443");
}

#[test]
fn i09_the_exempt_user_is_the_one_that_was_named() {
    for backend in BACKENDS {
        let lab = Lab::new();
        let _actors = Actors::start(&lab);
        for uid in ["1", "1000680000", "4294967294"] {
            lab.init(&["--backend", backend, "--upstream=10.96.0.1:443", "--proxy-uid", uid]).ok();
            assert_eq!(lab.ask_as(uid.parse().unwrap(), "10.96.0.1:443"), "api 10.96.0.1:443");
            assert_eq!(lab.ask_as(PROXY_UID, "10.96.0.1:443"), "proxy 10.96.0.1:443");
        }
    }
}

#[test]
fn i09_a_process_of_the_proxys_user_goes_straight() {
    let lab = Lab::new();
    lab.init(&["--upstream=10.96.0.1:443"]).ok();
    let _actors = Actors::start(&lab);
    let line = "exec 3<>/dev/tcp/10.96.0.1/443; read -r line <&3; echo $line";
    for (uid, who) in [(PROXY_UID, "api"), (APP_UID, "proxy")] {
        let output =
            lab.pod.run(|| Command::new("bash").args(["-c", line]).uid(uid).output().unwrap());
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{who} 10.96.0.1:443\n"));
    }
}

/// The kernel stores the user who created a socket, not its current user: a proxy that creates
/// sockets before it gives up root would connect to itself.
#[test]
fn i09_a_socket_belongs_to_the_user_that_made_it() {
    let lab = Lab::new();
    lab.init(&["--upstream=10.96.0.1:443"]).ok();
    let _actors = Actors::start(&lab);
    let answer = lab.pod.run(|| {
        let made_before = socket_v4();
        become_user(PROXY_UID);
        let address: std::net::SocketAddrV4 = "10.96.0.1:443".parse().unwrap();
        connect(made_before.as_raw_fd(), &SockaddrIn::from(address)).unwrap();
        read_line(&mut made_before.into())
    });
    assert_eq!(answer, "proxy 10.96.0.1:443");
}

#[test]
fn i09_init_may_not_run_as_the_proxys_user() {
    let lab = Lab::new();
    lab.init(&["--upstream=10.96.0.1:443"])
        .setpriv(&["--reuid=1359", "--clear-groups"])
        .exits(64)
        .says("runs as uid 1359, the proxy's");
}
