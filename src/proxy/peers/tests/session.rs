use std::{rc::Rc, time::Duration};

use h2::server;
use tokio::{
    io::duplex,
    task::{JoinSet, LocalSet},
    time::{Instant, sleep},
};

use super::{identity, siblings, usable};
use crate::{
    peers::{
        Peers,
        link::Session,
        table::{Choice, Tried},
    },
    upstream::http2::{self, OF_API_SERVER},
};

#[tokio::test(start_paused = true)]
async fn i13_a_connection_is_idle_a_minute_after_its_last_request() {
    let test = async {
        let (near, far) = duplex(1 << 16);
        let both = tokio::join!(http2::connect(near, OF_API_SERVER), server::handshake(far));
        let (Ok((sender, connection)), Ok(mut server)) = both else { panic!("no connection") };
        let mut tasks = JoinSet::new();
        tasks.spawn_local(connection.run());
        tasks.spawn_local(async move { while server.accept().await.is_some() {} });
        let peers = Peers::default();
        let table = peers.table().next(
            &siblings(&["blue"]),
            &[usable("a", "blue")],
            &identity("own"),
            Instant::now(),
        );
        let session = Rc::new(Session::new(sender, Some(1)));
        let begun = Instant::now();
        session.idle().await;
        assert_eq!(begun.elapsed().as_secs(), 60);
        let Choice::Pod(chosen) = table.choose("blue", &Tried::default(), Instant::now()) else {
            panic!()
        };
        let Ok(line) = Rc::clone(&session).line(chosen).await else { panic!("it is open") };
        assert_eq!(session.idle_since(), None);
        let held = async {
            sleep(Duration::from_secs(100)).await;
            drop(line);
        };
        tokio::join!(session.idle(), held);
        assert_eq!(begun.elapsed().as_secs(), 60 + 100 + 60);
    };
    LocalSet::new().run_until(test).await;
}
