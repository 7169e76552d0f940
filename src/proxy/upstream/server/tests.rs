use std::path::Path;

use super::*;
use crate::{
    net::Clock,
    policy::{GroupResource, Policy, from_documents, positions::Resume},
    proxy::{feed::Feed, metrics::Metrics},
};

impl Server {
    /// The API server at an address that no test dials.
    pub(in crate::proxy) fn never_dialled(state_dir: Option<&Path>) -> Arc<Self> {
        let ca = rcgen::generate_simple_self_signed(Vec::new()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.cert.der().clone()).unwrap();
        Arc::new(Self {
            route: Route::Fixed("localhost:443".parse().unwrap()),
            tls: ArcSwap::from_pointee(UpstreamTls::new(roots, &Clock::system()).unwrap()),
            sockets: OwnSockets::default(),
            pushdown: Pushdown::Off,
            positions: KeptPositions::open(state_dir.map(Path::to_owned)).unwrap(),
        })
    }
}

fn policy(limit: &str) -> Policy {
    let yaml = format!(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
         metadata: {{name: blue}}\n\
         spec: {{selector: {{matchLabels: {{app: op}}}}, limits: [{{selector: \
         {{matchLabels: {{shard: {limit}}}}}}}]}}\n"
    );
    from_documents(yaml.as_bytes(), "blue", None).unwrap().resolve(None).unwrap()
}

#[test]
fn a_change_raises_the_floors_of_each_server_by_its_own_positions() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let servers = dirs.each_ref().map(|dir| Server::never_dialled(Some(dir.path())));
    let feed = Feed::new(servers.to_vec(), Arc::new(Metrics::new().0));
    feed.install(policy("a"));
    let before = feed.in_force().unwrap();
    let positions = servers.each_ref().map(|server| {
        let pods = GroupResource::new("", "pods");
        server.positions.get().unwrap().keep(&pods, before.epoch, &before.sharding)
    });
    for (position, shown) in positions.iter().zip([100, 7]) {
        position.show(Resume::Number(shown), before.epoch);
    }
    feed.install(policy("b"));
    let may = |at| positions.each_ref().map(|to| to.may_resume(Resume::Number(at)));
    assert_eq!([7, 8, 100, 101].map(may), [[false; 2], [false, true], [false, true], [true; 2]]);
    for server in &servers {
        server.positions.store(&feed.in_force().unwrap().sharding);
    }
    let stored = dirs.each_ref().map(|dir| {
        let again = Server::never_dialled(Some(dir.path()));
        again.positions.raise_floors(before.epoch, &feed.in_force().unwrap().sharding);
        let position = again.positions.get().unwrap().of(&GroupResource::new("", "pods"));
        position.may_resume(Resume::Number(50))
    });
    assert_eq!(stored, [false, true]);
}
