//! `ctrlmesh explain`: what would become of a request, and why. It decides by the very code of the
//! proxy.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use http::Method;

use crate::{
    policy::{BadDocument, Decision, Judged, LockIn, NamespacesUnknown, Policy, from_documents},
    wire::{RequestInfo, Verb, request::PathError},
};

/// The flags of `ctrlmesh explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// The file with the ShardingConfigs, as `ctrlmesh proxy --policy` reads it
    #[arg(long, env = "CTRLMESH_POLICY", value_name = "FILE")]
    policy: PathBuf,

    /// The shard: the metadata.name of its ShardingConfig
    #[arg(long, env = "CTRLMESH_SHARD", value_name = "NAME")]
    shard: String,

    /// The pod's namespace, where its lock is; the config's own unless told
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pod_namespace: Option<String>,

    /// The method of the request
    #[arg(value_name = "METHOD")]
    method: Method,

    /// Its path and query, for example `/api/v1/pods?watch=1`
    #[arg(value_name = "PATH")]
    target: String,
}

/// Why nothing was explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The file cannot be read.
    #[error("--policy {}", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// There is no such policy in it.
    #[error("--policy {}", .0.display())]
    Policy(PathBuf, #[source] BadDocument),
    /// It is drawn by what is in the cluster.
    #[error("--policy")]
    Labels(#[from] NamespacesUnknown),
    /// The proxy would refuse the request line.
    #[error("the proxy refuses {0:?}")]
    Target(String, #[source] PathError),
    /// Nobody reads on.
    #[error("writing")]
    Output(#[from] io::Error),
}

/// Prints what would happen to the request.
///
/// # Errors
/// [`ExplainError`].
pub fn run(args: &ExplainArgs) -> Result<(), ExplainError> {
    let bytes = fs::read(&args.policy)
        .map_err(|error| ExplainError::Unreadable(args.policy.clone(), error))?;
    let draft = from_documents(&bytes, &args.shard, args.pod_namespace.as_deref())
        .map_err(|error| ExplainError::Policy(args.policy.clone(), error))?;
    let policy = draft.resolve(None)?;
    let text = explain(&policy, &args.method, &args.target)
        .map_err(|error| ExplainError::Target(args.target.clone(), error))?;
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// The explanation, a fact a line.
fn explain(policy: &Policy, method: &Method, target: &str) -> Result<String, PathError> {
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    let info = RequestInfo::parse(method, path, query)?;
    let decision = policy.decide(&info);
    let mut lines = Lines::default();
    lines.add("request", &subject(&info));
    lines.add("limit", &limit(policy, &info, &decision));
    match policy.rewrite(&decision, &info, path, query) {
        Err(refused) => {
            let status = refused.status();
            let label = refused.refusal.label();
            lines.add("refused", &format!("{} ({label}): {}", status.code, refused.why));
        }
        Ok(rewritten) => {
            let sent = rewritten.as_deref().unwrap_or(target);
            let how = if rewritten.is_some() { "" } else { ", as it came" };
            lines.add("upstream", &format!("{method} {sent}{how}"));
            lines.add("here", here(&info, &decision));
        }
    }
    if let (Some(lock), Some(place)) = (policy.lock(), decision.lock) {
        let place = match place {
            LockIn::Path => "in the path",
            LockIn::FieldSelector => "in the field selector",
            LockIn::Body => "in the body",
        };
        lines.add("lock", &format!("{} is {} {place}", lock.name(), lock.renamed()));
    }
    Ok(lines.0)
}

/// Names and values in two columns.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: &str) {
        // Writing into a string does not fail.
        let _ = writeln!(self.0, "{name:<9} {value}");
    }
}

fn subject(info: &RequestInfo<'_>) -> String {
    let Some(resource) = info.resource() else {
        return format!("{}, about no resource", info.verb.as_str());
    };
    let mut text = format!("{} {}", info.verb.as_str(), resource.resource);
    if !resource.group.is_empty() {
        let _ = write!(text, ".{}", resource.group);
    }
    if let Some(subresource) = &resource.subresource {
        let _ = write!(text, "/{subresource}");
    }
    if let Some(name) = &resource.name {
        let _ = write!(text, " {name}");
    }
    match &resource.namespace {
        Some(namespace) => text + " in " + namespace,
        None => text,
    }
}

fn limit(policy: &Policy, info: &RequestInfo<'_>, decision: &Decision) -> String {
    if let Some(scope) = &decision.scope {
        return scope.to_string();
    }
    let Some(resource) = info.resource() else { return "none: it is about no resource".into() };
    let of_resource = crate::policy::GroupResource::new(&resource.group, &resource.resource);
    match policy.scope(&of_resource) {
        None => "none: the shard sees all of this resource".into(),
        Some(_) if resource.name.is_some() => {
            "none: what is named passes, in or out of the shard".into()
        }
        Some(_) => "none: it is no list, watch or deletecollection".into(),
    }
}

fn here(info: &RequestInfo<'_>, decision: &Decision) -> &'static str {
    match (&decision.judged, info.verb) {
        (Judged::Each { .. }, Verb::Watch) => "each event is judged by what its object is called",
        (Judged::Each { .. }, Verb::DeleteCollection) => {
            "a list, whose items are judged, and a DELETE with preconditions for each of the shard's"
        }
        (Judged::Each { .. }, _) => "each item is judged by what it is called",
        (Judged::Nothing, _) => "nothing is in the shard: the answer is empty",
        (Judged::All, Verb::Watch) if decision.scope.is_some() => {
            "passes; ends with a 410 when the shard's boundary moves"
        }
        (Judged::All, _) => "passes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: blue, namespace: ops}
spec:
  selector: {matchLabels: {app: op}}
  controller: {leaderElectionName: op}
  limits:
  - relateResources: [{apiGroups: [apps], resources: [deployments]}]
    selector: {matchLabels: {team: blue}}
  - relateResources: [{apiGroups: [""], resources: [pods]}]
    namespaces: {names: [a, b]}
    clusterScoped: Exclude
"#;

    fn told(method: &str, target: &str) -> String {
        let policy =
            from_documents(CONFIG.as_bytes(), "blue", None).unwrap().resolve(None).unwrap();
        explain(&policy, &method.parse().unwrap(), target).unwrap()
    }

    #[test]
    fn a_label_goes_to_the_server() {
        assert_eq!(
            told("GET", "/apis/apps/v1/deployments?watch=1&labelSelector=x"),
            "request   watch deployments.apps\n\
             limit     team=blue\n\
             upstream  GET /apis/apps/v1/deployments?watch=1&labelSelector=team%3Dblue%2Cx\n\
             here      passes; ends with a 410 when the shard's boundary moves\n"
        );
    }

    #[test]
    fn a_namespace_is_judged_here_or_not_at_all() {
        assert_eq!(
            told("GET", "/api/v1/pods?limit=500"),
            "request   list pods\n\
             limit     namespace in (a,b), nothing without a namespace\n\
             upstream  GET /api/v1/pods?limit=500, as it came\n\
             here      each item is judged by what it is called\n"
        );
        assert!(told("GET", "/api/v1/namespaces/a/pods").ends_with("here      passes\n"));
        assert!(told("GET", "/api/v1/namespaces/c/pods").contains("the answer is empty"));
    }

    #[test]
    fn a_refusal_says_its_code_and_label() {
        let refused = told("GET", "/api/v1/pods?labelSelector=a%20b");
        assert!(refused.contains("refused   400 (bad_selector): "), "{refused}");
    }

    #[test]
    fn what_is_not_limited_says_why() {
        for (method, target, why) in [
            ("GET", "/api/v1/secrets", "the shard sees all of this resource"),
            ("GET", "/api/v1/namespaces/c/pods/x", "what is named passes"),
            ("POST", "/api/v1/namespaces/c/pods", "it is no list, watch or deletecollection"),
            ("GET", "/version", "it is about no resource"),
        ] {
            let told = told(method, target);
            assert!(told.contains(why), "{told}");
        }
    }

    #[test]
    fn t72_the_lock_says_where_it_is_renamed() {
        let told = told("GET", "/apis/coordination.k8s.io/v1/namespaces/ops/leases/op");
        assert!(
            told.contains(
                "upstream  GET /apis/coordination.k8s.io/v1/namespaces/ops/leases/op---blue\n"
            ),
            "{told}"
        );
        assert!(told.ends_with("lock      op is op---blue in the path\n"), "{told}");
    }
}
