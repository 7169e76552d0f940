//! Policies of the shard `blue`, as users write them.

/// The usual policy: one scope for two resources, one lock.
pub const POLICY: &str = r#"
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: blue, namespace: ns}
spec:
  selector: {matchLabels: {app: op}}
  controller: {leaderElectionName: op}
  limits:
  - relateResources: [{apiGroups: [""], resources: [configmaps, secrets]}]
    selector: {matchLabels: {shard: blue}}
"#;

/// The usual policy with another scope for ConfigMaps only.
pub fn moved_policy(shard: &str) -> String {
    let limits = [
        limit("configmaps", &format!("selector: {{matchLabels: {{shard: {shard}}}}}")),
        limit("secrets", "selector: {matchLabels: {shard: blue}}"),
    ];
    policy(&format!("controller: {{leaderElectionName: op}}, {}", limits_of(&limits)))
}

/// A policy with this scope for ConfigMaps, and no other scope.
pub fn configmaps_policy(scope: &str) -> String {
    policy(&limits_of(&[limit("configmaps", scope)]))
}

/// A policy with this scope for all resources.
pub fn everything_policy(scope: &str) -> String {
    policy(&limits_of(&[format!("{{{scope}}}")]))
}

/// A policy with ConfigMaps of these namespaces, and this fence.
pub fn fenced_policy(namespaces: &str, fence: &str) -> String {
    locked_policy(namespaces, fence, "[{name: op}]")
}

/// The same with these locks.
pub fn locked_policy(namespaces: &str, fence: &str, locks: &str) -> String {
    let scope = format!("namespaces: {{names: {namespaces}}}, clusterScoped: Exclude");
    let limits = limits_of(&[limit("configmaps", &scope)]);
    policy(&format!("controller: {{locks: {locks}}}, fence: {fence}, {limits}"))
}

/// A policy with the ConfigMaps of these namespaces, which is shown those of others, too.
pub fn shown_policy(namespaces: &str, shared: &str) -> String {
    let scope = format!("namespaces: {{names: {namespaces}}}, clusterScoped: Exclude");
    let limits = limits_of(&[limit("configmaps", &scope)]);
    policy(&format!(
        "shared: [{{apiGroups: [\"\"], resources: [configmaps], namespaces: {shared}}}], {limits}"
    ))
}

/// A policy with all resources of the namespace `a`, which is shown cluster-scoped objects.
pub fn outside_policy() -> String {
    let scope = "{namespaces: {names: [a]}, clusterScoped: Exclude}".to_owned();
    let shared = "[{apiGroups: ['*'], resources: ['*'], namespaces: ['']}]";
    policy(&format!("fence: {{mode: Enforce}}, shared: {shared}, {}", limits_of(&[scope])))
}

fn limit(resource: &str, scope: &str) -> String {
    format!("{{relateResources: [{{apiGroups: [\"\"], resources: [{resource}]}}], {scope}}}")
}

fn limits_of(limits: &[String]) -> String {
    format!("limits: [{}]", limits.join(", "))
}

/// A policy with these fields next to the pods' selector, in YAML's flow style.
fn policy(spec: &str) -> String {
    format!(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
         metadata: {{name: blue, namespace: ns}}\n\
         spec: {{selector: {{matchLabels: {{app: op}}}}, {spec}}}\n"
    )
}
