//! The oracle: whose an object is, by configs and objects alone.
//!
//! It shares no code with the product, and it says less: an object whose owner cannot be told from
//! its review may be answered by anyone.

use std::fmt::Write as _;

use ctrlmesh_e2e::Webhooks;
use fastrand::Rng;
use serde_json::{Value, json};

/// The teams of objects; the last is of no shard.
pub(crate) const TEAMS: [&str; 5] = ["ant", "bee", "cat", "dog", "eel"];
/// The resources that are limited, by group. Secrets are not.
const LIMITED: [(&str, &[&str]); 3] = [
    ("", &["configmaps", "pods", "serviceaccounts", "namespaces"]),
    ("apps", &["deployments"]),
    ("demo.example.com", &["widgets"]),
];

/// Draws after which nothing is new to a shard.
const TRIES: usize = 10_000;

/// The facts of a review.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Whether the resource is limited.
    pub(crate) is_limited: bool,
    /// The namespace; its own name, if it is a Namespace.
    pub(crate) namespace: String,
    /// The tier of the namespace, in its label.
    pub(crate) tier: Option<String>,
    /// The team, if the review has labels.
    pub(crate) team: Known<Option<String>>,
    /// The uid, if the review has one.
    pub(crate) uid: Known<String>,
}

/// The parts that a review may have or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known<T> {
    Yes(T),
    No,
}

/// Who may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The pods of this shard.
    Shard(&'static str),
    /// Any pod.
    Anyone,
}

/// A kind of boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Labels,
    Names,
    Pattern,
    NamespaceLabels,
    NamespaceHash,
    UidHash,
    LabelsAndNamespaceHash,
}

/// Every kind of boundary.
pub(crate) const KINDS: [Kind; 7] = [
    Kind::Labels,
    Kind::Names,
    Kind::Pattern,
    Kind::NamespaceLabels,
    Kind::NamespaceHash,
    Kind::UidHash,
    Kind::LabelsAndNamespaceHash,
];

/// The bounds of a shard: every one that is given holds.
#[derive(Clone, Debug, Default)]
struct Bounds {
    teams: Option<Vec<String>>,
    names: Option<Vec<String>>,
    /// First letters of namespaces.
    letters: Option<(char, char)>,
    tier: Option<String>,
    /// Hashes of the namespace, from the first to before the second.
    of_namespace: Option<(u64, Option<u64>)>,
    of_uid: Option<(u64, Option<u64>)>,
}

/// The bounds of all shards, which are disjoint.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    pub(crate) kind: Kind,
    bounds: Vec<(&'static str, Bounds)>,
}

impl Partition {
    /// A partition of this kind, for a world with these namespaces.
    pub(crate) fn draw(kind: Kind, namespaces: &[String]) -> Self {
        let hashes = cuts(namespaces);
        let names = |at: usize| {
            // Every fifth is of no shard; by their first letters others are.
            let own = |(number, _): &(usize, _)| number % 5 == at + 1;
            namespaces.iter().enumerate().filter(own).map(|(_, name)| name.clone()).collect()
        };
        let bounds = |at: usize, shard: &str| match kind {
            Kind::Labels => Bounds { teams: Some(vec![shard.into()]), ..Bounds::default() },
            Kind::Names => Bounds { names: Some(names(at)), ..Bounds::default() },
            Kind::Pattern => Bounds {
                letters: Some([('a', 'f'), ('g', 'l'), ('m', 'r'), ('s', 'x')][at]),
                ..Bounds::default()
            },
            Kind::NamespaceLabels => Bounds { tier: Some(shard.into()), ..Bounds::default() },
            Kind::NamespaceHash => Bounds { of_namespace: Some(hashes[at]), ..Bounds::default() },
            Kind::UidHash => Bounds { of_uid: Some(quarter(at)), ..Bounds::default() },
            Kind::LabelsAndNamespaceHash => {
                let teams = [["ant", "bee"], ["cat", "dog"]][at / 2].map(str::to_owned);
                let [low, high] = [(0, Some(hashes[2].0)), (hashes[2].0, None)];
                Bounds {
                    teams: Some(teams.into()),
                    of_namespace: Some(if at.is_multiple_of(2) { low } else { high }),
                    ..Bounds::default()
                }
            }
        };
        let shards = Webhooks::SHARDS.into_iter().enumerate();
        Self { kind, bounds: shards.map(|(at, shard)| (shard, bounds(at, shard))).collect() }
    }

    /// The same bounds, each of a shard that is drawn again.
    pub(crate) fn exchanged(&self, rng: &mut Rng) -> Self {
        let mut bounds: Vec<Bounds> = self.bounds.iter().map(|(_, it)| it.clone()).collect();
        rng.shuffle(&mut bounds);
        Self { kind: self.kind, bounds: Webhooks::SHARDS.into_iter().zip(bounds).collect() }
    }

    /// The limit of each shard, as a ShardingConfig states it.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (&'static str, Value)> {
        self.bounds.iter().map(|(shard, bounds)| (*shard, bounds.limit()))
    }

    /// Who may answer a review with these facts.
    pub(crate) fn owner(&self, facts: &Facts) -> Owner {
        if !facts.is_limited {
            return Owner::Anyone;
        }
        let has = |(_, bounds): &&(&str, Bounds)| bounds.has(facts) == Some(true);
        self.bounds.iter().find(has).map_or(Owner::Anyone, |(shard, _)| Owner::Shard(shard))
    }

    /// Facts of an object that this shard has here, and did not have `before`, if there is one.
    pub(crate) fn example(
        &self,
        rng: &mut Rng,
        shard: &'static str,
        namespaces: &[(String, String)],
        before: Option<&Self>,
    ) -> Facts {
        for tries in 0.. {
            let (namespace, tier) = &namespaces[rng.usize(..namespaces.len())];
            let facts = Facts {
                is_limited: true,
                namespace: namespace.clone(),
                tier: Some(tier.clone()),
                team: Known::Yes(Some(TEAMS[rng.usize(..TEAMS.len())].to_owned())),
                uid: Known::Yes(uid(rng)),
            };
            let owner = Owner::Shard(shard);
            let is_new = before.is_none_or(|before| before.owner(&facts) != owner);
            if self.owner(&facts) == owner && (is_new || tries > TRIES) {
                return facts;
            }
        }
        unreachable!("every shard has objects")
    }
}

impl Bounds {
    fn has(&self, facts: &Facts) -> Option<bool> {
        let in_range = |range: (u64, Option<u64>), text: &str| {
            let hash = fnv1a(text);
            range.0 <= hash && range.1.is_none_or(|end| hash < end)
        };
        let team = self.teams.as_ref().map(|teams| match &facts.team {
            Known::Yes(team) => Some(team.as_ref().is_some_and(|team| teams.contains(team))),
            Known::No => None,
        });
        let uid = self.of_uid.map(|range| match &facts.uid {
            Known::Yes(uid) => Some(in_range(range, uid)),
            Known::No => None,
        });
        let name = self.names.as_ref().map(|names| names.contains(&facts.namespace));
        let letter = self.letters.map(|(first, last)| {
            facts.namespace.chars().next().is_some_and(|letter| (first..=last).contains(&letter))
        });
        let tier = self.tier.as_ref().map(|tier| facts.tier.as_ref() == Some(tier));
        let hash = self.of_namespace.map(|range| in_range(range, &facts.namespace));
        let sure = [name, letter, tier, hash].into_iter().flatten().map(Some);
        let all: Vec<Option<bool>> = sure.chain([team, uid].into_iter().flatten()).collect();
        if all.contains(&Some(false)) {
            return Some(false);
        }
        if all.contains(&None) { None } else { Some(true) }
    }

    fn limit(&self) -> Value {
        let resources = |(group, plurals): &(&str, &[&str])| json!({ "apiGroups": [group], "resources": plurals });
        let mut limit =
            json!({ "relateResources": LIMITED.iter().map(resources).collect::<Vec<_>>() });
        if let Some(teams) = &self.teams {
            let teams = json!({ "key": "team", "operator": "In", "values": teams });
            limit["selector"] = json!({ "matchExpressions": [teams] });
        }
        if let Some(names) = &self.names {
            limit["namespaces"] = json!({ "names": names });
        }
        if let Some((first, last)) = self.letters {
            limit["namespaces"] = json!({ "pattern": format!("^[{first}-{last}]") });
        }
        if let Some(tier) = &self.tier {
            limit["namespaces"] = json!({ "selector": { "matchLabels": { "tier": tier } } });
        }
        for (of, range) in [("namespace", self.of_namespace), ("uid", self.of_uid)] {
            if let Some((from, to)) = range {
                let to = to.map_or(String::new(), notation);
                let ranges = json!([{ "from": notation(from), "to": to }]);
                limit["hash"] = json!({ "of": of, "ranges": ranges });
            }
        }
        if !limit["namespaces"].is_null() || self.of_namespace.is_some() {
            limit["clusterScoped"] = "Exclude".into();
        }
        limit
    }
}

/// Four ranges of hashes of namespaces, each with as many of these.
fn cuts(namespaces: &[String]) -> [(u64, Option<u64>); 4] {
    let mut hashes: Vec<u64> = namespaces.iter().map(|name| fnv1a(name)).collect();
    hashes.sort_unstable();
    let [one, two, three] = [1, 2, 3].map(|part| hashes[hashes.len() * part / 4]);
    [(0, Some(one)), (one, Some(two)), (two, Some(three)), (three, None)]
}

fn quarter(at: usize) -> (u64, Option<u64>) {
    let from = |at: usize| (at as u64) << 62;
    (from(at), (at < 3).then(|| from(at + 1)))
}

fn notation(hash: u64) -> String {
    format!("{hash:#018x}")
}

/// FNV-1a with 64 bits, as its authors define it.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A uid, as the API server draws one.
fn uid(rng: &mut Rng) -> String {
    let mut text = String::new();
    for digits in [8, 4, 4, 4, 12] {
        let dash = if text.is_empty() { "" } else { "-" };
        let part: String = (0..digits).map(|_| rng.digit(16)).collect();
        // Writing to a String does not fail.
        let _ = write!(text, "{dash}{part}");
    }
    text
}

#[test]
fn the_hash_is_that_of_its_authors() {
    // http://www.isthe.com/chongo/tech/comp/fnv: the vectors of the empty text, "a" and "foobar".
    assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
    assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
}
