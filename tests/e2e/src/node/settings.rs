//! The configuration files of a node's components.

use std::{net::IpAddr, path::Path};

use serde_json::{Value, json};

/// The name of a bed's only node.
pub(crate) const NODE: &str = "node1";

/// The address families of pods, Services and the node. Every node has the same addresses: each is
/// in a network of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Families {
    /// IPv4 only.
    #[default]
    Ipv4,
    /// Both, IPv4 first.
    Dual,
    /// Both, IPv6 first: objects with one address, as the API server's Service, have an IPv6 one.
    Ipv6First,
}

impl Families {
    /// The node's IPv4 address with its prefix length.
    pub(crate) fn node_ipv4(self) -> &'static str {
        "10.88.0.1/24"
    }

    /// The node's IPv6 address with its prefix length; empty for IPv4 only.
    pub(crate) fn node_ipv6(self) -> &'static str {
        if self == Self::Ipv4 { "" } else { "fd00:88::1/64" }
    }

    /// The node's addresses without their prefix lengths; clients use the first.
    pub(crate) fn node_addresses(self) -> Vec<&'static str> {
        self.in_order("10.88.0.1", "fd00:88::1")
    }

    pub(crate) fn any_address(self) -> &'static str {
        if self == Self::Ipv4 { "0.0.0.0" } else { "::" }
    }

    pub(crate) fn services(self) -> Vec<&'static str> {
        self.in_order("10.96.0.0/16", "fd00:96::/112")
    }

    /// The manager's Service address: nothing on a node resolves the names of Services.
    pub(crate) fn manager(self) -> IpAddr {
        let ipv4 = IpAddr::from([10, 96, 0, 77]);
        let ipv6 = IpAddr::from([0xfd00, 0x96, 0, 0, 0, 0, 0, 0x4d]);
        if self == Self::Ipv6First { ipv6 } else { ipv4 }
    }

    pub(crate) fn pods(self) -> Vec<&'static str> {
        self.in_order("10.244.0.0/24", "fd00:244::/64")
    }

    fn in_order(self, ipv4: &'static str, ipv6: &'static str) -> Vec<&'static str> {
        match self {
            Self::Ipv4 => vec![ipv4],
            Self::Dual => vec![ipv4, ipv6],
            Self::Ipv6First => vec![ipv6, ipv4],
        }
    }
}

/// containerd's configuration. Its sandbox image is [`crate::images::PAUSE`].
pub(crate) fn containerd(bed: &Path, sandbox_image: &str) -> String {
    let bed = bed.display();
    // Without CAP_SYS_RESOURCE no process may lower an OOM score, and runc fails if it tries.
    format!(
        r#"version = 2
root = "{bed}/containerd/root"
state = "{bed}/containerd/state"
[grpc]
  address = "{bed}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{bed}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"#
    )
}

/// The network of pods: one bridge, no NAT, so that the API server sees a pod's address.
pub(crate) fn cni(bed: &Path, families: Families) -> Value {
    let ranges: Vec<Value> =
        families.pods().iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
    let routes = families.in_order("0.0.0.0/0", "::/0");
    let routes: Vec<Value> = routes.iter().map(|route| json!({ "dst": route })).collect();
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": bed.join("cni-addresses"),
                "ranges": ranges,
                "routes": routes,
            },
        }],
    })
}

/// The kubelet's configuration.
pub(crate) fn kubelet(bed: &Path, cgroup: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", bed.join("containerd.sock").display()),
        // All pods are below one cgroup, which the bed removes.
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "authentication": {
            "x509": { "clientCAFile": bed.join("ca.crt") },
            "webhook": { "enabled": true },
            "anonymous": { "enabled": false },
        },
        "authorization": { "mode": "Webhook" },
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": false,
        "podLogsDir": bed.join("pod-logs"),
        "volumePluginDir": bed.join("volume-plugins"),
        "resolvConf": bed.join("resolv.conf"),
    })
}

/// kube-proxy's configuration.
pub(crate) fn kube_proxy(bed: &Path, families: Families) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": bed.join("admin.kubeconfig") },
        "clusterCIDR": families.pods().join(","),
        "hostnameOverride": NODE,
        "oomScoreAdj": 0,
        // The limit of connections is the machine's, not the node's.
        "conntrack": { "maxPerCore": 0 },
    })
}
