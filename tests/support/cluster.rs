//! The policy in the cluster, controlled by a test.

use super::{
    process::{Process, flags},
    proxy::Files,
    scrape, soon, until,
    upstream::Upstream,
};

/// A proxy that reads its policy from a scripted API server.
pub struct Cluster {
    pub files: Files,
    pub process: Process,
    pub upstream: Upstream,
}

/// The response to an account without permission.
pub const FORBIDDEN: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"who are you","code":403}"#;

/// A ShardingConfig for the pods of `app`, limited by the label `shard`.
pub fn config(name: &str, app: &str) -> String {
    format!(
        "{{\"apiVersion\":\"ctrlmesh.kusionstack.io/v1alpha1\",\"kind\":\"ShardingConfig\",\
         \"metadata\":{{\"name\":\"{name}\",\"namespace\":\"ns\",\"resourceVersion\":\"1\"}},\
         \"spec\":{{\"selector\":{{\"matchLabels\":{{\"app\":\"{app}\"}}}},\
         \"limits\":[{{\"relateResources\":[{{\"apiGroups\":[\"\"],\"resources\":[\"configmaps\"]}}],\
         \"selector\":{{\"matchLabels\":{{\"shard\":\"{name}\"}}}}}}]}}}}"
    )
}

/// The response to a list of ShardingConfigs.
pub fn configs(all: &[String]) -> String {
    format!(
        "{{\"apiVersion\":\"ctrlmesh.kusionstack.io/v1alpha1\",\"kind\":\"ShardingConfigList\",\
         \"metadata\":{{\"resourceVersion\":\"5\"}},\"items\":[{}]}}",
        all.join(",")
    )
}

impl Cluster {
    pub async fn start() -> Self {
        Self::with(&[], &[]).await
    }

    /// The same in a pod that knows its name and uid.
    pub async fn of_pod(uid: &str) -> Self {
        Self::of_pod_with(uid, &[]).await
    }

    /// The same with more flags.
    pub async fn of_pod_with(uid: &str, flags: &[&str]) -> Self {
        Self::with(&[("POD_NAME", "op-0"), ("POD_UID", uid)], flags).await
    }

    async fn with(more: &[(&str, &str)], more_flags: &[&str]) -> Self {
        // Our own client asks for no protocol, and gets HTTP/1.1.
        let upstream = Upstream::start().await;
        let files = Files::new(&upstream.ca.pem);
        let kubeconfig = files.put_kubeconfig(&upstream.addr.to_string());
        files.put_pod_labels("app=\"op\"\n");
        let mut args = flags(&files, &upstream.addr.to_string());
        args.retain(|arg| !arg.starts_with("--policy") && !arg.starts_with("--shard"));
        args.push(format!("--pod-labels={}", files.pod_labels().display()));
        args.extend(more_flags.iter().copied().map(str::to_owned));
        let mut env =
            vec![("KUBECONFIG", kubeconfig.display().to_string()), ("POD_NAMESPACE", "ns".into())];
        env.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let process = Process::start_with(&args, &env).await;
        Self { files, process, upstream }
    }

    pub async fn ready(&self) -> (u16, String) {
        soon("readyz", scrape::page(self.process.admin, "/readyz")).await
    }

    pub async fn until_ready_says(&self, code: u16, what: &str) {
        until("readyz", || self.ready(), |(got, body)| *got == code && body.contains(what)).await;
    }
}
