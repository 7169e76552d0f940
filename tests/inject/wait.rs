//! `ctrlmesh wait`, the hooks of a classic sidecar.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

fn wait(admin: &str, seconds: u32) -> Output {
    wait_for("ready", admin, seconds)
}

fn wait_for(what: &str, admin: &str, seconds: u32) -> Output {
    let [what, admin] = [format!("--for={what}"), format!("--admin={admin}")];
    Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
        .args(["wait", &what, &admin, &format!("--timeout={seconds}")])
        .output()
        .unwrap()
}

/// Answers one connection after the other, the last for ever.
fn serve(answers: &'static [&'static str]) -> String {
    serve_at("/readyz", answers)
}

fn serve_at(path: &'static str, answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let last = answers.last().unwrap();
        for answer in answers.iter().chain(std::iter::repeat(last)) {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = request.next().unwrap().unwrap();
            assert_eq!(first, format!("GET {path} HTTP/1.1"));
            while request.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

const READY: &str = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
const NOT_READY: &str =
    "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 27\r\n\r\n[-]policy failed: none yet\n";

#[test]
fn i12_the_hook_ends_when_the_proxy_is_ready() {
    let ended = wait(&serve(&[NOT_READY, "", NOT_READY, READY]), 60);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn i13_the_hook_does_not_wait_for_what_the_containers_do() {
    let ended = wait_for("started", &serve_at("/startupz", &[NOT_READY, READY]), 60);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn i12_the_hook_fails_on_time_out_and_says_why() {
    let ended = wait(&serve(&[NOT_READY]), 1);
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(69), "{told}");
    assert!(told.contains("after 1 s") && told.contains("policy failed: none yet"), "{told}");
}

#[test]
fn i12_the_hook_fails_where_nothing_listens() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ended = wait(&free, 1);
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(69), "{told}");
    assert!(told.contains("refused"), "{told}");
}

const ONE_CLIENT: &str =
    "HTTP/1.1 200 OK\r\ncontent-length: 38\r\n\r\nctrlmesh_connections{leg=\"outbound\"} 1";
const NO_CLIENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-length: 38\r\n\r\nctrlmesh_connections{leg=\"outbound\"} 0";

#[test]
fn i13_the_hook_ends_when_no_client_has_come_for_a_while() {
    let began = Instant::now();
    let metrics = serve_at("/metrics", &[NO_CLIENTS, ONE_CLIENT, NO_CLIENTS]);
    let ended = wait_for("no-clients", &metrics, 60);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
}

#[test]
fn i13_the_hook_waits_as_long_as_there_is_a_client() {
    let ended = wait_for("no-clients", &serve_at("/metrics", &[ONE_CLIENT]), 2);
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(69), "{told}");
    assert!(told.contains("has clients after 2 s"), "{told}");
}

#[test]
fn i13_the_hook_does_not_wait_for_a_proxy_that_is_gone() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ended = wait_for("no-clients", &free, 60);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
