//! The init container runs again while connections of the app are open.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::lab::{APP_UID, BACKENDS, Lab, TIMEOUT, ask, become_user};
use crate::traffic::{Actors, V4, V6, wrong};

const BOTH: [&str; 2] = ["--upstream=10.96.0.1:443", "--upstream=[fd00:96::1]:443"];

fn saved(lab: &Lab, backend: &str) -> [String; 2] {
    [false, true].map(|v6| lab.saved(backend, v6))
}

#[test]
fn i03_five_runs_leave_what_one_leaves() {
    for backend in BACKENDS {
        let lab = Lab::new();
        let run =
            || lab.init(&[BOTH[0], BOTH[1], "--inbound=9443:5445", "--backend", backend]).ok();
        run();
        let first = saved(&lab, backend);
        assert!(first.iter().all(|text| text.contains("-A CTRLMESH_IN")), "{first:?}");
        for _ in 0..4 {
            run();
            assert_eq!(saved(&lab, backend), first);
        }
    }
}

#[test]
fn i03_another_plan_replaces_the_first_without_rest() {
    let other: &[&str] = &["--upstream=10.96.0.2:6443", "--proxy-uid=7", "--outbound-port=15443"];
    for backend in BACKENDS {
        let choice = ["--backend", backend];
        let fresh = Lab::new();
        // This creates both families' tables, as a first plan does.
        fresh.init(&[&BOTH[..], &choice].concat()).ok();
        fresh.init(&[&["--clean"], &choice[..]].concat()).ok();
        fresh.init(&[other, &choice].concat()).ok();

        let lab = Lab::new();
        lab.init(&[&BOTH[..], &["--inbound=9443:5445"], &choice].concat()).ok();
        lab.init(&[other, &choice].concat()).ok().says("IPv6: rules of an earlier plan removed");
        assert_eq!(saved(&lab, backend), saved(&fresh, backend));
        assert!(!saved(&lab, backend)[1].contains("CTRLMESH"));
    }
}

#[test]
fn i03_a_run_that_broke_off_between_families_is_healed_by_the_next() {
    let all = ["iptables-nft-save", "iptables-nft-restore", "ip6tables-nft-save"];
    let lab = Lab::new();
    // The second restore of IPv6 is the commit; the first is the proof of the backend.
    let mark = lab.directory().join("called").display().to_string();
    let dies =
        format!("[ -e {mark} ] && exit 9; : > {mark}; exec /usr/sbin/ip6tables-nft-restore \"$@\"");
    let path = lab.programs(&all, &[("ip6tables-nft-restore", &dies)]);
    lab.init(&[BOTH[0], BOTH[1], "--backend=nft"]).path(&path).exits(69);
    assert!(lab.saved("nft", false).contains("CTRLMESH_OUT"));
    assert!(!lab.saved("nft", true).contains("CTRLMESH_OUT"));
    lab.init(&BOTH).ok();
    let _actors = Actors::start(&lab);
    for family in [V4, V6] {
        assert_eq!(wrong(&lab, family, true, false), Vec::<String>::new());
    }
}

#[test]
fn i03_a_jump_that_lost_its_place_is_moved_back() {
    for (backend, v6) in [("nft", false), ("nft", true), ("legacy", false), ("legacy", true)] {
        let lab = Lab::new();
        let tool = if v6 { "ip6tables" } else { "iptables" };
        let init = || lab.init(&[BOTH[usize::from(v6)], "--backend", backend]).ok();
        init();
        let first = lab.saved(backend, v6);
        lab.sh(&format!("{tool}-{backend} -t nat -I OUTPUT 1 -p tcp --dport 443 -j ACCEPT"));
        let disturbed = lab.saved(backend, v6);
        assert!(disturbed.find("ACCEPT -p").is_none() && disturbed != first);
        init();
        let healed = lab.saved(backend, v6);
        let outputs: Vec<&str> =
            healed.lines().filter(|line| line.starts_with("-A OUTPUT")).collect();
        assert!(outputs[0].ends_with("-j CTRLMESH_OUT"), "{healed}");
        assert!(outputs[1].ends_with("-j ACCEPT"), "{healed}");
        assert_eq!(outputs.len(), 2);
    }
}

/// Writes and reads back until `is_over`; every byte must come back.
fn stream_until(is_over: &AtomicBool, rounds: &AtomicUsize, stream: &mut TcpStream) {
    let mut block = [0; 1024];
    let mut back = [0; 1024];
    while !is_over.load(Ordering::Acquire) {
        fastrand::fill(&mut block);
        stream.write_all(&block).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert_eq!(block, back);
        rounds.fetch_add(1, Ordering::AcqRel);
    }
}

fn connect_until(is_over: &AtomicBool, rounds: &AtomicUsize, address: &str) {
    become_user(APP_UID);
    while !is_over.load(Ordering::Acquire) {
        assert_eq!(ask(address), format!("proxy {address}"));
        rounds.fetch_add(1, Ordering::AcqRel);
    }
}

/// Ends the loops even if the rerun panics, so that the test fails instead of hanging.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn i04_rerun_cuts_nothing_and_lets_nothing_past_nft() {
    rerun_cuts_nothing_and_lets_nothing_past("nft");
}

#[test]
fn i04_rerun_cuts_nothing_and_lets_nothing_past_legacy() {
    rerun_cuts_nothing_and_lets_nothing_past("legacy");
}

fn rerun_cuts_nothing_and_lets_nothing_past(backend: &str) {
    const ADDRESSES: [&str; 2] = ["10.96.0.1:443", "[fd00:96::1]:443"];
    let lab = Lab::new();
    let init = |more: &[&str]| lab.init(&[&BOTH[..], more, &["--backend", backend]].concat());
    init(&[]).ok();
    let actors = Actors::start(&lab);
    let mut streams = ADDRESSES.map(|address| lab.open(address).0);
    let is_over = AtomicBool::new(false);
    let [echoes, connects] = [(); 2].map(|()| AtomicUsize::new(0));
    thread::scope(|scope| {
        for stream in &mut streams {
            scope.spawn(|| stream_until(&is_over, &echoes, stream));
        }
        for address in ADDRESSES {
            let (is_over, connects) = (&is_over, &connects);
            let pod = &lab.pod;
            scope.spawn(move || pod.run(|| connect_until(is_over, connects, address)));
        }
        let _over = Over(&is_over);
        for round in 0..20 {
            // Every other run has another plan, so that bodies and chains really change.
            let more: &[&str] = match round % 2 {
                0 => &[],
                _ => &["--upstream=10.96.0.2:443", "--inbound=9443:5445"],
            };
            init(more).ok().says("5443 is taken, so this is a rerun under a live proxy");
        }
    });
    assert!(echoes.into_inner() > 20 && connects.into_inner() > 20);
    assert_eq!(actors.api.iter().map(|api| api.accepted()).sum::<usize>(), 0, "{backend}");
    removing_first_would_cut(&lab, &mut streams, backend);
}

/// The control: the same streams break if rules are removed and added again.
fn removing_first_would_cut(lab: &Lab, streams: &mut [TcpStream], backend: &str) {
    lab.init(&["--clean", "--backend", backend]).ok();
    for stream in streams {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let outcome = stream.write_all(b"x").and_then(|()| stream.read_exact(&mut [0]));
        assert!(outcome.is_err(), "{backend}: the stream survived, so this test shows nothing");
    }
}
