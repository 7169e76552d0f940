use std::{fs, path::Path, pin::pin};

use futures_util::poll;

use super::*;
use crate::{metrics::Metrics, policy_store::PolicyStore, positions::Resume};
use ctrlmesh_policy::{Epoch, GroupResource, Policy, from_documents};

impl Server {
    /// The API server at an address that no test dials.
    pub(crate) fn never_dialled(state_dir: Option<&Path>) -> Arc<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        fs::write(&path, rcgen::generate_simple_self_signed(Vec::new()).unwrap().cert.pem())
            .unwrap();
        Arc::new(Self {
            route: Route::Fixed("localhost:443".parse().unwrap()),
            tls: RootedTls::read(path, Clock::system()).unwrap(),
            sockets: OwnSockets::default(),
            pushdown: Pushdown::Off,
            abilities: Abilities::default(),
            positions: PositionStore::open(state_dir.map(Path::to_owned)).unwrap(),
        })
    }
}

#[test]
fn a_file_of_cas_is_read_again_when_it_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.crt");
    let ca = || rcgen::generate_simple_self_signed(Vec::new()).unwrap().cert.pem();
    let first = ca();
    fs::write(&path, &first).unwrap();
    let tls = RootedTls::read(path.clone(), Clock::system()).unwrap();
    let by_first = tls.get().clone();
    assert!(!tls.refresh().unwrap());
    fs::write(&path, ca()).unwrap();
    assert!(tls.refresh().unwrap());
    assert!(!tls.refresh().unwrap());
    let by_second = tls.get().clone();
    assert!(!Arc::ptr_eq(&by_first, &by_second));
    // What cannot be used is said each time, and the last good one stays.
    for _ in 0..2 {
        fs::write(&path, "none").unwrap();
        let bad = tls.refresh().unwrap_err().to_string();
        assert!(bad.ends_with("ca.crt holds no usable PEM certificate"), "{bad}");
        fs::remove_file(&path).unwrap();
        let bad = tls.refresh().unwrap_err().to_string();
        assert!(bad.starts_with("cannot read "), "{bad}");
    }
    assert!(Arc::ptr_eq(&tls.get(), &by_second));
    fs::write(&path, first).unwrap();
    assert!(tls.refresh().unwrap());
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
    let policy_store = PolicyStore::new(servers.to_vec(), None, Arc::new(Metrics::new().0));
    policy_store.install(policy("a"));
    let before = policy_store.active().unwrap();
    let positions = servers.each_ref().map(|server| {
        let pods = GroupResource::new("", "pods");
        server.positions.get().unwrap().keep(&pods, before.epoch, &before.sharding)
    });
    for (position, shown) in positions.iter().zip([100, 7]) {
        position.show(Resume::Number(shown), before.epoch);
    }
    policy_store.install(policy("b"));
    let may = |at| positions.each_ref().map(|to| to.may_resume(Resume::Number(at)));
    assert_eq!([7, 8, 100, 101].map(may), [[false; 2], [false, true], [false, true], [true; 2]]);
    for server in &servers {
        server.positions.store(epoch_of(&policy_store), &policy_store.active().unwrap().sharding);
    }
    let stored = dirs.each_ref().map(|dir| {
        let again = Server::never_dialled(Some(dir.path()));
        again.positions.raise_floors(before.epoch, &policy_store.active().unwrap().sharding);
        let position = again.positions.get().unwrap().of(&GroupResource::new("", "pods"));
        position.may_resume(Resume::Number(50))
    });
    assert_eq!(stored, [false, true]);
}

/// A process under policy `a` with its state directory.
fn process(dir: &Path) -> (Arc<Server>, PolicyStore) {
    let server = Server::never_dialled(Some(dir));
    let policy_store =
        PolicyStore::new(vec![Arc::clone(&server)], None, Arc::new(Metrics::new().0));
    policy_store.install(policy("a"));
    (server, policy_store)
}

fn epoch_of(policy_store: &PolicyStore) -> Epoch {
    policy_store.active().unwrap().epoch
}

/// Whether the state of a directory vouches for a policy.
fn vouches(dir: &Path) -> bool {
    let text = fs::read_to_string(dir.join("positions.json")).unwrap();
    !text.contains(r#""policy":null"#)
}

#[test]
fn t76_what_one_process_does_not_know_the_next_does_not_either() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("positions.json"), "{").unwrap();
    for _process in 0..2 {
        let (server, policy_store) = process(dir.path());
        server.positions.store(epoch_of(&policy_store), &policy_store.active().unwrap().sharding);
        let pods = server.positions.get().unwrap().of(&GroupResource::new("", "pods"));
        assert!(!pods.may_resume(Resume::Number(1 << 40)));
    }
}

#[test]
fn t76_the_state_vouches_for_no_policy_while_a_change_back_is_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let (first, policy_store) = process(dir.path());
    first.positions.store(epoch_of(&policy_store), &policy_store.active().unwrap().sharding);
    let (second, policy_store) = process(dir.path());
    policy_store.install(policy("b"));
    second.positions.store(epoch_of(&policy_store), &policy_store.active().unwrap().sharding);
    assert!(vouches(dir.path()));
    policy_store.install(policy("a"));
    assert!(!vouches(dir.path()));
}

#[tokio::test]
async fn t76_the_state_is_stored_when_the_requests_of_all_former_policies_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, policy_store) = process(dir.path());
    let of_a = policy_store.active().unwrap();
    policy_store.install(policy("b"));
    let of_b = policy_store.active().unwrap();
    let mut keeping = pin!(policy_store.keep_past());
    assert!(poll!(&mut keeping).is_pending());
    policy_store.install(policy("c"));
    drop(of_a);
    assert!(poll!(&mut keeping).is_pending());
    assert!(!vouches(dir.path()), "a request of the second lasts");
    drop(of_b);
    assert!(poll!(&mut keeping).is_pending());
    assert!(vouches(dir.path()));
}

#[test]
fn the_state_vouches_for_no_policy_after_another_has_begun() {
    let dir = tempfile::tempdir().unwrap();
    let (server, policy_store) = process(dir.path());
    let of_a = policy_store.active().unwrap();
    server.positions.begin_change(&policy("b").sharding, false).unwrap();
    server.positions.store(of_a.epoch, &of_a.sharding);
    assert!(!vouches(dir.path()));
}

/// Each process is killed in a change, so that none knows what was shown under the last two.
#[test]
fn processes_that_are_killed_in_changes_forget_no_more_than_the_oldest_scopes() {
    let dir = tempfile::tempdir().unwrap();
    let pods = GroupResource::new("", "pods");
    for round in 1..=40_u64 {
        let name = |round: u64| format!("s{round}");
        let server = Server::never_dialled(Some(dir.path()));
        let policy_store =
            PolicyStore::new(vec![Arc::clone(&server)], None, Arc::new(Metrics::new().0));
        policy_store.install(policy(&name(round)));
        let active = policy_store.active().unwrap();
        let positions = server.positions.get().unwrap();
        let position = positions.keep(&pods, active.epoch, &active.sharding);
        if let Some(question) = position.question() {
            position.settle(question, Resume::Number(10 * round));
        }
        let former = |at| positions.former(&pods, &position, at, &active.sharding);
        if round > 1 {
            let last = former(10 * round - 1).unwrap();
            assert!((1..=2).contains(&last.len()), "{round}: {last:?}");
        }
        assert_eq!(former(1).is_none(), round == 1 || round > 16, "{round}");
        position.show(Resume::Number(10 * round + 9), active.epoch);
        drop(active);
        server.positions.store(epoch_of(&policy_store), &policy_store.active().unwrap().sharding);
        server.positions.begin_change(&policy(&name(round + 1)).sharding, false).unwrap();
    }
}
