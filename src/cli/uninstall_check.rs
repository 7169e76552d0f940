//! `ctrlmesh uninstall-check`: whether pods are still injected, which the chart asks before an
//! uninstall. Such pods go on, but their certificates end within a day, and none are created again.

use std::{
    error::Error,
    io::{self, Write},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};

use ctrlmesh_api::keys;
use ctrlmesh_base::cluster::OwnAccess;

/// Pods of one request.
const PAGE: u32 = 500;
/// Pods that are named.
const NAMED: usize = 20;

/// The reason why the mesh should not be uninstalled, or no one knows.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    #[error("cannot wait")]
    Runtime(#[from] io::Error),
    #[error("the cluster cannot be asked")]
    Cluster(#[source] Box<dyn Error + Send + Sync>),
    #[error(
        "{} still injected: {}{}. Take the label {}{} from their workloads first, or uninstall with \
         --no-hooks",
        pods(.0.len()),
        .0.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", "),
        if .0.len() > NAMED { ", …" } else { "" },
        keys::PREFIX,
        keys::ENABLE_PROXY
    )]
    Injected(Vec<String>),
}

fn pods(count: usize) -> String {
    if count == 1 { "1 pod is".to_owned() } else { format!("{count} pods are") }
}

/// Prints that no pod is injected. Fails with [`UninstallError`] if one is, or if the cluster does
/// not answer.
pub fn run() -> Result<(), UninstallError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let injected = runtime.block_on(injected()).map_err(UninstallError::Cluster)?;
    if !injected.is_empty() {
        return Err(UninstallError::Injected(injected));
    }
    Ok(writeln!(io::stdout(), "no pod is injected")?)
}

/// The injected pods that have not ended, as NAMESPACE/NAME.
async fn injected() -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
    let pods: Api<Pod> = Api::all(OwnAccess::Environment.client().await?);
    let mut injected = Vec::new();
    for prefix in [keys::PREFIX, keys::KRIDGE_PREFIX] {
        let label = format!("{prefix}{}=true", keys::ENABLE_PROXY);
        let mut params = ListParams::default().labels(&label).limit(PAGE);
        loop {
            let page = pods.list(&params).await?;
            injected.extend(page.items.iter().filter_map(name_if_injected));
            let token = page.metadata.continue_.filter(|token| !token.is_empty());
            let Some(token) = token else { break };
            params = params.continue_token(&token);
        }
    }
    injected.sort();
    injected.dedup();
    Ok(injected)
}

fn name_if_injected(pod: &Pod) -> Option<String> {
    let meta = &pod.metadata;
    meta.annotations.as_ref()?.get(keys::INJECTED)?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let [namespace, name] = [&meta.namespace, &meta.name].map(|text| text.as_deref());
    Some(format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_named_but_for_many() {
        let all: Vec<_> = (0..25).map(|at| format!("ns/pod-{at}")).collect();
        let said = UninstallError::Injected(all[..1].to_vec()).to_string();
        let remedy = "Take the label ctrlmesh.kusionstack.io/enable-proxy from their workloads \
                      first, or uninstall with --no-hooks";
        assert_eq!(said, format!("1 pod is still injected: ns/pod-0. {remedy}"));
        let said = UninstallError::Injected(all).to_string();
        assert!(said.starts_with("25 pods are still injected: ns/pod-0, "), "{said}");
        assert!(said.contains("ns/pod-19, …. ") && !said.contains("pod-20"), "{said}");
    }
}
