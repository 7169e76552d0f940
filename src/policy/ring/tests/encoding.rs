use std::sync::Arc;

use proptest::prelude::*;

use super::super::{Claim, Lease, Said, ScopeClaim, TooLong, boundary_text, read_boundary};
use crate::{
    Boundary, ByResource, Computed, HashRange, HashRule, Rule, Scope, from_documents,
    sharding::any_scope,
};

fn claim(pieces: Vec<(Rule, Option<Scope>)>) -> ScopeClaim {
    let normal = |scope: Scope| Arc::new(scope.normal());
    Claim::of(ByResource::new(pieces.into_iter().map(|(rule, scope)| (rule, scope.map(normal)))))
}

fn rule() -> impl Strategy<Value = Rule> {
    let names = (
        prop::sample::select(vec!["", "apps", "*"]),
        prop::sample::select(vec!["pods", "deployments", "*"]),
    );
    names.prop_map(|(group, resource)| Rule::new(group, resource).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_claim_is_read_as_it_was_said(
        pieces in prop::collection::vec((rule(), prop::option::weighted(0.9, any_scope())), 0..5),
    ) {
        let claim = claim(pieces);
        let text = claim.text().unwrap();
        prop_assert_eq!(ScopeClaim::read(&text), Some(claim), "{}", text);
    }

    #[test]
    fn a_text_that_is_cut_says_no_claim(text in any::<String>(), at in any::<prop::sample::Index>()) {
        prop_assert!(ScopeClaim::read(&text).is_none_or(|claim| claim.text().is_ok()));
        let whole = claim(vec![(Rule::everything(), Some(Scope::nothing()))]).text().unwrap();
        let cut = &whole[..at.index(whole.len())];
        prop_assert_eq!(ScopeClaim::read(cut), None);
    }
}

/// A claim of pods in this many namespaces.
fn named(count: usize) -> ScopeClaim {
    let names = (0..count).map(|at| format!("namespace-{at:06}").into()).collect();
    let boundary = Boundary {
        names: Some(names),
        pattern: None,
        selected: None,
        computed: None,
        hash: None,
        has_cluster_scoped: false,
    };
    let scope = Scope::new("a=b".parse().unwrap()).inside(boundary);
    claim(vec![(Rule::new("", "pods").unwrap(), Some(scope))])
}

#[test]
fn a_claim_has_one_text() {
    assert_eq!(
        named(2).text().unwrap(),
        r#"{"pieces":[{"group":"","resource":"pods","labels":"a=b","inside":[{"names":["namespace-000000","namespace-000001"],"clusterScoped":false}]}]}"#
    );
    assert_eq!(Claim::Nothing.text().unwrap(), r#"{"pieces":[]}"#);
    assert_eq!(ScopeClaim::read(r#"{"pieces":[]}"#), Some(Claim::Nothing));
    assert_eq!(ScopeClaim::read(&ScopeClaim::All.text().unwrap()), Some(Claim::All));
}

#[test]
fn i15_an_earlier_release_reads_no_less_than_is_claimed() {
    let (zero, half) = ("0x0000000000000000", "0x8000000000000000");
    let mixed = HashRule::mixed(vec![HashRange::new(zero, half).unwrap()]).unwrap();
    let bucket = "ctrlmesh.kusionstack.io/shard-hash=7".parse().unwrap();
    let (computed, _) = Computed::split(&bucket);
    let any = Boundary::everything;
    for (inside, field, unknown) in [
        (
            Boundary { hash: Some(mixed), ..any() },
            r#""mixed":[["0x0000000000000000","0x8000000000000000"]]"#,
            true,
        ),
        (
            any().restricted(computed.clone()),
            r#""computedInside":"ctrlmesh.kusionstack.io/shard-hash=7""#,
            true,
        ),
        (
            Boundary { has_cluster_scoped: false, ..any() }.restricted(computed),
            r#""computed":"ctrlmesh.kusionstack.io/shard-hash=7""#,
            false,
        ),
    ] {
        let scope = Scope::new("".parse().unwrap()).inside(inside.clone());
        let said = claim(vec![(Rule::new("", "pods").unwrap(), Some(scope))]).text().unwrap();
        assert!(said.contains(field), "{said}");
        // A field that it does not know is none to it.
        let name = field.split(':').next().unwrap();
        let read = said.replace(name, r#""later""#);
        let Some(ScopeClaim::Of(area)) = ScopeClaim::read(&read) else { panic!("{read}") };
        let scope = area.find(&Rule::new("", "pods").unwrap()).unwrap();
        assert_eq!(scope.boundaries().is_empty(), unknown, "{read}");
    }
}

#[test]
fn a_boundary_that_is_too_long_claims_all_of_its_resources() {
    assert!(named(10_000).text().unwrap().len() > 189_000);
    let (one, other) = (named(12_000), named(12_001));
    let text = one.text().unwrap();
    assert!(text.len() < 200, "{text}");
    assert_ne!(text, other.text().unwrap(), "the digest");
    let read = ScopeClaim::read(&text).unwrap();
    let area = read.area().unwrap();
    assert!(!area.is_disjoint(named(1).area().unwrap()));
    assert!(area.find(&Rule::new("", "nodes").unwrap()).is_none());
    let rules = (0..6000).map(|at| Rule::new("a.example.com", &format!("kind{at}s")).unwrap());
    let all = claim(rules.map(|rule| (rule, Some(Scope::new("a".parse().unwrap())))).collect());
    assert_eq!(all.text(), Err(TooLong));
}

#[test]
fn a_lease_that_cannot_be_read_is_nobodys_and_claims_all() {
    let text = named(1).text().unwrap();
    let read = |shard, claim| {
        let lease = Lease::read("pod", "ring", "1", Said { shard, claim });
        (lease.shard, lease.claim)
    };
    assert_eq!(read(Some("a"), Some(&text)), (Some("a".into()), named(1)));
    let unreadable = [
        "",
        "{}",
        "[]",
        r#"{"pieces":[{}]}"#,
        r#"{"pieces":[{"group":"","resource":"Pods"}]}"#,
        r#"{"pieces":[{"group":"","resource":"pods"},{"group":"","resource":"pods"}]}"#,
        r#"{"pieces":[{"group":"","resource":"pods","labels":"a in"}]}"#,
        r#"{"pieces":[{"group":"","resource":"pods","inside":[{"clusterScoped":true,"uids":[]}]}]}"#,
        r#"{"pieces":[{"group":"","resource":"pods","inside":[{"clusterScoped":true,"mixed":[]}]}]}"#,
    ];
    for text in unreadable {
        assert_eq!(read(Some("a"), Some(text)), (None, Claim::All), "{text}");
    }
    assert_eq!(read(None, Some(&text)), (None, Claim::All));
    assert_eq!(read(Some("a"), None), (None, Claim::All));
    let long = format!("{}{text}", " ".repeat(192 << 10));
    assert_eq!(read(Some("a"), Some(&long)), (None, Claim::All));
}

#[test]
fn a_later_release_may_add_fields() {
    let text = named(1).text().unwrap();
    let later = text.replacen('{', r#"{"later":{"a":[1]},"#, 1);
    let later = later.replace(r#""labels""#, r#""fields":"x=y","labels""#);
    assert_eq!(ScopeClaim::read(&later), Some(named(1)));
}

#[test]
fn a_boundary_is_read_with_what_is_shared() {
    let sharding = |shared: &str| {
        let config = format!(
            "{{apiVersion: ctrlmesh.kusionstack.io/v1alpha1, kind: ShardingConfig, metadata: {{name: blue}}, \
             spec: {{selector: {{matchLabels: {{app: op}}}}, shared: {shared}, \
             limits: [{{namespaces: {{names: [a]}}, clusterScoped: Exclude}}]}}}}"
        );
        let draft = from_documents(config.as_bytes(), "blue", Some("ops")).unwrap();
        draft.resolve(None).unwrap().sharding
    };
    let none = sharding("[]");
    let some =
        sharding("[{apiGroups: [\"\"], resources: [secrets], namespaces: [b, \"\"], write: All}]");
    for written in [&none, &some] {
        let text = boundary_text(written).unwrap();
        for like in [&none, &some] {
            let read = read_boundary(&text, like).unwrap();
            assert_eq!(read, *written, "{text}");
            assert_eq!(read.hash(), written.hash(), "{text}");
        }
    }
    // A claim says nothing of it.
    let claims = [&none, &some].map(|one| Claim::of(one.area()).text().unwrap());
    assert_eq!(claims[0], claims[1]);
    assert_eq!(read_boundary(r#"{"all":true}"#, &none), None);
}
