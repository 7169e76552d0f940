use std::sync::Arc;

use http::Method;

use super::*;
use crate::{Filter, GroupResource, Sharding, from_documents};
use ctrlmesh_wire::{RequestInfo, frames::Verdict, name::BodyKind, object::Object};

const CONFIG: &str = "
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: blue}
spec:
  selector: {matchLabels: {app: op}}
  controller: {leaderElectionName: op, locks: [{name: far, namespace: kube-system}]}
  limits:
  - relateResources: [{apiGroups: [''], resources: [pods, configmaps]}]
    selector: {matchLabels: {shard: a}}
";

fn sharding() -> Arc<Sharding> {
    let draft = from_documents(CONFIG.as_bytes(), "blue", Some("ns")).unwrap();
    draft.resolve(None).unwrap().sharding
}

/// The target sent upstream, `-` if it is unchanged, or the label of the refusal.
fn sent(method: Method, target: &str) -> String {
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    let info = RequestInfo::parse(&method, path, query).unwrap();
    let sharding = sharding();
    let action = sharding.action(&info, None);
    match sharding.rewrite(&action, &info) {
        Ok(rewrite) => rewrite.target(&info).unwrap_or_else(|| "-".into()),
        Err(refused) => refused.refusal.label().into(),
    }
}

#[test]
fn t46_collections_are_narrowed_and_never_widened() {
    let pods = "/api/v1/pods";
    for (method, query, want) in [
        (Method::GET, "", "labelSelector=shard%3Da"),
        (Method::GET, "?watch=1", "watch=1&labelSelector=shard%3Da&allowWatchBookmarks=true"),
        (
            Method::GET,
            "?watch=1&allowWatchBookmarks=0",
            "watch=1&allowWatchBookmarks=true&labelSelector=shard%3Da",
        ),
        (
            Method::GET,
            "?watch=1&allowWatchBookmarks=1",
            "watch=1&allowWatchBookmarks=1&labelSelector=shard%3Da",
        ),
        (Method::DELETE, "", "labelSelector=shard%3Da"),
        (Method::GET, "?labelSelector=x%3Dy", "labelSelector=shard%3Da%2Cx%3Dy"),
        (Method::GET, "?labelSelector=shard=b", "labelSelector=shard%3Da%2Cshard%3Db"),
        (Method::GET, "?labelSelector=", "labelSelector=shard%3Da"),
        (
            Method::GET,
            "?labelSelector=x&limit=5&labelSelector=y",
            "labelSelector=shard%3Da%2Cx&limit=5",
        ),
    ] {
        assert_eq!(sent(method, &format!("{pods}{query}")), format!("{pods}?{want}"), "{query}");
    }
    assert_eq!(sent(Method::GET, "/api/v1/pods?labelSelector=a%20in%20("), "bad_selector");
}

#[test]
fn t28_all_other_parameters_stay_as_they_are() {
    let given = "/api/v1/pods?resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=1&x=%2F+y";
    assert_eq!(sent(Method::GET, given), format!("{given}&labelSelector=shard%3Da"));
}

#[test]
fn t29_t30_what_is_named_passes() {
    for target in [
        "/api/v1/namespaces/ns/pods/p",
        "/api/v1/namespaces/ns/pods?fieldSelector=metadata.name%3Dp",
        "/api/v1/namespaces/ns/pods?watch=1&fieldSelector=metadata.name%3Dp",
        "/api/v1/pods?fieldSelector=metadata.name%3Dp,metadata.namespace%3Dns",
        "/api/v1/watch/namespaces/ns/pods/p",
        "/api/v1/namespaces/ns/pods/p/log?follow=true",
        "/api/v1/namespaces/ns/pods/p/proxy/metrics",
        "/api/v1/namespaces/default/services/https:kubernetes:443/proxy/api/v1/pods",
        "/api/v1/nodes/n/proxy/pods",
        "/api/v1/secrets",
        "/apis/apps/v1/deployments",
        "/healthz",
    ] {
        assert_eq!(sent(Method::GET, target), "-", "{target}");
    }
}

#[test]
fn t29_one_name_over_all_namespaces_is_a_collection() {
    for query in ["", "watch=1&allowWatchBookmarks=true&"] {
        for namespace in ["", ",metadata.namespace!%3Dother", ",metadata.namespace%3D"] {
            let target = format!("/api/v1/pods?{query}fieldSelector=metadata.name%3Dp{namespace}");
            let want = format!("{target}&labelSelector=shard%3Da");
            assert_eq!(sent(Method::GET, &target), want);
        }
    }
}

#[test]
fn t29_one_name_of_what_is_in_no_namespace_is_one_object() {
    let sharding = sharding();
    let settled = |target: &str, is_namespaced| {
        let (path, query) = target.split_once('?').unwrap();
        let info = RequestInfo::parse(&Method::GET, path, Some(query)).unwrap();
        let action = sharding.action(&info, Some(is_namespaced));
        let restriction = action.restriction().unwrap();
        (restriction.extent, restriction.scope.is_some())
    };
    let one = "/api/v1/pods?fieldSelector=metadata.name%3Dp";
    assert_eq!(settled(one, true), (Extent::Many, true));
    assert_eq!(settled(one, false), (Extent::One, false));
    let all = "/api/v1/pods?limit=1";
    assert_eq!(settled(all, false), (Extent::Many, true), "a collection is one anywhere");
}

#[test]
fn writes_of_one_object_pass() {
    for method in [Method::PUT, Method::PATCH, Method::DELETE] {
        for name in ["p", "p/status"] {
            let target = format!("/api/v1/namespaces/ns/pods/{name}?fieldManager=op");
            assert_eq!(sent(method.clone(), &target), "-", "{method} {target}");
        }
    }
    for collection in ["/api/v1/namespaces/ns/pods?dryRun=All", "/api/v1/namespaces/ns/pods"] {
        assert_eq!(sent(Method::POST, collection), "-", "{collection}");
    }
}

#[test]
fn t56_deletecollection_is_narrowed_also_by_a_name() {
    for pods in ["/api/v1/namespaces/ns/pods", "/api/v1/pods"] {
        let target = format!("{pods}?fieldSelector=metadata.name%3Dp");
        assert_eq!(sent(Method::DELETE, &target), format!("{target}&labelSelector=shard%3Da"));
    }
}

#[test]
fn t72_the_lock_has_the_shards_name_in_path_and_field_selector() {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    for method in [Method::GET, Method::PUT, Method::PATCH, Method::DELETE] {
        assert_eq!(
            sent(method, &format!("{leases}/op?timeout=5s")),
            format!("{leases}/op---blue?timeout=5s")
        );
    }
    assert_eq!(sent(Method::GET, &format!("{leases}/op---blue")), "-");
    assert_eq!(sent(Method::GET, &format!("{leases}/other")), "-");
    assert_eq!(
        sent(Method::GET, &format!("{leases}?watch=true&fieldSelector=metadata.name%3Dop")),
        format!("{leases}?watch=true&fieldSelector=metadata.name%3Dop---blue")
    );
    let all = "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.namespace%3Dns";
    assert_eq!(
        sent(Method::GET, &format!("{all}%2Cmetadata.name%3Dop")),
        format!("{all}%2Cmetadata.name%3Dop---blue")
    );
    // A list that does not name the lock shows it under its name in the cluster.
    assert_eq!(sent(Method::GET, &format!("{leases}?labelSelector=a")), "-");
    let configmaps = "/api/v1/namespaces/ns/configmaps";
    assert_eq!(
        sent(Method::DELETE, &format!("{configmaps}?fieldSelector=metadata.name%3Dop")),
        format!("{configmaps}?fieldSelector=metadata.name%3Dop---blue"),
        "the lock is the shard's, whoever has the other ConfigMaps",
    );
}

#[test]
fn t72_a_lock_of_another_namespace_is_sent_to_the_pods() {
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let own = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    let renamed = "far.kube-system---blue";
    for method in [Method::GET, Method::PUT, Method::PATCH, Method::DELETE] {
        for name in ["far", renamed] {
            assert_eq!(
                sent(method.clone(), &format!("{elsewhere}/{name}?timeout=5s")),
                format!("{own}/{renamed}?timeout=5s")
            );
        }
    }
    for (query, expected) in [
        (
            "watch=true&fieldSelector=metadata.name%3Dfar",
            format!("{own}?watch=true&fieldSelector=metadata.name%3D{renamed}"),
        ),
        ("fieldSelector=metadata.name%3Dother", "-".to_owned()),
        // A list of all others is one of that namespace.
        ("fieldSelector=metadata.name%21%3Dfar", "-".to_owned()),
    ] {
        assert_eq!(sent(Method::GET, &format!("{elsewhere}?{query}")), expected, "{query}");
    }
    let all = "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.namespace%3D";
    assert_eq!(
        sent(Method::GET, &format!("{all}kube-system%2Cmetadata.name%3Dfar")),
        format!("{all}ns%2Cmetadata.name%3D{renamed}")
    );
    let watch = "/apis/coordination.k8s.io/v1/watch/namespaces";
    assert_eq!(
        sent(Method::GET, &format!("{watch}/kube-system/leases/far")),
        format!("{watch}/ns/leases/{renamed}")
    );
}

/// The request that is sent for one with this body: its target, and its body.
fn written(method: Method, target: &str, body: &str) -> (String, String) {
    let sharding = sharding();
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    let info = RequestInfo::parse(&method, path, query).unwrap();
    let renamed = sharding.rename_in_body(&info, BodyKind::Json, body.as_bytes()).unwrap();
    let none = || "-".to_owned();
    let (target, body) = renamed.map_or_else(Default::default, |renamed| {
        (renamed.target, Some(String::from_utf8(renamed.body).unwrap()))
    });
    (target.unwrap_or_else(none), body.unwrap_or_else(none))
}

#[test]
fn t72_a_write_of_a_lock_of_another_namespace_is_one_of_the_pods() {
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let own = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    let body = |name: &str, namespace: &str| {
        format!(r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}"}}}}"#)
    };
    let renamed = body("far.kube-system---blue", "ns");
    let created = |name: &str| {
        written(Method::POST, &format!("{elsewhere}?fieldManager=x"), &body(name, "kube-system"))
    };
    assert_eq!(created("far"), (format!("{own}?fieldManager=x"), renamed.clone()));
    assert_eq!(created("other"), ("-".to_owned(), "-".to_owned()));
    let bare = written(Method::POST, elsewhere, r#"{"metadata":{"name":"far"}}"#);
    assert_eq!(bare.1, r#"{"metadata":{"name":"far.kube-system---blue"}}"#);
    for name in ["far", "far.kube-system---blue"] {
        for method in [Method::PUT, Method::PATCH] {
            let target = format!("{elsewhere}/{name}");
            assert_eq!(written(method.clone(), &target, &body(name, "kube-system")).1, renamed);
            let namespace = r#"{"metadata":{"namespace":"kube-system"}}"#;
            assert_eq!(written(method, &target, namespace).1, r#"{"metadata":{"namespace":"ns"}}"#);
        }
    }
    let there = written(
        Method::POST,
        "/api/v1/namespaces/kube-system/configmaps",
        &body("far", "kube-system"),
    );
    assert_eq!(there, ("-".to_owned(), body("far---blue", "kube-system")));
}

/// A shard with the Secrets of `a`, to which those of `keys` are shown, and cluster-scoped objects.
const SHOWN: &str = "
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: blue, namespace: ops}
spec:
  selector: {matchLabels: {app: op}}
  shared:
  - {apiGroups: [''], resources: [secrets], namespaces: [keys]}
  - {apiGroups: ['*'], resources: ['*'], namespaces: ['']}
  limits:
  - {namespaces: {names: [a]}, clusterScoped: Exclude}
";

#[test]
fn what_is_shared_is_shown_and_not_owned() {
    let draft = from_documents(SHOWN.as_bytes(), "blue", Some("ops")).unwrap();
    let sharding = draft.resolve(None).unwrap().sharding;
    let filter = |method: Method, target: &str| {
        let info = RequestInfo::parse(&method, target, None).unwrap();
        sharding.action(&info, None).restriction().unwrap().filter.clone()
    };
    let object = |namespace, name| Object { namespace, name, uid: "u", ..Object::default() };
    let all = filter(Method::GET, "/api/v1/secrets");
    for (namespace, verdict) in
        [("a", Verdict::Keep), ("keys", Verdict::Keep), ("b", Verdict::Drop)]
    {
        assert_eq!(all.judge(&object(namespace, "x")), verdict, "{namespace}");
    }
    let of = |namespace: &str, resource: &str| {
        filter(Method::GET, &format!("/api/v1/namespaces/{namespace}/{resource}"))
    };
    assert_eq!([of("a", "secrets"), of("keys", "secrets")], [Filter::KeepAll, Filter::KeepAll]);
    assert_eq!([of("keys", "pods"), of("b", "secrets")], [Filter::DropAll, Filter::DropAll]);
    let classes = filter(Method::GET, "/apis/example.com/v1/classes");
    assert_eq!(classes.judge(&object("", "x")), Verdict::Keep);
    assert_eq!(classes.judge(&object("keys", "x")), Verdict::Drop, "not of this resource");
    // A Namespace counts as the one that it names.
    let namespaces = filter(Method::GET, "/api/v1/namespaces");
    for (name, verdict) in [("a", Verdict::Keep), ("keys", Verdict::Drop), ("b", Verdict::Drop)] {
        assert_eq!(namespaces.judge(&object("", name)), verdict, "{name}");
    }
    // The owner alone deletes.
    assert_eq!(filter(Method::DELETE, "/api/v1/namespaces/keys/secrets"), Filter::DropAll);
    let deleted = filter(Method::DELETE, "/api/v1/secrets");
    assert_eq!(deleted.judge(&object("keys", "x")), Verdict::Drop);
    // Neither does it claim more, nor have a hash that is another's.
    let alone = SHOWN.split_inclusive('\n').filter(|line| !line.contains("{apiGroups"));
    let alone = alone.collect::<String>().replace("  shared:\n", "");
    let other = from_documents(alone.as_bytes(), "blue", Some("ops")).unwrap();
    let other = other.resolve(None).unwrap().sharding;
    assert_eq!(other.area(), sharding.area());
    assert_ne!(other.hash(), sharding.hash());
    assert!(!other.is_within(&sharding, &sharding.area()));
    let differs =
        |group, resource| other.limits_otherwise(&sharding, &GroupResource::new(group, resource));
    assert!(differs("", "secrets") && differs("example.com", "classes"));
    assert!(!differs("coordination.k8s.io", "leases"), "it is not limited");
}
