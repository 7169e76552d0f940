//! A replica that asks an API server which is behind: what it reads is old, what it writes is not.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Manager, until};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::scene::{
    AUDIENCE, OPERATORS, SECRET, SOON, at, authorities, bundle, cluster, config, create, get,
    let_in, pod, token,
};

/// The delay of everything that etcd says to it. Each write waits for several answers, and a candidate
/// for its Lease's no longer than five seconds.
const BEHIND: Duration = Duration::from_millis(1200);

#[test]
fn bad_i12_a_leader_behind_the_others_makes_no_other_authorities_and_signs_for_nobody_gone()
-> Result<()> {
    let api = cluster()?;
    let slow = api.beside()?;
    slow.fall_behind(BEHIND)?;
    create(&api, &let_in(config(OPERATORS)), &[])?;
    let mut first = Manager::start(&api, "manager-0", &[])?;
    first.receive_reviews(&api)?;
    until("there are authorities", SOON, || get(&api, &at(Manager::NAMESPACE, "secrets", SECRET)))?;
    let before = authorities(&api)?;
    first.kill()?;

    // It begins by a state in which there were none.
    let mut second = Manager::start_at(&api, &slow.url(), "manager-1", &[])?;
    second.receive_reviews(&api)?;
    second.wait_ready()?;
    until(
        "it leads",
        SOON,
        || Ok((second.metric("ctrlmesh_manager_leader")? > 0.0).then_some(())),
    )?;
    let cas = bundle(&api, OPERATORS)?["manager.crt"].as_str().context("CAs")?.to_owned();
    ensure!(authorities(&api)? == before, "other authorities");

    // What it has not heard of yet it signs for a little later, and never for what is gone.
    let made = create(&api, &pod(OPERATORS, "one"), &[])?;
    let token = token(&api, Some(AUDIENCE), Some(&made))?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let request = CertificateParams::new(Vec::new())?.serialize_request(&key)?;
    let ask = || second.ask_for_leaf(&cas, &token, request.der());
    until("a leaf", SOON, || Ok((ask()?.status == 200).then_some(())))?;
    api.kubectl(&["delete", "pod", "one", "-n", OPERATORS, "--now"])?;
    let refused = ask()?;
    ensure!([401, 403].contains(&refused.status), "{}: {}", refused.status, refused.text);

    // Whatever it restores is what was there.
    api.kubectl(&["delete", "secret", SECRET, "-n", Manager::NAMESPACE])?;
    until("the Secret is back", SOON, || get(&api, &at(Manager::NAMESPACE, "secrets", SECRET)))?;
    ensure!(authorities(&api)? == before, "other authorities");
    second.stop()
}
