use std::ffi::OsString;

use clap::Parser;
use proptest::{option, prelude::*, sample::select};

use super::*;
use ctrlmesh_base::{
    cluster::chain,
    sidecar::{InboundPlan, LeafPlan, ProxyPlan},
};

/// The command line of a sidecar.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
enum CommandLine {
    #[command(name = sidecar::PROXY)]
    Proxy(Box<ProxyArgs>),
}

fn read<S: Into<OsString> + Clone>(args: impl IntoIterator<Item = S>) -> ProxyArgs {
    let CommandLine::Proxy(args) = CommandLine::try_parse_from(args).unwrap();
    *args
}

fn leaves() -> impl Strategy<Value = LeafPlan> {
    let path = || "\\PC{1,40}";
    let host = "[a-z][a-z0-9]{0,8}(\\.[a-z][a-z0-9]{0,8}){0,3}";
    let mesh_ca = path().prop_map(|dir| LeafPlan::MeshCa { dir });
    let manager = (host, 1..u16::MAX, path(), path(), path(), path()).prop_map(
        |(host, port, ca, token, bundle, leaf)| LeafPlan::Manager {
            address: format!("{host}:{port}").parse().unwrap(),
            ca,
            token,
            bundle,
            leaf,
        },
    );
    mesh_ca.boxed().prop_union(manager.boxed())
}

fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().unwrap()
}

/// The source that a sidecar reads of its arguments.
fn leaf_of(certificate: Certificate) -> LeafPlan {
    match certificate {
        Certificate::Own(LeafSource::MeshCa { dir, .. }) => LeafPlan::MeshCa { dir: text(dir) },
        Certificate::Manager { manager, kept } => LeafPlan::Manager {
            address: manager.addr,
            ca: text(manager.ca),
            token: text(manager.token),
            bundle: text(kept.bundle.unwrap()),
            leaf: text(kept.path),
        },
        Certificate::Own(LeafSource::File { .. }) => panic!("{certificate:?}"),
    }
}

fn plans() -> impl Strategy<Value = ProxyPlan> {
    let addr = || (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from);
    let path = || "\\PC{1,40}";
    let domain = "[a-z][a-z0-9]{0,8}(\\.[a-z][a-z0-9]{0,8}){0,3}"
        .prop_map(|name| name.parse::<ClusterDomain>().unwrap());
    let mode = select(Mode::value_variants());
    let listen = (addr(), option::of(addr()));
    let port = (1..=u16::MAX).prop_filter("a port of the proxy", |p| !(5441..=5447).contains(p));
    let inbound = (port, path())
        .prop_map(|(port, certs)| InboundPlan { port: NonZeroU16::new(port).unwrap(), certs });
    let ways = (leaves(), option::of(inbound));
    (mode, listen, addr(), path(), ways, domain, path(), path()).prop_map(
        |(mode, listen, admin, upstream_ca, ways, cluster_domain, labels, state_dir)| {
            let ((listen, listen_names), (leaf, inbound)) = (listen, ways);
            ProxyPlan {
                mode,
                listen,
                listen_names,
                admin,
                upstream_ca,
                leaf,
                inbound,
                cluster_domain,
                pod_labels: labels,
                state_dir,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn i12_what_the_injection_writes_is_what_the_proxy_reads(plan in plans()) {
        let mut read = read(plan.to_args());
        read.plain.pod_namespace = Some("ns".to_owned());
        read.upstream = (read.mode == Mode::Direct).then(|| "10.96.0.1:443".parse().unwrap());
        let Config { certificate, inbound, .. } = Config::new(read.clone()).unwrap();
        let leaf = leaf_of(certificate);
        let inbound = inbound.map(|Inbound { listen, port, certs, server }| {
            let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port.get()));
            assert_eq!(server, (read.mode == Mode::Direct).then_some(loopback));
            assert_eq!(listen, sidecar::INBOUND);
            InboundPlan { port, certs: text(certs) }
        });
        let PlainFlags { listen, listen_names, admin, cluster_domain, .. } = read.plain;
        prop_assert_eq!(
            ProxyPlan {
                mode: read.mode,
                listen,
                listen_names,
                admin,
                upstream_ca: text(read.plain.upstream_ca),
                leaf,
                inbound,
                cluster_domain,
                pod_labels: text(read.plain.pod_labels.unwrap()),
                state_dir: text(read.plain.state_dir.unwrap()),
            },
            plan
        );
    }
}

fn direct(more: &[&str]) -> Result<Config, BadConfig> {
    let common = ["proxy", "--mode=direct", "--mesh-ca-dir=/ca", "--policy=/policy", "--shard=one"];
    Config::new(read(common.iter().chain(more)))
}

#[test]
fn direct_mode_goes_where_the_kubelet_says_unless_told() {
    let kubelets = "--kubernetes-service-host=10.96.0.1";
    for (args, wanted) in [
        (&[kubelets, "--kubernetes-service-port=443"][..], "10.96.0.1:443"),
        (&["--kubernetes-service-host=fd00::1", "--kubernetes-service-port=443"], "[fd00::1]:443"),
        (
            &["--kubernetes-service-host=api.example", "--kubernetes-service-port=6443"],
            "api.example:6443",
        ),
        (&[kubelets, "--kubernetes-service-port=443", "--upstream=[::1]:6443"], "[::1]:6443"),
    ] {
        match direct(args).unwrap().route {
            Route::Fixed(upstream) => assert_eq!(upstream.to_string(), wanted),
            Route::Original => panic!("{args:?}"),
        }
    }
}

#[test]
fn the_leaf_has_the_name_in_the_clusters_own_domain() {
    let names = |args: &[&str]| match direct(args).unwrap().certificate {
        Certificate::Own(LeafSource::MeshCa { names, .. }) => names,
        other => panic!("{args:?}: {other:?}"),
    };
    let name = |text: &'static str| ServerName::try_from(text).unwrap();
    let usual = name("kubernetes.default.svc.cluster.local");
    assert!(names(&["--upstream=127.0.0.1:6443"]).contains(&usual));
    let named = names(&["--upstream=127.0.0.1:6443", "--cluster-domain=corp.example"]);
    assert!(named.contains(&name("kubernetes.default.svc.corp.example")));
    assert!(!named.contains(&usual));
}

#[test]
fn the_leaf_comes_from_one_source_and_is_for_the_name_that_clients_call() {
    let leaf = |args: &[&str]| Config::new(read(args)).map(|config| config.certificate);
    let pod = ["proxy", "--pod-namespace=a", "--pod-labels=/labels"];
    let with = |more: &[&'static str]| leaf(&[&pod[..], more].concat());
    let called = |more: &[&'static str]| match with(more).unwrap() {
        Certificate::Own(LeafSource::File { called, .. })
        | Certificate::Manager { kept: Kept { called, .. }, .. } => {
            called.map(|name| name.to_str().into_owned())
        }
        Certificate::Own(LeafSource::MeshCa { .. }) => panic!("{more:?}"),
    };
    let host = "--kubernetes-service-host=10.96.0.1";
    assert_eq!(called(&["--leaf=/leaf"]), None);
    assert_eq!(called(&["--leaf=/leaf", host]).unwrap(), "10.96.0.1");
    let direct = ["--leaf=/leaf", "--mode=direct", "--upstream=api.example:6443", host];
    assert_eq!(called(&direct).unwrap(), "127.0.0.1");
    assert_eq!(called(&[&direct[..], &["--listen=[::]:5443"]].concat()), None);
    assert_eq!(with(&["--leaf=/leaf", "--mesh-ca-dir=/ca"]), Err(BadConfig::TwoLeaves));
    assert_eq!(with(&[]), Err(BadConfig::NoLeaf));
    let manager = ["--manager=m.svc:1", "--manager-ca=/c", "--manager-token=/t", "--leaf=/l"];
    assert_eq!(called(&[&manager[..], &[host]].concat()).unwrap(), "10.96.0.1");
    let two = with(&[&manager[..], &["--mesh-ca-dir=/ca"]].concat());
    assert_eq!(two, Err(BadConfig::ManagerAndMeshCa));
}

#[test]
fn manager_flags_are_required_together() {
    let with = |more: &[&str]| {
        let pod = ["proxy", "--pod-namespace=a", "--pod-labels=/labels"];
        Config::new(read(pod.iter().chain(more))).unwrap_err().to_string()
    };
    let manager = "--manager=m.svc:1";
    for (flags, wanted) in [
        (&[manager][..], "--manager-ca FILE and --manager-token FILE and --leaf FILE"),
        (&[manager, "--manager-ca=/c", "--leaf=/l"], "give --manager-token FILE too"),
        (&[manager, "--manager-ca=/c", "--manager-token=/t"], "give --leaf FILE too"),
        (&["--leaf=/l", "--manager-ca=/c"], "--manager-ca has no effect without --manager"),
        (&["--leaf=/l", "--manager-token=/t"], "--manager-token has no effect"),
        (&["--leaf=/l", "--mesh-bundle=/b"], "--mesh-bundle has no effect"),
    ] {
        let said = with(flags);
        assert!(said.contains(wanted), "{flags:?}: {said}");
    }
}

#[test]
fn i13_a_webhook_needs_its_port_and_a_server_that_is_not_ours() {
    let with = |mode: &'static str, more: &[&'static str]| {
        let pod = ["proxy", "--pod-namespace=a", "--pod-labels=/labels", "--leaf=/leaf"];
        let mode = [mode, "--upstream=127.0.0.1:6443"];
        let mode = &mode[..if mode[0] == "--mode=direct" { 2 } else { 1 }];
        Config::new(read(pod.iter().chain(mode).chain(more)))
    };
    let (iptables, direct) = ("--mode=iptables", "--mode=direct");
    let inbound = |mode, more: &[&'static str]| with(mode, more).unwrap().inbound.unwrap();
    assert_eq!(with(iptables, &[]).unwrap().inbound, None);
    let port = "--webhook-port=9443";
    let usual = Inbound {
        listen: "[::]:5445".parse().unwrap(),
        port: NonZeroU16::new(9443).unwrap(),
        certs: "/etc/ctrlmesh/webhook".into(),
        server: None,
    };
    assert_eq!(inbound(iptables, &[port]), usual);
    let own = Inbound { server: Some("127.0.0.1:9443".parse().unwrap()), ..usual.clone() };
    assert_eq!(inbound(direct, &[port]), own);
    let flags = [port, "--webhook-certs=/c", "--inbound=[::1]:1", "--webhook-server=[::1]:2"];
    let given = Inbound {
        listen: "[::1]:1".parse().unwrap(),
        certs: "/c".into(),
        server: Some("[::1]:2".parse().unwrap()),
        ..usual
    };
    assert_eq!(inbound(direct, &flags), given);
    for (mode, flags, wanted) in [
        (iptables, &["--webhook-certs=/c"][..], "--webhook-certs has no effect without"),
        (direct, &["--webhook-server=[::1]:1"], "--webhook-server has no effect without"),
        (iptables, &["--inbound=[::]:1"], "--inbound has no effect without --webhook-port"),
        (iptables, &[port, "--webhook-server=[::1]:1"], "in --mode iptables, where the"),
        (iptables, &["--webhook-port=5441"], "5441 is a port of the proxy"),
        (iptables, &["--webhook-port=5447"], "5447 is a port of the proxy"),
        (iptables, &["--webhook-port=0"], "0 is no port"),
        (direct, &[port, "--inbound=[::]:9443"], "has the port of --webhook-port"),
    ] {
        let said = chain(&with(mode, flags).unwrap_err());
        assert!(said.contains(wanted), "{flags:?}: {said}");
    }
}

#[test]
fn direct_mode_without_a_usable_upstream_says_what_is_missing() {
    for (args, wanted) in [
        (&[][..], "--upstream HOST:PORT"),
        (&["--kubernetes-service-host=10.96.0.1"], "KUBERNETES_SERVICE_PORT"),
        (&["--kubernetes-service-host=h", "--kubernetes-service-port=0"], "\"0\""),
        (&["--kubernetes-service-host=h", "--kubernetes-service-port=tcp"], "\"tcp\""),
    ] {
        let told = direct(args).unwrap_err().to_string();
        assert!(told.contains(wanted), "{args:?}: {told}");
    }
}
