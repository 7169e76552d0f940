use std::sync::Arc;

use super::{
    super::{Claim, DesiredScope, Lease, Overlap, PodStatus},
    bits::Bits,
};
use crate::{ByResource, Rule};

fn rule(name: &str) -> Rule {
    Rule::new("", name).unwrap()
}

fn area(pieces: &[(&str, u8)]) -> ByResource<Bits> {
    ByResource::new(pieces.iter().map(|(name, bits)| (rule(name), Some(Bits(*bits)))))
}

fn lease(pod: &str, shard: &str, pieces: &[(&str, u8)]) -> Lease<Bits> {
    Lease {
        pod: pod.into(),
        ring: "ring".into(),
        shard: Some(shard.into()),
        version: "1".into(),
        claim: Claim::of(area(pieces)),
    }
}

fn names(rules: &[Rule]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

/// The resources that a pod keeps and lacks, and the pods that it waits for.
type Found = (Vec<String>, Vec<String>, Vec<(String, Vec<String>)>);

/// Those of the pod of `leases[0]`.
fn standing(leases: &[Lease<Bits>], wanted: &[(&str, u8)]) -> Found {
    let PodStatus { keeps, lacks, waits_for } =
        PodStatus::of(&leases[0], Some(&area(wanted)), leases);
    let waits_for = waits_for.iter().map(|(lease, rules)| (lease.pod.to_string(), names(rules)));
    (names(&keeps), names(&lacks), waits_for.collect())
}

#[test]
fn a_pod_waits_for_those_of_other_shards_that_claim_what_it_wants_and_claims() {
    let blue = lease("b", "blue", &[("pods", 0b011), ("secrets", 0b1)]);
    let others = [
        lease("b2", "blue", &[("pods", 0b111)]),
        lease("g", "green", &[("pods", 0b110), ("secrets", 0b10)]),
        lease("r", "red", &[("pods", 0b1000)]),
    ];
    let leases = [&[blue][..], &others].concat();
    let none = || Vec::<String>::new();
    // Pods 0 and 1 are wanted and claimed: green has 1.
    assert_eq!(
        standing(&leases, &[("pods", 0b011), ("secrets", 0b1)]),
        (none(), none(), vec![("g".into(), vec!["pods".into()])])
    );
    // What green has is not wanted any more: blue gives it up, and waits for no one.
    assert_eq!(
        standing(&leases, &[("pods", 0b001), ("secrets", 0b1)]),
        (vec!["pods".into()], none(), Vec::new())
    );
    // It is wanted, and not claimed yet.
    assert_eq!(
        standing(&leases[..1], &[("pods", 0b111), ("secrets", 0b1)]),
        (none(), vec!["pods".into()], Vec::new())
    );
}

#[test]
fn a_lease_that_cannot_be_read_is_waited_for_by_all() {
    let unreadable = Lease { shard: None, claim: Claim::All, ..lease("x", "", &[]) };
    let leases = [lease("b", "blue", &[("pods", 1)]), unreadable];
    let (_, _, waits_for) = standing(&leases, &[("pods", 1)]);
    assert_eq!(waits_for, [("x".to_owned(), vec!["pods".to_owned()])]);
}

#[test]
fn a_pod_without_a_config_keeps_all_that_it_claims() {
    let leases = [lease("b", "blue", &[("pods", 1), ("secrets", 1)])];
    let PodStatus { keeps, lacks, waits_for } = PodStatus::of(&leases[0], None, &leases);
    assert_eq!((names(&keeps), lacks), (vec!["pods".into(), "secrets".into()], Vec::new()));
    assert_eq!(waits_for, []);
}

#[test]
fn two_configs_overlap_where_both_want_an_object_or_only_one_limits_its_resource() {
    let wanted = |shard: &str, born: i64, pieces: &[(&str, u8)]| DesiredScope {
        ring: "ring".into(),
        shard: shard.into(),
        birth: (born, shard.into()),
        generation: 1,
        area: Arc::new(area(pieces)),
    };
    let wishes = [
        wanted("blue", 2, &[("pods", 0b011), ("secrets", 0b1)]),
        wanted("green", 1, &[("pods", 0b110)]),
        wanted("red", 3, &[("pods", 0b1000), ("secrets", 0b10)]),
        DesiredScope { ring: "other".into(), ..wanted("far", 0, &[("pods", 0b1111)]) },
    ];
    let all = Overlap::all(&wishes);
    let found: Vec<_> = all
        .iter()
        .map(|overlap| {
            (overlap.shards.clone(), names(&overlap.wanted_twice), names(&overlap.limited_once))
        })
        .collect();
    let [pods, secrets] = ["pods", "secrets"].map(|name| vec![name.to_owned()]);
    assert_eq!(
        found,
        [
            (["green", "blue"].map(Into::into), pods, secrets.clone()),
            (["green", "red"].map(Into::into), Vec::new(), secrets),
        ]
    );
    assert_eq!(all[0].rival_about("blue", &rule("pods")), Some("green"));
    assert_eq!(all[0].rival_about("green", &rule("pods")), Some("blue"));
    assert_eq!(all[0].rival_about("blue", &rule("secrets")), None);
    assert_eq!(all[0].rival_about("red", &rule("pods")), None);
}
