//! `ctrlmesh wait`, the postStart hook of a classic sidecar.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::{Command, Output},
    thread,
};

fn wait(admin: &str, seconds: u32) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
        .args(["wait", &format!("--admin={admin}"), &format!("--timeout={seconds}")])
        .output()
        .unwrap()
}

/// Answers one connection after the other, the last for ever.
fn serve(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let last = answers.last().unwrap();
        for answer in answers.iter().chain(std::iter::repeat(last)) {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = request.next().unwrap().unwrap();
            assert_eq!(first, "GET /readyz HTTP/1.1");
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
