//! The ways into the proxy that are not the usual one: by IPv6, and by the environment; and what
//! stands at the end of each.

use std::{
    collections::BTreeSet,
    fs,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ctrlmesh_e2e::{Authority, Binaries, Families, NAMESPACE, Network, Shards, Widget, until};
use serde_json::{Value, json};

use crate::node::{scene::Turn, sidecars::delete_operators};

const OPERATOR: &str = "system:serviceaccount:demo:demo-operator";
const LEASE: &str = "demo-operator---blue";
const WITHIN: Duration = Duration::from_secs(60);
/// Every name of the API server that its clients know it by, as in its own certificate.
const NAMES: [&str; 4] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

#[test]
fn i08_an_operator_works_on_a_node_with_both_families_by_ipv4() -> Result<()> {
    let shards = Shards::start(Binaries::from_env()?, Families::Dual)?;
    shards.draw("blue", &["ant"])?;
    shards.run_operator("blue")?;
    redirected_are(&shards, Some("10.96.0.1"), None)?;
    an_operator_keeps_to_its_shard(&shards)?;
    t65_the_leaf_has_the_names_of_the_api_server(&shards, "10.96.0.1")
}

/// The API server's Service has one address, of the node's first family.
#[test]
fn i08_an_operator_works_on_a_node_with_ipv6_first() -> Result<()> {
    let shards = Shards::start(Binaries::from_env()?, Families::Ipv6First)?;
    shards.draw("blue", &["ant"])?;
    shards.run_operator("blue")?;
    redirected_are(&shards, None, Some("fd00:96::1"))?;
    an_operator_keeps_to_its_shard(&shards)?;
    t65_the_leaf_has_the_names_of_the_api_server(&shards, "fd00:96::1")
}

/// Without a privilege: the namespace takes no pod that could program redirect rules.
#[test]
fn an_operator_works_in_env_mode_where_pods_are_restricted() -> Result<()> {
    let shards = Turn::wait()?;
    let level = "pod-security.kubernetes.io/enforce=restricted";
    shards.node().kubectl(&["label", "namespace", NAMESPACE, level])?;
    let refused = shards.node().kubectl(&["apply", "--dry-run=server", "-f", &a_pod(&shards)?]);
    let refused = refused.err().context("a pod with redirect rules was taken")?.to_string();
    ensure!(refused.contains("violates PodSecurity") && refused.contains("NET_ADMIN"), "{refused}");

    shards.draw("blue", &["ant"])?;
    let mut deployment: Value = serde_json::from_str(&shards.deployment("blue")?)?;
    deployment["spec"]["template"]["metadata"]["annotations"]["ctrlmesh.kusionstack.io/enable-iptables"] =
        "false".into();
    let injected = shards.mesh().inject(&deployment.to_string(), &[])?;
    ensure!(!injected.contains("ctrlmesh-init"), "{injected}");
    shards.run_manifest("blue", &injected)?;
    redirected_are(&shards, None, None)?;
    an_operator_keeps_to_its_shard(&shards)
}

/// The proxy's own calls trust the cluster's CA, so it has a policy. It verifies the API server by
/// another CA, as after a change of the cluster's CA that did not reach the pod.
#[test]
fn t65_an_upstream_of_another_ca_gets_no_byte_of_the_operator() -> Result<()> {
    let shards = Turn::wait()?;
    shards.draw("blue", &["ant"])?;
    shards.run_operator("blue")?;
    shards.create_widgets(&["ant"], 1)?;
    await_handled(&shards, "ant-1")?;
    delete_operators(&shards)?;

    let foreign = shards.node().api().directory().join("foreign-ca.crt");
    fs::write(&foreign, Authority::new("kubernetes-ca")?.cert_pem())?;
    let foreign = format!("--from-file=ca.crt={}", foreign.display());
    let create = ["create", "configmap", "foreign-ca", &foreign];
    shards.node().kubectl(&[&["--namespace", NAMESPACE], &create[..]].concat())?;
    let entries = shards.node().api().audit().entries()?.len();
    shards.node().apply(&with_foreign_ca(&shards, &shards.injected("blue")?)?)?;
    let pod = until("the proxy turns the operator away", WITHIN, || {
        let Some(pod) = shards.pods()?.pop() else { return Ok(None) };
        let metrics = shards.metrics(&pod.name).unwrap_or_default();
        let closed = "ctrlmesh_closed_connections_total{reason=\"upstream_untrusted\"}";
        Ok(metrics.lines().any(|line| line.starts_with(closed)).then_some(pod.name))
    })?;
    // The operator asks for its kinds first of all and ends when it gets no answer.
    let log = until("the operator says why it ends", WITHIN, || {
        let logs = ["--namespace", NAMESPACE, "logs", &pod, "--container=operator"];
        let log = shards.node().kubectl(&logs).unwrap_or_default();
        Ok((log.contains("\"level\":\"error\"") || log.contains("ERROR")).then_some(log))
    })?;
    println!("the operator: {}", log.lines().next().unwrap_or_default());
    let mut own = 0;
    for entry in shards.node().api().audit().entries()?.into_iter().skip(entries) {
        if entry.user.username == OPERATOR {
            let agent = entry.user_agent.unwrap_or_default();
            ensure!(agent.starts_with("ctrlmesh/"), "{agent}: {}", entry.request_uri);
            own += 1;
        }
    }
    println!("requests of the proxy itself: {own}, of the operator: 0");
    ensure!(own > 0, "the audit log has the pod's requests");
    Ok(())
}

/// The operator handles the Widgets of its shard and does not read others. Its lock is its shard's.
/// It follows a boundary that moves.
fn an_operator_keeps_to_its_shard(shards: &Shards) -> Result<()> {
    shards.create_widgets(&["bee", "ant"], 2)?;
    let pod = await_handled(shards, "ant-2")?;
    let leases = shards.leases()?;
    let holder = leases.get(LEASE).with_context(|| format!("{LEASE}: {leases:?}"))?;
    ensure!(holder.starts_with(&pod), "{holder} holds the lock of {pod}");
    ensure!(!leases.contains_key("demo-operator"), "the short name is nobody's");
    ensure!(teams_read(shards, &pod)? == ["ant".to_owned()].into(), "before the move");

    let moved = Instant::now();
    shards.draw("blue", &["bee"])?;
    await_handled(shards, "bee-2")?;
    println!("the boundary moved: handled after {:?}", moved.elapsed());
    shards.create_widgets(&["ant", "cow", "bee"], 3)?;
    await_handled(shards, "bee-3")?;
    let others: Vec<Widget> = shards.widgets()?;
    let of_nobody = others.iter().filter(|widget| ["ant-3", "cow-3"].contains(&&*widget.name));
    ensure!(of_nobody.clone().count() == 2, "{others:?}");
    ensure!(of_nobody.clone().all(|widget| widget.handled_by.is_empty()), "{others:?}");
    let read = teams_read(shards, &pod)?;
    ensure!(read == ["ant", "bee"].map(str::to_owned).into(), "after the move: {read:?}");
    ensure!(shards.pods()?.iter().all(|pod| pod.restarts == 0), "{:?}", shards.pods()?);
    Ok(())
}

/// Waits until the Widget was handled; the pod that did.
fn await_handled(shards: &Shards, name: &str) -> Result<String> {
    let is_done = |widget: &Widget| widget.name == name && !widget.handled_by.is_empty();
    until(&format!("{name} is handled"), WITHIN, || {
        Ok(shards.widgets()?.into_iter().find(is_done).map(|widget| widget.handled_by))
    })
    .with_context(|| {
        let logs = ["logs", "--selector=shard=blue", "--all-containers", "--prefix", "--tail=8"];
        shards
            .node()
            .kubectl(&[&["--namespace", NAMESPACE], &logs[..]].concat())
            .unwrap_or_default()
    })
}

/// The teams of all objects that the operator has read, by its own records.
fn teams_read(shards: &Shards, pod: &str) -> Result<BTreeSet<String>> {
    let logs = shards.node().logs(NAMESPACE, pod, "operator")?;
    let records = logs.lines().filter(|line| line.starts_with("{\"record\":\"read\""));
    records
        .map(|line| {
            let record: Value = serde_json::from_str(line)?;
            Ok(record["labels"]["team"].as_str().unwrap_or("none").to_owned())
        })
        .collect()
}

/// The rules in the operator's pod: in each family, one pair for the API server where it has an
/// address of it and none where it has not.
fn redirected_are(shards: &Shards, ipv4: Option<&str>, ipv6: Option<&str>) -> Result<()> {
    let network = operators_network(shards)?;
    for (save, prefix, address) in
        [("iptables-nft-save", 32, ipv4), ("ip6tables-nft-save", 128, ipv6)]
    {
        let saved = run(network.command(save).args(["-t", "nat"]))?;
        let ours: Vec<&str> = saved.lines().filter(|line| line.contains("CTRLMESH_OUT")).collect();
        println!("{save}: {ours:#?}");
        let Some(address) = address else {
            ensure!(ours.is_empty(), "{save}: {ours:?}");
            continue;
        };
        let to = format!("-A CTRLMESH_OUT -d {address}/{prefix} -p tcp -m tcp --dport 443 ");
        let bodies: Vec<&str> = ours.iter().filter_map(|line| line.strip_prefix(&to)).collect();
        let [pass, redirect] = bodies[..] else { bail!("{save}: {ours:?}") };
        ensure!(pass.contains("--uid-owner 1359") && pass.contains("-j ACCEPT"), "{pass}");
        ensure!(redirect.contains("-j REDIRECT --to-ports 5443"), "{redirect}");
    }
    Ok(())
}

/// From inside the pod, by a client that trusts the mesh CA alone: each name that the API server
/// has, and its address as a literal. A name that it has not is turned away.
fn t65_the_leaf_has_the_names_of_the_api_server(shards: &Shards, address: &str) -> Result<()> {
    let network = operators_network(shards)?;
    let api = shards.node().api();
    let token = api.token(NAMESPACE, "demo-operator")?;
    let literal = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    let ca = shards.mesh().mesh_ca().join("ca.crt");
    let ask = |host: &str| {
        let mut curl = network.command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20"]).arg("--cacert").arg(&ca);
        curl.args(["--header", &format!("Authorization: Bearer {token}")]);
        if host != literal {
            curl.args(["--resolve", &format!("{host}:443:{literal}")]);
        }
        run(curl.arg(format!("https://{host}/apis/demo.example.com/v1alpha1/widgets")))
    };
    for host in NAMES.iter().copied().chain([literal.as_str()]) {
        let list: Value = serde_json::from_str(&ask(host)?)?;
        let items = list["items"].as_array().with_context(|| format!("{host}: {list}"))?;
        ensure!(!items.is_empty(), "{host}: {list}");
        let is_own = |item: &Value| {
            ["ant", "bee"].map(Value::from).contains(&item["metadata"]["labels"]["team"])
        };
        ensure!(items.iter().all(is_own), "{host}: {list}");
    }
    let refused = ask("kubernetes.example.com").err().context("a name of someone else's")?;
    println!("another name: {refused}");

    let script = format!(
        "openssl s_client -connect {literal}:443 -CAfile {} -verify_ip {address} \
         -verify_return_error </dev/null 2>/dev/null \
         | openssl x509 -noout -ext subjectAltName",
        ca.display()
    );
    let shown = run(network.command("sh").args(["-c", &script]))?;
    let shown: BTreeSet<&str> =
        shown.lines().skip(1).flat_map(|line| line.split(", ")).map(str::trim).collect();
    // The pod itself, for other pods.
    let (pods, shown): (BTreeSet<&str>, BTreeSet<&str>) =
        shown.into_iter().partition(|name| name.starts_with("URI:spiffe://ctrlmesh/"));
    ensure!(pods.len() == 1, "{pods:?}");
    println!("the leaf certifies {shown:?}");
    let long = "IP Address:0:0:0:0:0:0:0:1";
    let address = match address {
        "fd00:96::1" => "IP Address:FD00:96:0:0:0:0:0:1".to_owned(),
        ipv4 => format!("IP Address:{ipv4}"),
    };
    let names: Vec<String> = NAMES.iter().map(|name| format!("DNS:{name}")).collect();
    let wanted: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let wanted: BTreeSet<&str> = wanted
        .into_iter()
        .chain(["DNS:localhost", "IP Address:127.0.0.1", long, &address])
        .collect();
    ensure!(shown == wanted, "{shown:?} and not {wanted:?}");
    Ok(())
}

fn operators_network(shards: &Shards) -> Result<Network> {
    let pod = shards.pods()?.pop().context("a pod of the operator")?;
    shards.mesh().pod_network(NAMESPACE, &pod.name)
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        // Not the arguments: a token may be among them.
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {errors}", command.get_program().display(), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A file with one pod of the operator as it is injected usually.
fn a_pod(shards: &Shards) -> Result<String> {
    let deployment: Value = serde_json::from_str(&shards.deployment("green")?)?;
    let mut pod = deployment["spec"]["template"].clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = "usual".into();
    pod["metadata"]["namespace"] = NAMESPACE.into();
    let path = shards.node().api().directory().join("usual.yaml");
    fs::write(&path, shards.mesh().inject(&pod.to_string(), &[])?)?;
    Ok(path.to_string_lossy().into_owned())
}

/// The injected manifest, in which the proxy verifies the API server by the ConfigMap foreign-ca.
fn with_foreign_ca(shards: &Shards, injected: &str) -> Result<String> {
    let (others, deployment) =
        injected.rsplit_once("---\n").context("the Deployment is the last document")?;
    let as_json = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
    let kubectl = shards.node().api().kubectl_client();
    let mut deployment: Value =
        serde_json::from_str(&kubectl.run_with_input(&as_json, deployment)?)?;
    let spec = &mut deployment["spec"]["template"]["spec"];
    let volumes = spec["volumes"].as_array_mut().context("volumes")?;
    volumes.push(json!({ "name": "foreign-ca", "configMap": { "name": "foreign-ca" } }));
    let containers = spec["initContainers"].as_array_mut().context("initContainers")?;
    let proxy = containers.iter_mut().find(|container| container["name"] == "ctrlmesh-proxy");
    let proxy = proxy.context("the proxy")?;
    let mounts = proxy["volumeMounts"].as_array_mut().context("volumeMounts")?;
    mounts.push(json!({ "name": "foreign-ca", "mountPath": "/foreign" }));
    let args = proxy["args"].as_array_mut().context("args")?;
    args.retain(|arg| !arg.as_str().unwrap_or_default().starts_with("--upstream-ca="));
    args.push("--upstream-ca=/foreign/ca.crt".into());
    Ok(format!("{others}---\n{deployment}\n"))
}
