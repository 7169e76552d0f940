//! Access to the admin port.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::{
    redirected::in_own_network,
    support::{
        proxy::{Files, Proxy, Setup},
        scrape, soon,
        upstream::Upstream,
    },
};

/// Two loopback addresses and two others, all of them the machine's own.
const LOOPBACKS: [&str; 2] = ["127.0.0.1", "::1"];
const OTHERS: [&str; 2] = ["10.96.0.1", "fd00:96::1"];

/// A proxy that has the admin port to itself, also at other addresses.
async fn proxy_with_admin_at(ip: &str) -> Proxy {
    let upstream = Upstream::start().await;
    let admin = SocketAddr::new(ip.parse().unwrap(), 5441);
    let setup = Setup { admin, ..Setup::of(&upstream) };
    setup.start(Files::new(&upstream.ca.pem)).await
}

/// The status of a page at another address of the admin port.
async fn status(proxy: &Proxy, ip: &str, path: &str) -> u16 {
    let addr = SocketAddr::new(ip.parse().unwrap(), proxy.admin.port());
    soon("the admin port", scrape::page(addr, path)).await.0
}

/// A connection to an address of our own comes from that very address.
#[test]
fn i08_the_admin_port_serves_both_families_and_debug_only_loopback() {
    for everywhere in ["0.0.0.0", "::"] {
        in_own_network(async move || {
            let proxy = proxy_with_admin_at(everywhere).await;
            for (ip, debug) in
                LOOPBACKS.map(|ip| (ip, 200)).into_iter().chain(OTHERS.map(|ip| (ip, 403)))
            {
                assert_eq!(status(&proxy, ip, "/readyz").await, 200, "{everywhere}: {ip}");
                assert_eq!(status(&proxy, ip, "/debug/config").await, debug, "{everywhere}: {ip}");
            }
        });
    }
}

#[test]
fn i08_any_other_admin_address_is_taken_literally() {
    for only in LOOPBACKS.into_iter().chain(OTHERS) {
        in_own_network(async move || {
            let proxy = proxy_with_admin_at(only).await;
            for ip in LOOPBACKS.into_iter().chain(OTHERS) {
                let addr = SocketAddr::new(ip.parse().unwrap(), proxy.admin.port());
                let reached = TcpStream::connect(addr).await;
                assert_eq!(reached.is_ok(), ip == only, "{only}: {ip}: {reached:?}");
            }
        });
    }
}

#[tokio::test]
async fn bad_silent_connections_to_the_admin_port_keep_no_probe_out() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(proxy.admin).await.unwrap());
    }
    let began = Instant::now();
    assert_eq!(proxy.admin_page("/readyz").await.0, 200);
    for tcp in &mut silent {
        let end = soon("the close", tcp.read(&mut [0; 1])).await;
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }
    assert!(began.elapsed() > Duration::from_secs(1), "the limit is 2 s");
}
