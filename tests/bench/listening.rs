//! What a look for a listening socket costs, next to 20 servers and 1,000 connections.
//!
//! `cargo bench -p ctrlmesh-bench --bench listening`. Linux lists sockets that listen first, and
//! connections in no order; a port that no one listens on is looked for to the end.

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that cannot run ends")]

use std::{
    hint::black_box,
    net::{TcpListener, TcpStream},
};

use criterion::{Criterion, criterion_group, criterion_main};
use ctrlmesh::net::listening::{Search, Wanted};

fn looks(criterion: &mut Criterion) {
    let servers: Vec<_> = (0..20).map(|_| TcpListener::bind("0.0.0.0:0").unwrap()).collect();
    let of_both = TcpListener::bind("[::]:0").unwrap();
    let both = of_both.local_addr().unwrap();
    let (open, closed) = (servers[10].local_addr().unwrap(), TcpListener::bind("0.0.0.0:0"));
    // Dropped at once: free, and not taken again while other ports are.
    let closed = closed.unwrap().local_addr().unwrap();
    let mut group = criterion.benchmark_group("look");
    for connections in [0, 1000] {
        let ends: Vec<_> = (0..connections)
            .map(|_| (TcpStream::connect(("127.0.0.1", open.port())), servers[10].accept()))
            .collect();
        assert!(ends.iter().all(|(client, server)| client.is_ok() && server.is_ok()));
        for (name, addr) in [("listens on [::]", both), ("on 0.0.0.0", open), ("nowhere", closed)] {
            let wanted = Wanted::OfPod(addr.port().try_into().unwrap());
            let mut search = Search::default();
            assert_eq!(search.finds(wanted).unwrap(), name != "nowhere");
            group.bench_function(format!("{name}, {connections} connections"), |bencher| {
                bencher.iter(|| search.finds(black_box(wanted)).unwrap());
            });
        }
    }
    group.finish();
}

criterion_group!(all, looks);
criterion_main!(all);
