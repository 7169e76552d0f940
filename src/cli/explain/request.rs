//! The effect of a policy on a request, with its reasons.

use std::fmt::Write as _;

use http::Method;

use ctrlmesh_api::FenceMode;
use ctrlmesh_policy::{
    Filter, Foreign, GroupResource, LockIn, Policy, Pushed, RequestAction, Restriction, Scope,
    Selected, Sharding, Verdict,
};
use ctrlmesh_wire::{
    RequestInfo,
    request::{PathError, Verb},
};

/// The number of namespaces that are named.
const FIRST: usize = 10;
/// The reasons why a request is not narrowed.
const ALL: &str = "the shard sees all of this resource";
const NAMED: &str = "what is named passes, in or out of the shard";

/// The explanation, one fact per line.
pub(super) fn explain(policy: &Policy, method: &Method, target: &str) -> Result<String, PathError> {
    let sharding = &*policy.sharding;
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    let info = RequestInfo::parse(method, path, query)?;
    let action = sharding.action(&info, None);
    let mut lines = Lines::default();
    lines.add("request", &subject(&info));
    lines.add("limit", &limit(sharding, &info, &action));
    if sharding.depends_on_namespaced(&info) {
        lines.add("name", "one over all namespaces is a collection; of what is in none, it passes");
    }
    let scope = action.restriction().and_then(|restriction| restriction.scope.as_deref());
    for boundary in scope.into_iter().flat_map(Scope::boundaries) {
        if let Some(selected) = &boundary.selected {
            lines.add("labels", &namespaces(selected));
        }
    }
    if let Some(told) = fenced(policy, &info, &action) {
        lines.add("fence", &told);
        // What its body names is not known here.
        let may_be_lock = info.verb == Verb::Create && action.lock().is_some();
        if policy.fence.judge(sharding, &info, &action) == Verdict::Refused && !may_be_lock {
            return Ok(lines.0);
        }
    }
    match sharding.rewrite(&action, &info) {
        Err(refused) => {
            let label = refused.refusal.label();
            lines.add("refused", &format!("{} ({label}): {}", refused.status.code, refused.why));
        }
        Ok(rewrite) => {
            let rewritten = rewrite.target(&info);
            let sent = rewritten.as_deref().unwrap_or(target);
            let how = if rewritten.is_some() { "" } else { ", as it came" };
            lines.add("upstream", &format!("{method} {sent}{how}"));
            if let Some(pushed) = pushed(&info, &action) {
                lines.add("pushdown", &pushed);
            }
            if matches!(&action, RequestAction::Watch(restriction) if restriction.asks_for_bookmarks(&info))
            {
                let why = "are left out: the proxy asks for them to know the client's position";
                lines.add("bookmarks", why);
            }
            lines.add("here", here(&action));
        }
    }
    if let Some(place) = action.lock() {
        lock(&mut lines, sharding, &info, place);
    }
    Ok(lines.0)
}

/// The judgement of a write. `None` if it is not judged.
fn fenced(policy: &Policy, info: &RequestInfo<'_>, action: &RequestAction) -> Option<String> {
    let Policy { sharding, fence, .. } = policy;
    Some(match fence.judge(sharding, info, action) {
        Verdict::Exempt => return None,
        Verdict::Unjudged if info.resource()?.namespace.is_none() => return None,
        Verdict::Inside if info.resource()?.namespace.is_none() => {
            "passes: cluster-scoped objects are in the shard".to_owned()
        }
        Verdict::Unjudged if fence.mode() == FenceMode::Disabled => {
            "is not judged: spec.fence.mode is Disabled".to_owned()
        }
        Verdict::Unjudged => "is not judged: not every limit is by namespace".to_owned(),
        Verdict::Inside => "passes: the namespace is in the shard".to_owned(),
        Verdict::Excepted => {
            "passes: it is not in the shard, and all shards may write it by spec.shared, or because it is \
             next to their pods, or spec.fence.except has it"
                .to_owned()
        }
        Verdict::Warned => {
            let entry = Foreign::of(info)?.except();
            format!(
                "passes with a warning: it is not in the shard; Enforce would refuse it, unless \
                 spec.fence.except has {entry}"
            )
        }
        Verdict::Refused => {
            let refused = fence.refused(sharding, info, None);
            format!("{} ({}): {}", refused.status.code, refused.refusal.label(), refused.why)
        }
    })
}

/// The lock that the request names, or all that its body may name.
fn lock(lines: &mut Lines, sharding: &Sharding, info: &RequestInfo<'_>, place: LockIn) {
    let place = match place {
        LockIn::Path => "in the path",
        LockIn::PathAndBody => "in the path and in the body",
        LockIn::FieldSelector => "in the field selector",
        LockIn::Body => "in the body",
    };
    let (Some(resource), Some(namespace)) = (info.resource(), info.namespace()) else { return };
    let named = resource.name.as_deref().map(str::to_owned).into_iter();
    let of_namespace = sharding.locks().names().filter(|lock| lock.namespace() == namespace);
    let all: Vec<_> = match resource.name {
        Some(_) => named.collect(),
        None => of_namespace
            .filter(|lock| !lock.is_prefix())
            .map(|lock| lock.stem().to_owned())
            .collect(),
    };
    for name in all {
        let Some(own) = sharding.locks().own_lock(resource, namespace, &name) else { continue };
        let own = match own.namespace == namespace {
            true => own.name,
            false => format!("{} of {}", own.name, own.namespace),
        };
        lines.add("lock", &format!("{name} is {own} {place}"));
    }
}

/// Names and values in two columns.
#[derive(Default)]
pub(super) struct Lines(pub(super) String);

impl Lines {
    pub(super) fn add(&mut self, name: &str, value: &str) {
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

fn limit(sharding: &Sharding, info: &RequestInfo<'_>, action: &RequestAction) -> String {
    let Some(resource) = info.resource() else { return "none: it is about no resource".into() };
    let is_limited = || {
        let resource = GroupResource::of(resource);
        sharding.scope(&resource).is_some()
    };
    let why = match action.restriction() {
        Some(Restriction { scope: Some(scope), .. }) => {
            let is_shared = info.verb != Verb::DeleteCollection;
            let shared =
                is_shared.then(|| sharding.shared_namespaces(&GroupResource::of(resource)));
            return format!("{scope}{}", shared.unwrap_or_default());
        }
        Some(Restriction { extent, .. }) if extent.is_collection() => ALL,
        _ if !is_limited() => ALL,
        Some(_) => NAMED,
        None if resource.name.is_some() => NAMED,
        None => "it is not a list, watch or deletecollection",
    };
    format!("none: {why}")
}

/// The namespaces that have the labels now; only the first are named.
fn namespaces(selected: &Selected) -> String {
    let names: Vec<_> = selected.names().iter().map(AsRef::as_ref).take(FIRST).collect();
    let more = match selected.names().len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = if names.is_empty() { "no namespace".to_owned() } else { names.join(", ") };
    format!("{} is {names}{more}", selected.selector())
}

/// The selectors that are also sent upstream, if the API server proves that it supports them.
fn pushed(info: &RequestInfo<'_>, action: &RequestAction) -> Option<String> {
    let pushed = Pushed::of(&action.pushed_narrow(info)?.filter, &info.options);
    let hashes = pushed.hashes.map(|hashes| format!("shardSelector={hashes}"));
    let namespace = pushed.namespace.map(|name| format!("fieldSelector=metadata.namespace={name}"));
    let all: Vec<_> = hashes.into_iter().chain(namespace).collect();
    let parts = all.join(", ");
    (!all.is_empty()).then(|| format!("{parts}, where the API server understands"))
}

fn here(action: &RequestAction) -> &'static str {
    let Some(Restriction { filter, scope, .. }) = action.restriction() else { return "passes" };
    match (filter, action) {
        (Filter::PerObject { .. }, RequestAction::Head(_)) => {
            "passes: an answer to HEAD has no objects"
        }
        (Filter::PerObject { .. }, RequestAction::Watch(_)) => {
            "each event is judged by what its object is called"
        }
        (Filter::PerObject { .. }, RequestAction::DeleteCollection(_)) => {
            "a list, whose items are judged, and a DELETE with preconditions for each of the shard's"
        }
        (Filter::PerObject { .. }, _) => "each item is judged by what it is called",
        (Filter::DropAll, _) => "nothing is in the shard: the answer is empty",
        (Filter::KeepAll, RequestAction::Watch(_)) if scope.is_some() => {
            "passes; gets events for objects that change shards when the boundary moves"
        }
        (Filter::KeepAll, _) => "passes",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use ctrlmesh_policy::{NamespaceLabels, from_documents};

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
             upstream  GET /apis/apps/v1/deployments?watch=1&labelSelector=team%3Dblue%2Cx&allowWatchBookmarks=true\n\
             bookmarks are left out: the proxy asks for them to know the client's position\n\
             here      passes; gets events for objects that change shards when the boundary moves\n"
        );
        let asked =
            "/apis/apps/v1/deployments?watch=1&labelSelector=team%3Dblue&allowWatchBookmarks=1";
        assert!(!told("GET", asked).contains("left out"));
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
        let one = explain_with("names: [a, b]", "names: [a]", "/api/v1/pods");
        let told_too =
            "pushdown  fieldSelector=metadata.namespace=a, where the API server understands\n";
        assert!(one.contains(told_too), "{one}");
        assert!(told("GET", "/api/v1/namespaces/c/pods").contains("the answer is empty"));
    }

    #[test]
    fn a_head_is_not_judged() {
        let of_one = explain_with("names: [a, b]", "names: [a]", "/api/v1/pods");
        assert!(of_one.contains("pushdown  "), "{of_one}");
        assert_eq!(
            told("HEAD", "/api/v1/pods"),
            "request   list pods\n\
             limit     namespace in (a,b), nothing without a namespace\n\
             upstream  HEAD /api/v1/pods, as it came\n\
             here      passes: an answer to HEAD has no objects\n"
        );
    }

    fn explain_with(old: &str, new: &str, target: &str) -> String {
        let config = CONFIG.replace(old, new);
        let policy = from_documents(config.as_bytes(), "blue", None).unwrap().resolve(None);
        explain(&policy.unwrap(), &Method::GET, target).unwrap()
    }

    #[test]
    fn what_all_shards_are_shown_is_told_with_who_may_write_it() {
        let shared = "  shared:\n  - {apiGroups: [''], resources: [pods], namespaces: [keys, ''], write: All}\n  limits:\n";
        let config = CONFIG.replace("  limits:\n", shared);
        let policy = from_documents(config.as_bytes(), "blue", None).unwrap().resolve(None);
        let policy = policy.unwrap();
        let told = |method: &str, target: &str| {
            explain(&policy, &method.parse().unwrap(), target).unwrap()
        };
        assert_eq!(
            told("GET", "/api/v1/pods"),
            "request   list pods\n\
             limit     namespace in (a,b), nothing without a namespace; shown to all shards: namespace in \
             (keys), and cluster-scoped objects\n\
             upstream  GET /api/v1/pods, as it came\n\
             here      each item is judged by what it is called\n"
        );
        let deleted = told("DELETE", "/api/v1/pods");
        assert!(deleted.contains("nothing without a namespace\n"), "{deleted}");
        let written = told("PUT", "/api/v1/namespaces/keys/pods/x");
        assert!(written.contains("all shards may write it by spec.shared"), "{written}");
        let deleted = told("DELETE", "/api/v1/namespaces/keys/pods/x");
        assert!(deleted.contains("fence     passes with a warning: it is not in"), "{deleted}");
    }

    #[test]
    fn t48_what_the_api_server_may_be_told_is_said() {
        let hash =
            "hash: {of: uid, ranges: [{from: \"0x0000000000000000\", to: \"0x8000000000000000\"}]}";
        let told = explain_with("namespaces: {names: [a, b]}", hash, "/api/v1/pods?watch=1");
        let range = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";
        assert!(told.contains(&format!("pushdown  shardSelector={range}, where")), "{told}");
        let own = explain_with("namespaces: {names: [a, b]}", hash, "/api/v1/pods?shardSelector=x");
        assert!(!own.contains("pushdown"), "{own}");
    }

    #[test]
    fn the_labels_of_namespaces_say_which_namespaces_have_them() {
        let config = CONFIG.replace("names: [a, b]", "selector: {matchLabels: {tier: gold}}");
        let draft = from_documents(config.as_bytes(), "blue", None).unwrap();
        let told = |count: usize| {
            let gold = BTreeMap::from([("tier".to_owned(), "gold".to_owned())]);
            let known: NamespaceLabels =
                (0..count).map(|at| (format!("n{at:02}"), gold.clone().into())).collect();
            let policy = draft.resolve(Some(&known)).unwrap();
            explain(&policy, &Method::GET, "/api/v1/namespaces/n01/pods").unwrap()
        };
        assert_eq!(
            told(2),
            "request   list pods in n01\n\
             limit     namespace labels tier=gold, nothing without a namespace\n\
             labels    tier=gold is n00, n01\n\
             upstream  GET /api/v1/namespaces/n01/pods, as it came\n\
             here      passes\n"
        );
        assert!(told(0).contains("labels    tier=gold is no namespace\n"), "{}", told(0));
        assert!(told(0).contains("the answer is empty"), "{}", told(0));
        assert!(told(12).contains("n09 and 2 more\n"), "{}", told(12));
    }

    #[test]
    fn a_deletecollection_is_narrowed_to_the_limit() {
        let told = told("DELETE", "/apis/apps/v1/namespaces/a/deployments");
        assert!(told.contains("limit     team=blue\n"), "{told}");
        assert!(told.contains("labelSelector=team%3Dblue"), "{told}");
    }

    #[test]
    fn a_write_into_another_shards_namespace_says_how_it_is_judged() {
        let told_by = |mode: &str, method: &str, path: &str| {
            let config = CONFIG
                .replace("spec:\n", &format!("spec:\n  fence: {{mode: {mode}}}\n"))
                .replace("    selector: {matchLabels: {team: blue}}\n", BY_NAMESPACE);
            let policy = from_documents(config.as_bytes(), "blue", None).unwrap().resolve(None);
            explain(&policy.unwrap(), &method.parse().unwrap(), path).unwrap()
        };
        let secret = "/api/v1/namespaces/c/secrets/x";
        assert_eq!(
            told_by("Enforce", "DELETE", secret),
            "request   delete secrets x in c\n\
             limit     none: the shard sees all of this resource\n\
             fence     403 (not_in_shard): cannot delete secrets \"x\" in namespace c: the namespace is not in \
             shard blue by spec.limits of ShardingConfig ops/blue; to let such writes pass, add to its \
             spec.fence.except: {apiGroups: [\"\"], resources: [secrets], namespaces: [c], verbs: [delete]}\n"
        );
        let warned = told_by("Warn", "DELETE", secret);
        assert!(
            warned.contains("fence     passes with a warning: it is not in the shard"),
            "{warned}"
        );
        assert!(warned.ends_with("here      passes\n"), "{warned}");
        let inside = told_by("Enforce", "DELETE", "/api/v1/namespaces/a/secrets/x");
        assert!(inside.contains("fence     passes: the namespace is in the shard\n"), "{inside}");
        let own = told_by("Enforce", "PUT", "/api/v1/namespaces/ops/secrets/x");
        assert!(own.contains("or spec.fence.except has it\n"), "{own}");
        let disabled = told_by("Disabled", "DELETE", secret);
        assert!(disabled.contains("is not judged: spec.fence.mode is Disabled\n"), "{disabled}");
        for (method, path) in [("GET", secret), ("POST", "/api/v1/nodes"), ("POST", "/version")] {
            let told = told_by("Enforce", method, path);
            assert!(!told.contains("fence "), "{told}");
        }
        // One limit of the usual config is by labels.
        assert!(told("DELETE", secret).contains("is not judged: not every limit is by namespace"));
    }

    const BY_NAMESPACE: &str = "    namespaces: {names: [a]}\n    clusterScoped: Exclude\n";

    #[test]
    fn a_refusal_says_its_code_and_label() {
        let refused = told("GET", "/api/v1/pods?labelSelector=a%20b");
        assert!(refused.contains("refused   400 (bad_selector): "), "{refused}");
    }

    #[test]
    fn what_is_not_limited_says_why() {
        for (method, target, why) in [
            ("GET", "/api/v1/secrets", "the shard sees all of this resource"),
            ("GET", "/api/v1/namespaces/c/secrets/x", "the shard sees all of this resource"),
            (
                "GET",
                "/api/v1/namespaces/c/secrets?fieldSelector=metadata.name%3Dx",
                "the shard sees all of this resource",
            ),
            ("GET", "/api/v1/namespaces/c/pods/x", "what is named passes"),
            ("GET", "/api/v1/watch/namespaces/c/pods/x", "what is named passes"),
            ("POST", "/api/v1/namespaces/c/pods", "it is not a list, watch or deletecollection"),
            ("GET", "/version", "it is about no resource"),
        ] {
            let told = told(method, target);
            assert!(told.contains(why), "{told}");
        }
    }

    #[test]
    fn t29_one_name_over_all_namespaces_says_that_it_is_a_collection() {
        let target = "/apis/apps/v1/deployments?fieldSelector=metadata.name%3Dx";
        assert_eq!(
            told("GET", target),
            format!(
                "request   list deployments.apps x\n\
                 limit     team=blue\n\
                 name      one over all namespaces is a collection; of what is in none, it passes\n\
                 upstream  GET {target}&labelSelector=team%3Dblue\n\
                 here      passes\n"
            )
        );
        let target = "/apis/apps/v1/namespaces/a/deployments?fieldSelector=metadata.name%3Dx";
        let one = told("GET", target);
        assert!(one.contains("limit     none: what is named passes"), "{one}");
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
