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
/// Annotation that the injection sets on a pod: its redirect mode, `iptables` or `env`. It marks
/// the injected parts as ours, so a second injection may replace them.
pub const INJECTED: &str = "ctrlmesh.kusionstack.io/injected";

/// The value under `name` in either dialect's spelling; the KusionStack one wins.
pub fn find<'a>(
    map: &'a std::collections::BTreeMap<String, String>,
    name: &str,
) -> Option<&'a str> {
    [PREFIX, KRIDGE_PREFIX]
        .iter()
        .find_map(|prefix| map.get(&format!("{prefix}{name}")))
        .map(String::as_str)
}
