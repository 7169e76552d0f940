//! Clients of every kind, by every name, in both versions of HTTP.

use std::{
    collections::BTreeMap,
    net::{Ipv6Addr, TcpListener},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy, ReservedPort, python_client};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;

use crate::direct::bed::{Bed, LIMIT, Way, config_maps, names, output};

pub(crate) async fn kube_client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// `https://HOST:PORT` for every address and name by which the proxy is reached here.
fn ways_in(proxy: &Proxy) -> Vec<String> {
    let port = proxy.address().port();
    let mut hosts = vec!["127.0.0.1", "localhost"];
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        hosts.push("[::1]");
    } else {
        println!("i14: this machine has no ::1");
    }
    hosts.into_iter().map(|host| format!("https://{host}:{port}")).collect()
}

/// A bed with an object of the shard and one of another.
fn two_objects(name: &str) -> Result<(Bed, Proxy)> {
    let bed = Bed::new(name)?;
    bed.config_map("mine", "team=a")?;
    bed.config_map("theirs", "team=b")?;
    let proxy = bed.proxy(&["a"])?;
    Ok((bed, proxy))
}

#[test]
fn i14_t65_curl_by_every_name() -> Result<()> {
    let (bed, proxy) = two_objects("i14_curl")?;
    let port = proxy.address().port();
    let path = bed.path("configmaps");
    let list = |options: &[&str], url: &str| -> Result<Vec<String>> {
        let mut curl = bed.curl_without_token(&Way::Through(&proxy));
        curl.arg("-H").arg(format!("Authorization: Bearer {}", bed.token())).args(options);
        let answer = output(curl.args(["-w", "\n%{http_version}"]).arg(format!("{url}{path}")))?;
        let text = String::from_utf8(answer)?;
        let (body, version) = text.rsplit_once('\n').context("the version's own line")?;
        let wanted = if options[0] == "--http2" { "2" } else { "1.1" };
        ensure!(version == wanted, "HTTP {version} instead of {wanted}");
        Ok(names(&serde_json::from_str(body)?))
    };
    for version in ["--http1.1", "--http2"] {
        for url in ways_in(&proxy) {
            ensure!(list(&[version], &url).context(url.clone())? == ["mine"], "{version} {url}");
        }
        for name in [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "localhost",
        ] {
            let to = format!("{name}:443:127.0.0.1:{port}");
            let url = format!("https://{name}");
            let listed = list(&[version, "--connect-to", &to], &url).context(name)?;
            ensure!(listed == ["mine"], "{version} {name}");
        }
    }
    // A name that the leaf does not cover gets no answer, and nothing goes upstream.
    let to = format!("example.com:443:127.0.0.1:{port}");
    ensure!(list(&["--http2", "--connect-to", &to], "https://example.com").is_err());
    let closed =
        proxy.metric(r#"ctrlmesh_closed_connections_total{reason="unknown_server_name"}"#)?;
    ensure!(closed == 1.0, "{closed} connections closed for their name");
    Ok(())
}

#[test]
fn i14_client_go_by_every_name_with_every_verb() -> Result<()> {
    let (bed, proxy) = two_objects("i14_go")?;
    for (at, url) in ways_in(&proxy).iter().enumerate() {
        for (version, encoding) in [("--http1", "--json"), ("--http1=false", "--protobuf")] {
            let name = format!("verbs-{at}{version}").replace('=', "-");
            let mut command = bed.clients_command(&Way::Through(&proxy), "verbs")?;
            command
                .args(["--server", url, "--name", &name, "--labels", "team=a", version, encoding]);
            if at == 0 {
                command.args(["--tls-server-name", "kubernetes.default.svc"]);
            }
            let program = bed.program("verbs", &command)?;
            let lines = program.finish(LIMIT).with_context(|| format!("{url} {version}"))?;
            let codes: Vec<(String, i64)> = lines
                .iter()
                .map(|line| {
                    (
                        line["verb"].as_str().unwrap_or_default().to_owned(),
                        line["code"].as_i64().unwrap_or_default(),
                    )
                })
                .collect();
            ensure!(
                codes.len() == 16 && codes.iter().all(|(_, code)| matches!(code, 200 | 201)),
                "{codes:?}"
            );
        }
    }
    let list = bed.api.client().get(&bed.path("configmaps"))?.json()?;
    ensure!(names(&list) == ["mine", "theirs"], "{:?}", names(&list));
    Ok(())
}

#[test]
fn i14_kube_rs_by_every_name() -> Result<()> {
    let (bed, proxy) = two_objects("i14_rust")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for url in ways_in(&proxy) {
        let kubeconfig = bed.api.kubeconfig_for(&url, proxy.ca_pem(), bed.token())?;
        let listed = runtime.block_on(async {
            let maps: Api<ConfigMap> =
                Api::namespaced(kube_client(&kubeconfig).await?, &bed.namespace);
            let list = maps.list(&ListParams::default()).await?;
            Ok::<_, anyhow::Error>(
                list.items.into_iter().filter_map(|map| map.metadata.name).collect::<Vec<_>>(),
            )
        });
        ensure!(listed.with_context(|| url.clone())? == ["mine"], "{url}");
    }
    Ok(())
}

/// Connects from a given port and asks for `/version`. The kernel grants the port as long as it is
/// not taken for the same destination.
const FROM_PORT: &str = r#"
import socket, ssl, struct, sys
port, to, ca = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sock = socket.socket()
IP_LOCAL_PORT_RANGE = 51
sock.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", port << 16 | port))
sock.connect(("127.0.0.1", to))
assert sock.getsockname()[1] == port
tls = ssl.create_default_context(cafile=ca).wrap_socket(sock, server_hostname="localhost")
tls.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
print(tls.recv(12).decode())
"#;

/// The local port of a connection of the proxy to the API server.
fn upstream_port(bed: &Bed, proxy: &Proxy) -> Result<u16> {
    let pid = proxy.pid().context("the proxy runs")?;
    let mut sockets = Vec::new();
    for file in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let target = std::fs::read_link(file?.path())?.display().to_string();
        sockets.extend(
            target
                .strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']'))
                .map(str::to_owned),
        );
    }
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let to_api = format!(":{:04X}", bed.api.address().port());
    let row = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut ours =
        row.filter(|row| row[2].ends_with(&to_api) && sockets.contains(&row[9].to_owned()));
    let row = ours.next().context("the proxy has no connection to the API server")?;
    let (_, port) = row[1].rsplit_once(':').context("an address has a port")?;
    Ok(u16::from_str_radix(port, 16)?)
}

#[test]
fn a_client_may_have_the_port_of_one_of_our_own_sockets() -> Result<()> {
    let (bed, proxy) = two_objects("same_port")?;
    let watch = bed.clients(&Way::Through(&proxy), "watches", &["--count=1"])?;
    watch.wait_for(LIMIT, |line| line["event"] == "open")?;
    let port = upstream_port(&bed, &proxy)?;
    let mut client = Command::new("python3");
    client.args(["-c", FROM_PORT, &port.to_string(), &proxy.address().port().to_string()]);
    let answer = output(client.arg(proxy.ca_file()))?;
    ensure!(answer == b"HTTP/1.1 200\n", "{}", String::from_utf8_lossy(&answer));
    ensure!(proxy.metric(r#"ctrlmesh_closed_connections_total{reason="loop"}"#)? == 0.0);
    watch.finish(LIMIT)?;
    Ok(())
}

#[test]
fn a_proxy_that_dials_itself_stops_at_once() -> Result<()> {
    let bed = Bed::new("itself")?;
    let port = ReservedPort::of_loopbacks()?;
    let own = format!("127.0.0.1:{}", port.number());
    let policy = config_maps(&["a"]);
    let proxy = Proxy::builder("mine", &policy).port(port).upstream(&own).start(&bed.api)?;
    let mut curl = bed.curl(&Way::Through(&proxy), "/version");
    ensure!(!curl.output()?.status.success());
    let closed = |reason: &str| {
        proxy.metric(&format!("ctrlmesh_closed_connections_total{{reason=\"{reason}\"}}"))
    };
    ensure!(closed("loop")? == 1.0, "{} loops", closed("loop")?);
    ensure!(closed("upstream_unreachable")? == 1.0);
    Ok(())
}

fn python(bed: &Bed, kubeconfig: &Path) -> Result<Program> {
    let (python, program) = python_client()?;
    let mut command = Command::new(python);
    command.arg(program).args(["listwatch", "--page-size", "3", "--namespace", &bed.namespace]);
    command.arg("--kubeconfig").arg(kubeconfig);
    bed.program("python", &command)
}

/// Name and resourceVersion of what the Python client's store holds.
fn python_store(program: &mut Program) -> Result<BTreeMap<String, String>> {
    let line = program.ask("", "store", LIMIT)?;
    let objects = line["objects"].as_array().context("a store has objects")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(objects.iter().map(|object| (text(&object["name"]), text(&object["rv"]))).collect())
}

/// Name and resourceVersion of the ConfigMaps of these teams.
fn present(bed: &Bed, teams: &str) -> Result<BTreeMap<String, String>> {
    let path = format!("{}?labelSelector=team+in+({teams})", bed.path("configmaps"));
    let list = bed.api.client().get(&path)?.json()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().context("items")?;
    Ok(items
        .iter()
        .map(|item| (text(&item["metadata"]["name"]), text(&item["metadata"]["resourceVersion"])))
        .collect())
}

#[test]
fn i14_python_follows_a_policy_change() -> Result<()> {
    let (bed, proxy) = two_objects("i14_python")?;
    for at in 0..8 {
        bed.config_map(&format!("more-{at}"), if at % 2 == 0 { "team=a" } else { "team=b" })?;
    }
    let port = proxy.address().port();
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("https://{host}:{port}");
        let kubeconfig = bed.api.kubeconfig_for(&url, proxy.ca_pem(), bed.token())?;
        let mut program = python(&bed, &kubeconfig)?;
        program.wait_for(LIMIT, |line| line["event"] == "watch")?;
        let told = |program: &Program, kind: &'static str, name: &str| {
            let name = name.to_owned();
            program.wait_for(LIMIT, move |line| {
                line["type"] == kind && line["object"]["name"] == *name
            })
        };
        let new = format!("new-{host}");
        bed.config_map(&new, "team=a")?;
        told(&program, "ADDED", &new)?;
        bed.relabel("mine", Some("b"))?;
        told(&program, "DELETED", "mine")?;
        bed.relabel("mine", Some("a"))?;
        told(&program, "ADDED", "mine")?;
        ensure!(python_store(&mut program)? == present(&bed, "a")?);

        proxy.change_policy(&config_maps(&["a", "b"]))?;
        told(&program, "ADDED", "theirs")?;
        let last = format!("last-{host}");
        bed.config_map(&last, "team=b")?;
        told(&program, "ADDED", &last)?;
        ensure!(python_store(&mut program)? == present(&bed, "a,b")?);
        let lines = program.finish(LIMIT)?;
        let count = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
        ensure!((count("watch"), count("watch-error")) == (1, 0), "the watch stays open");
        proxy.change_policy(&config_maps(&["a"]))?;
    }
    Ok(())
}
