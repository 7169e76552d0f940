//! The fence by examples, and against a plain second implementation.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
};

use http::Method;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Policy, from_documents};

/// An error and its causes.
fn told(error: &dyn Error) -> String {
    let all = std::iter::successors(Some(error), |error| (*error).source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The policy of the shard `blue`, whose pods are in `ops`, with these fields of the spec in JSON.
fn policy(limits: &Value, fence: &Value) -> Policy {
    shared_policy(limits, fence, &json!([]))
}

/// The same, with what all shards are shown.
fn shared_policy(limits: &Value, fence: &Value, shared: &Value) -> Policy {
    let config = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": { "name": "blue", "namespace": "ops" },
        "spec": {
            "selector": { "matchLabels": { "app": "op" } },
            "controller": { "locks": [{ "name": "op", "namespace": "kube-system" }] },
            "fence": fence,
            "shared": shared,
            "limits": limits,
        },
    });
    from_documents(config.to_string().as_bytes(), "blue", None).unwrap().resolve(None).unwrap()
}

fn of(resources: &[&str], rest: &Value) -> Value {
    let mut limit = json!({ "relateResources": [{ "apiGroups": ["*"], "resources": resources }] });
    for (key, value) in rest.as_object().unwrap() {
        limit[key] = value.clone();
    }
    limit
}

/// Widgets of the namespace `a` alone.
fn widgets_of_a() -> Value {
    json!([of(
        &["widgets"],
        &json!({ "namespaces": { "names": ["a"] }, "clusterScoped": "Exclude" })
    )])
}

fn enforced() -> Value {
    json!({ "mode": "Enforce" })
}

fn judge(policy: &Policy, method: &str, target: &str) -> Verdict {
    let method: Method = method.parse().unwrap();
    let (path, query) =
        target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let info = RequestInfo::parse(&method, path, query).unwrap();
    policy.fence.judge(&policy.sharding, &info, &policy.sharding.action(&info, None))
}

#[test]
fn bad_namespace_of_another_shard_is_refused_whatever_the_resource() {
    let policy = policy(&widgets_of_a(), &enforced());
    for (method, path) in [
        ("POST", "/apis/example.com/v1/namespaces/b/widgets"),
        ("PUT", "/apis/example.com/v1/namespaces/b/widgets/x"),
        ("PATCH", "/apis/example.com/v1/namespaces/b/widgets/x/status"),
        ("POST", "/api/v1/namespaces/b/secrets"),
        ("POST", "/api/v1/namespaces/b/secrets?dryRun=All"),
        ("DELETE", "/api/v1/namespaces/b/secrets/x"),
        ("DELETE", "/api/v1/namespaces/b/secrets"),
        ("PATCH", "/api/v1/namespaces/b/secrets/x?fieldManager=m&force=true"),
        ("POST", "/api/v1/namespaces/b/bindings"),
        ("POST", "/api/v1/namespaces/b/pods/x/binding"),
        ("POST", "/api/v1/namespaces/b/pods/x/eviction"),
        ("PATCH", "/api/v1/namespaces/b/pods/x/ephemeralcontainers"),
        ("PUT", "/api/v1/namespaces/b"),
        ("PATCH", "/api/v1/namespaces/b/status"),
        ("DELETE", "/api/v1/namespaces/b"),
        ("DELETE", "/api/v1/namespaces/%62/secrets/x"),
        ("POST", "/api/v1/namespaces/kube-system/secrets"),
    ] {
        assert_eq!(judge(&policy, method, path), Verdict::Refused, "{method} {path}");
        let inside = path.replace("/namespaces/b", "/namespaces/a");
        if inside != path {
            assert_eq!(judge(&policy, method, &inside), Verdict::Inside, "{method} {inside}");
        }
    }
    // An API server might read it otherwise: it is refused as a path.
    RequestInfo::parse(&Method::DELETE, "/api/v1/namespaces/a%2Fb/secrets/x", None).unwrap_err();
}

#[test]
fn what_any_shard_may_send_is_exempt() {
    let policy = policy(&widgets_of_a(), &enforced());
    for (method, path) in [
        ("GET", "/api/v1/namespaces/b/secrets/x"),
        ("GET", "/api/v1/namespaces/b/secrets?watch=1"),
        ("POST", "/apis/coordination.k8s.io/v1/namespaces/b/leases"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/b/leases/x"),
        ("POST", "/api/v1/namespaces/b/events"),
        ("PATCH", "/apis/events.k8s.io/v1/namespaces/b/events/x"),
        ("POST", "/apis/authorization.k8s.io/v1/namespaces/b/localsubjectaccessreviews"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
        ("POST", "/api/v1/namespaces"),
        ("POST", "/api/v1/namespaces/b/serviceaccounts/x/token"),
        ("POST", "/api/v1/namespaces/b/pods/x/exec?command=sh"),
        ("POST", "/api/v1/namespaces/b/pods/x/attach"),
        ("POST", "/api/v1/namespaces/b/pods/x/portforward"),
        ("POST", "/api/v1/namespaces/b/pods/x/proxy/any/path"),
        ("DELETE", "/api/v1/namespaces/b/services/x:80/proxy/any"),
        ("PUT", "/api/v1/namespaces/kube-system/configmaps/op"),
        ("POST", "/version"),
    ] {
        assert_eq!(judge(&policy, method, path), Verdict::Exempt, "{method} {path}");
        assert!(!Verdict::Exempt.is_waited_for(true));
    }
    // Of other groups they are ordinary.
    for path in [
        "/apis/example.com/v1/namespaces/b/pods/x/exec",
        "/apis/example.com/v1/namespaces/b/events",
        "/apis/example.com/v1/namespaces/b/reviews",
        "/api/v1/namespaces/b/replicationcontrollers/x/proxy",
    ] {
        assert_eq!(judge(&policy, "POST", path), Verdict::Refused, "{path}");
    }
}

#[test]
fn what_is_in_no_namespace_is_not_judged() {
    let policy = policy(&widgets_of_a(), &enforced());
    for (method, path) in [
        ("POST", "/api/v1/nodes"),
        ("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x"),
        ("DELETE", "/api/v1/secrets"),
        ("POST", "/api/v1/secrets"),
        ("PATCH", "/apis/example.com/v1/widgets/x"),
    ] {
        let verdict = judge(&policy, method, path);
        assert!(matches!(verdict, Verdict::Unjudged | Verdict::Exempt), "{path}: {verdict:?}");
        assert!(!verdict.is_waited_for(false));
    }
}

#[test]
fn the_mode_and_the_pods_own_namespace_decide_about_foreign_writes() {
    let secret = "/api/v1/namespaces/b/secrets/x";
    for (fence, verdict) in [
        (json!({ "mode": "Enforce" }), Verdict::Refused),
        (json!({ "mode": "Warn" }), Verdict::Warned),
        (json!({}), Verdict::Warned),
        (Value::Null, Verdict::Warned),
        (json!({ "mode": "Disabled" }), Verdict::Unjudged),
    ] {
        let policy = policy(&widgets_of_a(), &fence);
        assert_eq!(judge(&policy, "DELETE", secret), verdict, "{fence}");
        for (method, path, is_own) in [
            ("POST", "secrets", true),
            ("PUT", "configmaps/x", true),
            ("PATCH", "services/x/status", true),
            ("PATCH", "serviceaccounts/x", true),
            ("DELETE", "secrets/x", false),
            ("DELETE", "secrets", false),
            ("POST", "pods", false),
            ("POST", "pods/x/eviction", false),
        ] {
            let own = judge(&policy, method, &format!("/api/v1/namespaces/ops/{path}"));
            let is_judged = verdict != Verdict::Unjudged;
            let expected = if is_judged && is_own { Verdict::Excepted } else { verdict };
            assert_eq!(own, expected, "{fence} {method} {path}");
        }
        let widget = judge(&policy, "PATCH", "/apis/example.com/v1/namespaces/ops/secrets/x");
        assert_eq!(widget, verdict, "of another group");
    }
    let open = policy(&widgets_of_a(), &json!({}));
    let fence = Fence::clone(&open.fence).or_mode(FenceMode::Enforce);
    assert_eq!(judge(&Policy { fence: fence.into(), ..open }, "DELETE", secret), Verdict::Refused);
    let told = policy(&widgets_of_a(), &json!({ "mode": "Disabled" }));
    let fence = Fence::clone(&told.fence).or_mode(FenceMode::Enforce);
    assert_eq!(judge(&Policy { fence: fence.into(), ..told }, "DELETE", secret), Verdict::Unjudged);
}

#[test]
fn one_limit_without_namespaces_leaves_other_resources_alone() {
    let half =
        json!({ "hash": { "of": "uid", "ranges": [{ "from": "0x8000000000000000", "to": "" }] } });
    for rest in [half, json!({ "selector": { "matchLabels": { "team": "blue" } } }), json!({})] {
        let limits = json!([widgets_of_a()[0], of(&["gadgets"], &rest)]);
        let policy = policy(&limits, &enforced());
        let gadget = judge(&policy, "POST", "/apis/example.com/v1/namespaces/b/gadgets");
        assert_eq!(gadget, Verdict::Unjudged, "{rest}");
        assert_eq!(
            judge(&policy, "POST", "/api/v1/namespaces/b/secrets"),
            Verdict::Unjudged,
            "{rest}"
        );
        let widget = judge(&policy, "POST", "/apis/example.com/v1/namespaces/b/widgets");
        assert_eq!(widget, Verdict::Refused, "{rest}");
    }
    let none = policy(&json!([]), &enforced());
    assert_eq!(judge(&none, "POST", "/api/v1/namespaces/b/secrets"), Verdict::Unjudged);
}

#[test]
fn others_go_by_the_namespaces_of_all_limits_together() {
    let limits = json!([
        of(&["widgets"], &json!({ "namespaces": { "names": ["a"] }, "clusterScoped": "Exclude" })),
        of(
            &["gadgets"],
            &json!({ "namespaces": { "pattern": "^team-" }, "clusterScoped": "Exclude" })
        ),
    ]);
    let policy = policy(&limits, &enforced());
    let of = |namespace: &str, resource: &str| {
        judge(&policy, "POST", &format!("/apis/example.com/v1/namespaces/{namespace}/{resource}"))
    };
    assert_eq!([of("a", "secrets"), of("team-1", "secrets")], [Verdict::Inside; 2]);
    assert_eq!([of("a", "widgets"), of("team-1", "gadgets")], [Verdict::Inside; 2]);
    assert_eq!(
        [of("a", "gadgets"), of("team-1", "widgets"), of("b", "secrets")],
        [Verdict::Refused; 3]
    );
}

#[test]
fn bad_write_of_what_is_shared_is_the_owners_unless_all_may() {
    let entry = |resource: &str, namespace: &str, write: &str| {
        json!({
            "apiGroups": ["*"], "resources": [resource], "namespaces": [namespace], "write": write,
        })
    };
    let shared = json!([
        entry("secrets", "b", "All"),
        entry("widgets", "b", "Owner"),
        entry("gadgets", "", "All"),
        entry("*", "", "Owner"),
        entry("secrets", "a", "Owner"),
        // The first entry that names an object counts.
        entry("widgets", "b", "All"),
    ]);
    let whole = json!([{ "namespaces": { "names": ["a"] }, "clusterScoped": "Exclude" }]);
    let first = json!([{ "namespaces": { "names": ["b"] }, "clusterScoped": "Include" }]);
    let [other, owner] = [whole, first].map(|limits| shared_policy(&limits, &enforced(), &shared));
    for (method, path, verdict) in [
        ("POST", "/api/v1/namespaces/b/secrets", Verdict::Excepted),
        ("PUT", "/api/v1/namespaces/b/secrets/x", Verdict::Excepted),
        ("DELETE", "/api/v1/namespaces/b/secrets/x", Verdict::Refused),
        ("DELETE", "/api/v1/namespaces/b/secrets", Verdict::Refused),
        ("POST", "/apis/example.com/v1/namespaces/b/widgets", Verdict::Refused),
        ("POST", "/api/v1/namespaces/b/configmaps", Verdict::Refused),
        ("POST", "/apis/example.com/v1/gadgets", Verdict::Excepted),
        ("PATCH", "/apis/example.com/v1/gadgets/x/status", Verdict::Excepted),
        ("DELETE", "/apis/example.com/v1/gadgets/x", Verdict::Refused),
        ("PATCH", "/apis/example.com/v1/classes/x", Verdict::Refused),
        ("DELETE", "/api/v1/nodes/x", Verdict::Refused),
    ] {
        assert_eq!(judge(&other, method, path), verdict, "{method} {path}");
        assert_eq!(judge(&owner, method, path), Verdict::Inside, "{method} {path}");
    }
    // What no entry names, or no limit, is not judged, and a lock is the shard's own.
    let unjudged = policy(
        &json!([of(
            &["widgets"],
            &json!({
                "namespaces": { "names": ["a"] }, "clusterScoped": "Exclude",
            })
        )]),
        &enforced(),
    );
    assert_eq!(judge(&unjudged, "PATCH", "/apis/example.com/v1/widgets/x"), Verdict::Unjudged);
    let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x";
    assert_eq!(judge(&other, "PATCH", crd), Verdict::Exempt);
    // The entry that a refusal tells lets it pass.
    let info = RequestInfo::parse(&Method::DELETE, "/apis/example.com/v1/gadgets/x", None).unwrap();
    let refused = other.fence.refused(&other.sharding, &info, Some("green"));
    assert_eq!(
        refused.why,
        "cannot delete gadgets.example.com \"x\" in no namespace, of shard green: such an object is not in \
         shard blue by spec.limits[0] of ShardingConfig ops/blue; to let such writes pass, add to its \
         spec.fence.except: {apiGroups: [example.com], resources: [gadgets], namespaces: [\"\"], verbs: [delete]}"
    );
    let except = Foreign::of(&info).unwrap().except();
    let fence = json!({ "mode": "Enforce", "except": [except] });
    let whole = json!([{ "namespaces": { "names": ["a"] }, "clusterScoped": "Exclude" }]);
    let open = shared_policy(&whole, &fence, &shared);
    assert_eq!(judge(&open, "DELETE", "/apis/example.com/v1/gadgets/x"), Verdict::Excepted);
}

#[test]
fn bad_shared_entries_say_which_and_why() {
    let with = |change: &Value| {
        let mut entry = json!({ "apiGroups": [""], "resources": ["secrets"], "namespaces": ["b"] });
        for (key, value) in change.as_object().unwrap() {
            entry[key] = value.clone();
        }
        let spec = json!({
            "selector": { "matchLabels": { "a": "b" } },
            "shared": [entry, { "apiGroups": [""], "resources": ["secrets"], "namespaces": ["b"] }],
        });
        let config = json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
            "metadata": { "name": "blue", "namespace": "ops" }, "spec": spec,
        });
        from_documents(config.to_string().as_bytes(), "blue", None)
    };
    for (change, said) in [
        (json!({ "apiGroups": [] }), "spec.shared[0]: apiGroups is empty: name a group"),
        (json!({ "resources": [] }), "spec.shared[0]: resources is empty: name a resource"),
        (json!({ "resources": ["pods/status"] }), "\"pods/status\" is not a resource"),
        (json!({ "apiGroups": ["Apps"] }), "\"Apps\" is not an API group"),
        (json!({ "namespaces": [] }), "namespaces is empty: name the namespaces"),
        (json!({ "namespaces": ["team-*"] }), "\"team-*\" is not a namespace"),
        (json!({ "write": "Nobody" }), "unknown variant `Nobody`"),
        (json!({ "namespace": "b" }), "unknown field `namespace`"),
    ] {
        let error = with(&change).unwrap_err();
        let error = told(&error);
        assert!(error.contains(said), "{error}");
    }
    let draft = with(&json!({ "write": "All" })).unwrap();
    let warnings: Vec<_> = draft.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["spec.shared[1]: says nothing: spec.shared[0] names the same, and counts"]
    );
}

/// An exception for creates and deletes of Secrets in `b`, with these fields in place of its own.
fn entry(change: &Value) -> Value {
    let mut entry = json!({
        "apiGroups": [""], "resources": ["secrets"], "namespaces": ["b"], "verbs": ["create", "delete"],
    });
    for (key, value) in change.as_object().unwrap() {
        entry[key] = value.clone();
    }
    entry
}

#[test]
fn exceptions_are_exact() {
    let judged = |entry: &Value, method: &str, path: &str| {
        judge(
            &policy(&widgets_of_a(), &json!({ "mode": "Enforce", "except": [entry] })),
            method,
            path,
        )
    };
    let exact = entry(&json!({}));
    let excepted =
        [("POST", "/api/v1/namespaces/b/secrets"), ("DELETE", "/api/v1/namespaces/b/secrets/x")];
    for (method, path) in excepted {
        assert_eq!(judged(&exact, method, path), Verdict::Excepted, "{method} {path}");
    }
    for (method, path) in [
        ("PUT", "/api/v1/namespaces/b/secrets/x"),
        ("DELETE", "/api/v1/namespaces/b/secrets"),
        ("POST", "/api/v1/namespaces/bb/secrets"),
        ("POST", "/api/v1/namespaces/b/secretstores"),
        ("POST", "/apis/example.com/v1/namespaces/b/secrets"),
    ] {
        assert_eq!(judged(&exact, method, path), Verdict::Refused, "{method} {path}");
    }
    let any = entry(&anything());
    assert_eq!(judged(&any, "PUT", "/apis/x/v1/namespaces/c/ys/z/status"), Verdict::Excepted);
}

fn anything() -> Value {
    json!({ "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "verbs": [] })
}

/// The config `blue` with these exceptions.
fn with_exceptions(except: &[Value]) -> String {
    let spec =
        json!({ "selector": { "matchLabels": { "a": "b" } }, "fence": { "except": except } });
    let config = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": { "name": "blue", "namespace": "ops" }, "spec": spec,
    });
    config.to_string()
}

#[test]
fn bad_exceptions_say_which_entry_and_why() {
    for (change, said) in [
        (json!({ "apiGroups": [] }), "spec.fence.except[0]: apiGroups is empty: name a group"),
        (json!({ "resources": [] }), "resources is empty: name a resource in plural"),
        (json!({ "resources": ["pods/status"] }), "\"pods/status\" is not a resource"),
        (json!({ "apiGroups": ["Apps"] }), "\"Apps\" is not an API group"),
        (json!({ "namespaces": [] }), "namespaces is empty: name the namespaces"),
        (json!({ "namespaces": ["team-*"] }), "\"team-*\" is not a namespace"),
        (json!({ "verbs": ["get"] }), "\"get\" is not a verb that writes"),
        (json!({ "verb": ["create"] }), "unknown field `verb`"),
    ] {
        let config = with_exceptions(&[entry(&change)]);
        let error = from_documents(config.as_bytes(), "blue", None).unwrap_err();
        let error = told(&error);
        assert!(error.contains(said), "{error}");
    }
    let [any, exact] = [anything(), json!({})].map(|change| entry(&change));
    let config = with_exceptions(&[any, exact.clone(), exact]);
    let draft = from_documents(config.as_bytes(), "blue", None).unwrap();
    let warnings: Vec<_> = draft.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "spec.fence.except[0]: lets every write pass: name resources and namespaces, or set mode: Disabled"
        ]
    );
}

#[test]
fn a_refusal_names_shard_owner_config_field_and_remedy() {
    let policy = policy(&widgets_of_a(), &enforced());
    let refused = |path: &str, owner| {
        let info = RequestInfo::parse(&Method::DELETE, path, None).unwrap();
        policy.fence.refused(&policy.sharding, &info, owner)
    };
    let secret = refused("/api/v1/namespaces/b/secrets/x", Some("green"));
    assert_eq!(
        secret.why,
        "cannot delete secrets \"x\" in namespace b, of shard green: the namespace is not in shard blue by \
         spec.limits of ShardingConfig ops/blue; to let such writes pass, add to its spec.fence.except: \
         {apiGroups: [\"\"], resources: [secrets], namespaces: [b], verbs: [delete]}"
    );
    let status = &secret.status;
    assert_eq!(
        (status.code, status.reason.as_str(), secret.retry_after),
        (403, "NotInShard", None)
    );
    let details = status.details.clone().unwrap();
    assert_eq!(
        (&*details.name, &*details.kind, details.retry_after_seconds),
        ("x", "secrets", None)
    );
    let widget = refused("/apis/example.com/v1/namespaces/b/widgets/x", None);
    assert!(
        widget.why.contains("widgets.example.com \"x\" in namespace b: the namespace"),
        "{}",
        widget.why
    );
    assert!(widget.why.contains("by spec.limits[0] of ShardingConfig ops/blue"), "{}", widget.why);
}

#[test]
fn the_owner_is_the_shard_whose_namespace_it_is() {
    let green = json!([of(
        &["widgets"],
        &json!({ "namespaces": { "names": ["b"] }, "clusterScoped": "Exclude" })
    )]);
    let areas = [
        ("blue", policy(&widgets_of_a(), &json!({})).sharding.area()),
        ("green", policy(&green, &json!({})).sharding.area()),
    ];
    for resource in [("", "secrets"), ("example.com", "widgets")] {
        for (namespace, owner) in [("a", Some("blue")), ("b", Some("green")), ("c", None)] {
            let resource = GroupResource::new(resource.0, resource.1);
            let foreign = Foreign { resource, namespace: namespace.into(), verb: "create" };
            assert_eq!(
                foreign.owner(areas.iter().map(|(name, area)| (*name, area))),
                owner,
                "{foreign:?}"
            );
        }
    }
}

/// The namespaces of the model: the pods' own, and others.
const NAMESPACES: [&str; 5] = ["a", "b", "team-1", "team-2", "ops"];
/// The resources of the model: group, name and whether it is shared by all shards.
const RESOURCES: [(&str, &str, bool); 5] = [
    ("", "secrets", false),
    ("example.com", "widgets", false),
    ("example.com", "gadgets", false),
    ("", "events", true),
    ("coordination.k8s.io", "leases", true),
];

/// What a limit of the model has: a set of namespaces, or what no namespace tells.
#[derive(Clone, Debug)]
enum Has {
    Namespaces(BTreeSet<&'static str>),
    Labels,
}

/// A config of the model: what each resource is limited to.
type Model = BTreeMap<usize, Has>;

fn model() -> impl Strategy<Value = Model> {
    let names = prop::sample::subsequence(NAMESPACES.to_vec(), 1..4);
    let has = prop_oneof![
        6 => names.prop_map(|names| Has::Namespaces(names.into_iter().collect())),
        1 => Just(Has::Labels),
    ];
    // Shared resources are not limited by name: that a limit says so is another test.
    prop::collection::btree_map(0..3_usize, has, 0..4)
}

fn limits(model: &Model) -> Value {
    let limits = model.iter().map(|(at, has)| {
        let rest = match has {
            Has::Namespaces(names) => {
                json!({ "namespaces": { "names": names }, "clusterScoped": "Exclude" })
            }
            Has::Labels => json!({ "selector": { "matchLabels": { "team": "blue" } } }),
        };
        let (group, name, _) = RESOURCES[*at];
        let mut limit = of(&[name], &rest);
        limit["relateResources"][0]["apiGroups"] = json!([group]);
        limit
    });
    limits.collect()
}

/// The verdict, plainly: the model is asked resource by resource. In a move, the rest of a limit is what
/// both configs have, while the newer one says whether namespaces decide.
fn plainly(
    newer: &Model,
    older: &Model,
    (resource, namespace, verb): (usize, &str, &str),
    mode: FenceMode,
    except: &[(usize, &str, &str)],
    shared: &[(usize, &str, bool)],
) -> Verdict {
    if RESOURCES[resource].2 || verb == "get" {
        return Verdict::Exempt;
    }
    if mode == FenceMode::Disabled {
        return Verdict::Unjudged;
    }
    let left = |at: usize| -> Option<BTreeSet<&str>> {
        match (newer.get(&at), older.get(&at)) {
            (Some(Has::Namespaces(one)), Some(Has::Namespaces(other))) => {
                Some(one.intersection(other).copied().collect())
            }
            (Some(Has::Namespaces(one)), _) | (_, Some(Has::Namespaces(one))) => Some(one.clone()),
            _ => None,
        }
    };
    let is_limited = newer.contains_key(&resource) || older.contains_key(&resource);
    let owned = if is_limited {
        left(resource)
    } else if newer.is_empty() || newer.values().any(|has| matches!(has, Has::Labels)) {
        None
    } else {
        Some((0..3).filter_map(left).flatten().collect())
    };
    let Some(owned) = owned else { return Verdict::Unjudged };
    let is_delete = ["delete", "deletecollection"].contains(&verb);
    let is_beside_pods = RESOURCES[resource].1 == "secrets" && namespace == "ops";
    let mut entries = shared.iter().filter(|(of, at, _)| (*of, *at) == (resource, namespace));
    let is_for_all = entries.next().is_some_and(|(_, _, all_write)| *all_write);
    if owned.contains(namespace) {
        Verdict::Inside
    } else if !is_delete && (is_beside_pods || is_for_all)
        || except.contains(&(resource, namespace, verb))
    {
        Verdict::Excepted
    } else if mode == FenceMode::Enforce {
        Verdict::Refused
    } else {
        Verdict::Warned
    }
}

fn write() -> impl Strategy<Value = (usize, &'static str, &'static str)> {
    let verbs = prop::sample::select(vec![
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "get",
    ]);
    (0..RESOURCES.len(), prop::sample::select(NAMESPACES.to_vec()), verbs)
}

fn judged(policy: &Policy, (resource, namespace, verb): (usize, &str, &str)) -> Verdict {
    let (group, name, _) = RESOURCES[resource];
    let group = if group.is_empty() { "api/v1".to_owned() } else { format!("apis/{group}/v1") };
    let all = format!("/{group}/namespaces/{namespace}/{name}");
    match verb {
        "create" => judge(policy, "POST", &all),
        "deletecollection" => judge(policy, "DELETE", &all),
        "update" => judge(policy, "PUT", &format!("{all}/x/status")),
        "patch" => judge(policy, "PATCH", &format!("{all}/x")),
        "delete" => judge(policy, "DELETE", &format!("{all}/x")),
        _ => judge(policy, "GET", &format!("{all}/x")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn verdicts_are_those_of_a_plain_second_implementation(
        (older, newer) in (model(), model()),
        mode in prop::sample::select(vec![FenceMode::Enforce, FenceMode::Warn, FenceMode::Disabled]),
        except in prop::collection::vec(write(), 0..3),
        shared in prop::collection::vec((write(), any::<bool>()), 0..3),
        writes in prop::collection::vec(write(), 1..20),
    ) {
        let except: Vec<_> = except.into_iter().filter(|(.., verb)| *verb != "get").collect();
        let entries: Vec<_> = except.iter().map(|(resource, namespace, verb)| {
            let (group, name, _) = RESOURCES[*resource];
            json!({ "apiGroups": [group], "resources": [name], "namespaces": [namespace], "verbs": [verb] })
        }).collect();
        let fence = json!({ "mode": mode, "except": entries });
        let shared: Vec<_> =
            shared.into_iter().map(|((resource, namespace, _), all)| (resource, namespace, all)).collect();
        let shown: Vec<_> = shared.iter().map(|(resource, namespace, all)| {
            let (group, name, _) = RESOURCES[*resource];
            let write = if *all { "All" } else { "Owner" };
            json!({ "apiGroups": [group], "resources": [name], "namespaces": [namespace], "write": write })
        }).collect();
        let shown = json!(shown);
        let [before, after] =
            [&older, &newer].map(|model| shared_policy(&limits(model), &fence, &shown));
        let meet = before.sharding.area().meet(&after.sharding.area());
        let moving = Policy { sharding: after.sharding.within(&meet), ..after.clone() };
        for write in writes {
            let expected = plainly(&newer, &newer, write, mode, &except, &shared);
            prop_assert_eq!(judged(&after, write), expected, "{:?} by {:?}", write, newer);
            let expected = plainly(&newer, &older, write, mode, &except, &shared);
            prop_assert_eq!(judged(&moving, write), expected, "{:?} by {:?} then {:?}", write, older, newer);
            let foreign = Foreign {
                resource: GroupResource::new(RESOURCES[write.0].0, RESOURCES[write.0].1),
                namespace: write.1.into(),
                verb: write.2,
            };
            // The entry that a refusal tells lets it pass, and nothing else is changed by it.
            if judged(&after, write) == Verdict::Refused {
                let fence = json!({ "mode": mode, "except": [foreign.except()] });
                let open = policy(&limits(&newer), &fence);
                prop_assert_eq!(judged(&open, write), Verdict::Excepted);
            }
        }
    }
}
