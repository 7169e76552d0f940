//! A replica that asks an API server which is behind: what it reads is old, what it writes is not.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Manager, until};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

use crate::manager::scene::{
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

    // It signs a little later for a pod that it has not heard of yet. It never signs for a pod that
    // is gone.
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

/// Makes a pod of the shard `blue`, ready or not.
fn run(api: &ApiServer, name: &str, is_ready: bool) -> Result<()> {
    let mut made = pod(OPERATORS, name);
    made["metadata"]["labels"]["shard"] = json!("blue");
    create(api, &made, &[])?;
    let is_ready = if is_ready { "True" } else { "False" };
    let conditions = json!([{ "type": "Ready", "status": is_ready }]);
    let patch = json!({ "status": { "phase": "Running", "conditions": conditions } }).to_string();
    let args = ["patch", "pod", name, "-n", OPERATORS, "--subresource=status", "--type=merge"];
    api.kubectl(&[&args[..], &["-p", &patch]].concat()).map(drop)
}

/// The pods that the config says it has, and the reason of its condition `Ready`.
fn counted(api: &ApiServer) -> Result<(Value, Option<String>)> {
    let path = "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/operators/shardingconfigs/blue";
    let status = get(api, path)?.context("the config")?["status"].take();
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    let reason = ready.and_then(|ready| ready["reason"].as_str()).map(str::to_owned);
    Ok((json!([status["pods"]["selected"], status["pods"]["ready"]]), reason))
}

/// Of two replicas one hears of everything late. Each leads in turn, since the other is killed.
#[test]
fn bad_i15_pods_are_counted_right_whichever_replica_leads() -> Result<()> {
    let api = cluster()?;
    let slow = api.beside()?;
    create(&api, &let_in(config(OPERATORS)), &[])?;
    let mut replicas = [
        Manager::start(&api, "manager-0", &[])?,
        Manager::start_at(&api, &slow.url(), "manager-1", &[])?,
    ];
    replicas[0].receive_reviews(&api)?;
    replicas[0].wait_ready()?;
    slow.fall_behind(BEHIND)?;
    let says = |pods: Value, reason: &str| {
        until(&format!("{pods} pods, {reason}"), 2 * SOON, || {
            let is = counted(&api)?;
            Ok((is == (pods.clone(), Some(reason.to_owned()))).then_some(()))
        })
        .with_context(|| format!("{:?}", counted(&api)))
    };
    says(json!([0, 0]), "NoPods")?;
    for (round, leads) in [1, 0, 1].into_iter().enumerate() {
        let name = |at: u32| format!("of-{round}-{at}");
        (0..4).try_for_each(|at| run(&api, &name(at), at > 0))?;
        replicas[1 - leads].kill()?;
        api.kubectl(&["delete", "pod", &name(1), "-n", OPERATORS, "--now"])?;
        until("the other one leads", 2 * SOON, || {
            Ok((replicas[leads].metric("ctrlmesh_manager_leader")? > 0.0).then_some(()))
        })?;
        replicas[leads].receive_reviews(&api)?;
        says(json!([3, 2]), "PodsNotReady")?;
        api.kubectl(&["delete", "pod", &name(0), "-n", OPERATORS, "--now"])?;
        says(json!([2, 2]), "PodsReady")?;
        for at in 2..4 {
            api.kubectl(&["delete", "pod", &name(at), "-n", OPERATORS, "--now"])?;
        }
        says(json!([0, 0]), "NoPods")?;
        replicas[1 - leads].start_again()?;
    }
    Ok(())
}
