use http::Method;

use super::*;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
const ELSEWHERE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// The locks of the shard `blue` in `ns`, each as `namespace/name`.
fn locks(names: &[&str]) -> Result<Locks, BadLock> {
    let names = names.iter().map(|lock| {
        let (namespace, name) = lock.split_once('/').unwrap();
        LockName::new(name, namespace)
    });
    Locks::new(names.collect::<Result<Vec<_>, _>>()?, "blue", "ns")
}

fn found_of(locks: &Locks, method: Method, path: &str, query: Option<&str>) -> Option<LockIn> {
    let info = RequestInfo::parse(&method, path, query).unwrap();
    locks.find(&info)
}

fn found(method: Method, path: &str, query: Option<&str>) -> Option<LockIn> {
    found_of(&locks(&["ns/op"]).unwrap(), method, path, query)
}

/// The shard's own lock in place of the object at this path, as `namespace/name`.
fn own(locks: &Locks, path: &str) -> Option<String> {
    let info = RequestInfo::parse(&Method::GET, path, None).unwrap();
    let resource = info.resource().unwrap();
    let own =
        locks.own_lock(resource, info.namespace().unwrap(), resource.name.as_deref().unwrap());
    own.map(|own| format!("{}/{}", own.namespace, own.name))
}

#[test]
fn t72_every_verb_of_the_lock_is_found() {
    let one = format!("{LEASES}/op");
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(found(method, &one, None), Some(LockIn::Path));
    }
    for method in [Method::PUT, Method::PATCH] {
        assert_eq!(found(method, &one, None), Some(LockIn::PathAndBody));
    }
    assert_eq!(found(Method::POST, LEASES, None), Some(LockIn::Body));
    for (method, query) in [
        (Method::GET, "fieldSelector=metadata.name%3Dop"),
        (Method::GET, "watch=1&fieldSelector=metadata.name%3Dop"),
        (Method::DELETE, "fieldSelector=metadata.name%3Dop"),
    ] {
        assert_eq!(found(method, LEASES, Some(query)), Some(LockIn::FieldSelector));
    }
    let all = "/apis/coordination.k8s.io/v1/leases";
    let query = "fieldSelector=metadata.namespace%3Dns,metadata.name%3Dop";
    for query in [query, &format!("watch=1&{query}")] {
        assert_eq!(found(Method::GET, all, Some(query)), Some(LockIn::FieldSelector));
    }
    let watch = "/apis/coordination.k8s.io/v1/watch/namespaces/ns/leases/op";
    assert_eq!(found(Method::GET, watch, None), Some(LockIn::Path));
    for kind in ["configmaps", "endpoints"] {
        let path = format!("/api/v1/namespaces/ns/{kind}/op");
        assert_eq!(found(Method::GET, &path, None), Some(LockIn::Path));
    }
}

#[test]
fn t72_what_is_no_lock_of_ours_is_left_alone() {
    for path in [
        "/apis/coordination.k8s.io/v1/namespaces/other/leases/op",
        "/apis/coordination.k8s.io/v1/namespaces/ns/leases/op2",
        "/apis/coordination.k8s.io/v1/namespaces/ns/leases/op---green",
        "/api/v1/namespaces/ns/pods/op",
        "/api/v1/namespaces/ns/configmaps/op/status",
    ] {
        assert_eq!(found(Method::GET, path, None), None, "{path}");
    }
    // Locks of this name in other namespaces may be listed too, and are not ours to rename.
    let all = "/apis/coordination.k8s.io/v1/leases";
    for fields in ["metadata.name%3Dop", "metadata.name%3Dop,metadata.namespace%3Dother"] {
        let query = format!("fieldSelector={fields}");
        assert_eq!(found(Method::GET, all, Some(&query)), None, "{query}");
    }
}

#[test]
fn t72_a_name_is_renamed_once() {
    let locks = locks(&["ns/op"]).unwrap();
    for (name, expected) in [
        ("op", Some("ns/op---blue")),
        ("op---blue", Some("ns/op---blue")),
        ("op---green", None),
        ("op2", None),
    ] {
        assert_eq!(own(&locks, &format!("{LEASES}/{name}")).as_deref(), expected, "{name}");
    }
    let suffixed = found(Method::PUT, &format!("{LEASES}/op---blue"), None);
    assert_eq!(suffixed, Some(LockIn::PathAndBody), "its body may still say the short name");
}

#[test]
fn t72_a_lock_of_another_namespace_is_a_lease_beside_the_pods() {
    let locks = locks(&["ns/op", "kube-system/op", "kube-system/op-webhook"]).unwrap();
    let elsewhere = Some("ns/op.kube-system---blue");
    for (path, expected) in [
        // client-go asks for the new name in the namespace that it was told.
        (format!("{ELSEWHERE}/op"), elsewhere),
        (format!("{ELSEWHERE}/op.kube-system---blue"), elsewhere),
        (format!("{LEASES}/op.kube-system---blue"), elsewhere),
        // The lock of this name next to the pods is another one.
        (format!("{LEASES}/op"), Some("ns/op---blue")),
        (format!("{LEASES}/op-webhook"), Some("ns/op-webhook.kube-system---blue")),
        (format!("{ELSEWHERE}/op.kube-system---green"), None),
        (format!("{ELSEWHERE}/kube-scheduler"), None),
        // The mesh gives no rights to these: they stay in their namespace.
        ("/api/v1/namespaces/kube-system/configmaps/op".to_owned(), Some("kube-system/op---blue")),
        (
            "/api/v1/namespaces/kube-system/endpoints/op---blue".to_owned(),
            Some("kube-system/op---blue"),
        ),
        ("/api/v1/namespaces/ns/configmaps/op-webhook".to_owned(), None),
    ] {
        assert_eq!(own(&locks, &path).as_deref(), expected, "{path}");
    }
    let body = found_of(&locks, Method::POST, ELSEWHERE, None);
    assert_eq!(body, Some(LockIn::Body));
    let other = "/apis/coordination.k8s.io/v1/namespaces/other/leases";
    assert_eq!(found_of(&locks, Method::POST, other, None), None);
}

#[test]
fn t72_a_beginning_is_all_locks_that_begin_so() {
    let locks = locks(&["ns/op-*", "kube-system/team.*"]).unwrap();
    for (path, expected) in [
        (format!("{LEASES}/op-a"), Some("ns/op-a---blue")),
        (format!("{LEASES}/op-a---blue"), Some("ns/op-a---blue")),
        (format!("{LEASES}/op-a---green"), None),
        (format!("{LEASES}/op"), None),
        (format!("{ELSEWHERE}/team.b"), Some("ns/team.b.kube-system---blue")),
        (format!("{ELSEWHERE}/team.b.kube-system---blue"), Some("ns/team.b.kube-system---blue")),
        (format!("{ELSEWHERE}/team.b.kube-system---green"), None),
        (format!("{ELSEWHERE}/op-a"), None),
    ] {
        assert_eq!(own(&locks, &path).as_deref(), expected, "{path}");
    }
    let names: Vec<_> = locks.own_names().collect();
    assert_eq!(names, ["ns/op-*---blue", "ns/team.*.kube-system---blue"]);
}

#[test]
fn a_lock_has_an_object_name() {
    for name in ["", "Op", "a b", "-a", "a.", "a..b", "a*b", "**", "-*"] {
        let bad = LockName::new(name, "ns");
        assert!(matches!(bad, Err(BadLock::Name(_))), "{name} {bad:?}");
    }
    assert_eq!(LockName::new("*", "ns"), Err(BadLock::Everything("*".to_owned())));
    for namespace in ["", "Ns", "a.b", &"a".repeat(64)] {
        let bad = LockName::new("op", namespace);
        assert!(matches!(bad, Err(BadLock::Namespace(_))), "{namespace} {bad:?}");
    }
    let long = "a".repeat(250);
    assert!(matches!(locks(&[&format!("ns/{long}")]), Err(BadLock::TooLong(..))));
}

#[test]
fn bad_locks_of_one_name() {
    for (names, both) in [
        (["ns/op", "ns/op"], "op---blue"),
        (["ns/op.kube-system", "kube-system/op"], "op.kube-system---blue"),
        (["ns/op-*", "ns/op-a"], "op-a---blue"),
        (["ns/op-a", "ns/op-*"], "op-a---blue"),
        (["ns/op-*", "ns/op-a*"], "op-a---blue"),
        (["ns/op-*", "kube-system/op-a*"], "op-a.kube-system---blue"),
        (["ns/op*", "kube-system/op"], "op.kube-system---blue"),
    ] {
        match locks(&names) {
            Err(BadLock::Same(_, _, found)) => assert_eq!(found, both, "{names:?}"),
            other => panic!("{names:?}: {other:?}"),
        }
    }
    for names in [
        ["ns/op", "kube-system/op"],
        ["ns/op-*", "ns/op"],
        ["ns/op-a*", "ns/op-b*"],
        ["a/op*", "b/op*"],
    ] {
        assert!(locks(&names).is_ok(), "{names:?}");
    }
    let many: Vec<_> = (0..33).map(|at| format!("ns/op-{at}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(locks(&many), Err(BadLock::TooMany(33)));
    assert!(locks(&many[..32]).is_ok());
}
