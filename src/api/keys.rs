//! Labels and annotations, each spelled once.

/// Prefix of every key.
pub const PREFIX: &str = "ctrlmesh.kusionstack.io/";
/// The Kridge dialect's prefix, accepted wherever [`PREFIX`] is.
pub const KRIDGE_PREFIX: &str = "kridge.kusionstack.io/";

/// Label of a pod: `"true"` asks for injection.
pub const ENABLE_PROXY: &str = "enable-proxy";
/// Annotation or label of a pod: `"false"` asks for env mode; NAT mode otherwise.
pub const ENABLE_IPTABLES: &str = "enable-iptables";
/// Annotation of a pod: `"true"` asks for a token in containers although the pod has
/// `automountServiceAccountToken: false`.
pub const MOUNT_TOKEN: &str = "mount-token";
/// Annotation of a pod: the ResourceRequirements of its proxy, as JSON.
pub const PROXY_RESOURCE: &str = "proxy-resource";
/// Annotation of a pod: variables of its proxy, `NAME=VALUE` or `NAME`, separated by commas. A bare
/// name is copied from the pod's containers.
pub const ENV_SYNC: &str = "env-sync";
/// Annotation of a pod: variables of its containers, as JSON:
/// `[{"name": CONTAINER, "env": [{"key": NAME, "value": VALUE}]}]`.
pub const ENV_INJECT: &str = "env-inject";
/// Annotation of a pod: the directory of logs that its containers share.
pub const LOG_PATH: &str = "log-path";
/// Labels and annotations of a pod that mean something to KusionStack's injection and nothing to
/// ours, each with the reason.
pub const WITHOUT_MEANING: [(&str, &str); 4] = [
    ("watching", "each pod with the label enable-proxy is known"),
    ("disable-fake-kubeconfig-arg", "no kubeconfig is injected"),
    ("disable-fake-kubeconfig-env", "no kubeconfig is injected"),
    ("kubeconfig-volume", "requests keep the credentials of the container that sends them"),
];
/// Label of a ShardingConfig, whatever its value: no review compares it with others of its ring.
pub const IGNORE_VALIDATE: &str = "ignore-validate";
/// Label of a child: the name of its root, as KusionStack writes it.
pub const ROOT: &str = "ctrlmesh.kusionstack.io/auto-sharding-root";
/// Annotation of a child: its part of the objects.
pub const LOT: &str = "ctrlmesh.kusionstack.io/lot";
/// Label of a pod of a Deployment: the child of the root that has its shard. The manager sets it, once.
pub const SHARD: &str = "ctrlmesh.kusionstack.io/shard";
/// Annotation of a pod: of the pods that a ReplicaSet may delete, those with the lowest number go first
/// (KEP-2255).
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Label of a pod of a Deployment: the hash of its template. The name of its ReplicaSet ends with it.
pub const TEMPLATE_HASH: &str = "pod-template-hash";
/// Finalizer that KusionStack's manager sets on roots. No one takes it off once that is gone.
pub const PROTECTED: &str = "finalizer.ctrlmesh.kusionstack.io/protected";
/// Annotation that the injection sets on a pod: its redirect mode, `iptables` or `env`. It marks
/// the injected parts as ours, so a second injection may replace them.
pub const INJECTED: &str = "ctrlmesh.kusionstack.io/injected";

/// Annotation that the injection sets on a pod with resources of its own (`spec.resources`): what it
/// added to them, as JSON.
pub const ADDED_RESOURCES: &str = "ctrlmesh.kusionstack.io/added-resources";

/// Annotation of a bundle: the time since when it has its present certificates.
pub const TRUSTED_SINCE: &str = "ctrlmesh.kusionstack.io/trusted-since";

/// Label of all objects that we write.
pub const OURS_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "ctrlmesh");

/// The key and the value under `name` in either dialect's spelling; the KusionStack one wins.
pub fn find<'a>(
    map: &'a std::collections::BTreeMap<String, String>,
    name: &str,
) -> Option<(&'a str, &'a str)> {
    let spellings = [PREFIX, KRIDGE_PREFIX].map(|prefix| format!("{prefix}{name}"));
    let (key, value) = spellings.iter().find_map(|key| map.get_key_value(key))?;
    Some((key, value))
}
