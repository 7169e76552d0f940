//! A boundary, said three ways: as the proxy's rule, as the API server's selectors, and as a model.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The values of the label `tier`, which comes and goes on every object.
pub(crate) const TIERS: [&str; 3] = ["gold", "silver", "iron"];
/// The label that names an object's tenant and never changes.
pub(crate) const AT: &str = "at";
/// The label of namespaces that rules go by, and its values.
pub(crate) const RANK: &str = "rank";
pub(crate) const RANKS: [&str; 3] = ["high", "mid", "low"];

/// The ranks of the namespaces that have one.
pub(crate) type Ranks = BTreeMap<String, String>;

/// The namespaces of one seed, each named by a letter.
#[derive(Clone, Debug)]
pub(crate) struct Tenants {
    seed: u64,
}

impl Tenants {
    /// Letters with which no namespace of the server begins.
    pub(crate) const LETTERS: [&str; 6] = ["a", "b", "c", "f", "g", "h"];
    /// The beacon's: a namespace that stays, and in which nothing happens. By whether it is in the
    /// shard a test sees whether the proxy knows what was done to namespaces before.
    const BEACON: &str = "z";

    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    pub(crate) fn name(&self, letter: &str) -> String {
        format!("{letter}-t{:x}", self.seed)
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.busy().into_iter().chain([self.beacon()]).collect()
    }

    /// Those that come and go.
    pub(crate) fn busy(&self) -> Vec<String> {
        Self::LETTERS.iter().map(|letter| self.name(letter)).collect()
    }

    pub(crate) fn beacon(&self) -> String {
        self.name(Self::BEACON)
    }

    /// With which they are made at first: each rank is some busy one's.
    pub(crate) fn first_ranks(&self) -> Ranks {
        let ranks = RANKS.into_iter().map(Some).chain([None]).cycle();
        let named = self.busy().into_iter().zip(ranks);
        named.filter_map(|(name, rank)| Some((name, rank?.to_owned()))).collect()
    }

    pub(crate) fn has(&self, namespace: &str) -> bool {
        self.all().iter().any(|name| name == namespace)
    }

    pub(crate) fn letter(namespace: &str) -> &str {
        namespace.split_once('-').map_or(namespace, |(letter, _)| letter)
    }
}

/// What of an object a rule follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Traits<'a> {
    pub(crate) namespace: &'a str,
    /// The namespace's.
    pub(crate) rank: Option<&'a str>,
    pub(crate) uid: &'a str,
    pub(crate) tier: Option<&'a str>,
}

/// The field that is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Uid,
    Namespace,
}

/// A range of hashes; no end is the end of all.
pub(crate) type Range = (u64, Option<u64>);

/// A label that KusionStack would have stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Namespace,
    /// The sum of the characters of the namespace's name, modulo 32.
    ShardHash,
    /// The FNV-1a hash of the name, modulo 32.
    ShardingHash,
}

impl Key {
    const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "ctrlmesh.kusionstack.io/namespace",
            Self::ShardHash => "ctrlmesh.kusionstack.io/shard-hash",
            Self::ShardingHash => "kridge.kusionstack.io/sharding-hash",
        }
    }

    /// The label's value for a namespace.
    pub(crate) fn value(self, namespace: &str) -> String {
        match self {
            Self::Namespace => namespace.to_owned(),
            Self::ShardHash => (namespace.chars().map(u32::from).sum::<u32>() % 32).to_string(),
            Self::ShardingHash => (fnv1a(namespace) % 32).to_string(),
        }
    }
}

/// How objects are divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Hash(Of, Vec<Range>),
    Names(BTreeSet<String>),
    /// The letters of a pattern's class.
    Pattern(BTreeSet<&'static str>),
    /// By a value that is computed from the name of the namespace.
    Computed {
        key: Key,
        is_in: bool,
        values: BTreeSet<String>,
    },
    /// By the namespace's rank. Next to some of [`RANKS`], one that no other rule has: what a
    /// namespace of that rank shows, this rule shows.
    Ranks {
        ranks: BTreeSet<&'static str>,
        own: String,
    },
}

/// What the shard sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) cut: Cut,
    /// The limit's own label selector.
    pub(crate) tiers: Option<BTreeSet<&'static str>>,
}

impl Rule {
    pub(crate) fn owns(&self, object: Traits<'_>) -> bool {
        self.cut.owns(object) && has_tier(self.tiers.as_ref(), object.tier)
    }

    /// The policy in which the shard `mine` has this rule for the resources of the histories.
    pub(crate) fn policy(&self, tenants: &Tenants) -> Value {
        let mut limit = json!({
            "relateResources": [
                { "apiGroups": [""], "resources": ["configmaps"] },
                { "apiGroups": ["demo.example.com"], "resources": ["widgets"] },
            ],
            "clusterScoped": "Exclude",
        });
        let mut labels = Vec::new();
        match &self.cut {
            Cut::Hash(of, ranges) => {
                let of = if *of == Of::Uid { "uid" } else { "namespace" };
                let bound = |at: &u64| format!("{at:#018x}");
                let ranges: Vec<Value> = ranges
                    .iter()
                    .map(|(from, to)| {
                        json!({
                            "from": bound(from), "to": to.as_ref().map(bound).unwrap_or_default(),
                        })
                    })
                    .collect();
                limit["hash"] = json!({ "of": of, "ranges": ranges });
            }
            Cut::Computed { key, is_in, values } => {
                let operator = if *is_in { "In" } else { "NotIn" };
                labels.push(json!({ "key": key.name(), "operator": operator, "values": values }));
            }
            Cut::Names(names) => limit["namespaces"] = json!({ "names": names }),
            Cut::Pattern(letters) => {
                let letters: String = letters.iter().copied().collect();
                let pattern = format!("^[{letters}]-t{:x}$", tenants.seed);
                limit["namespaces"] = json!({ "pattern": pattern });
            }
            Cut::Ranks { ranks, own } => {
                let values: Vec<&str> = ranks.iter().copied().chain([own.as_str()]).collect();
                limit["namespaces"] = json!({ "selector": {
                    "matchExpressions": [{ "key": RANK, "operator": "In", "values": values }],
                }});
            }
        }
        if let Some(tiers) = &self.tiers {
            labels.push(json!({ "key": "tier", "operator": "In", "values": tiers }));
        }
        if !labels.is_empty() {
            limit["selector"] = json!({ "matchExpressions": labels });
        }
        json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "metadata": { "name": "mine" },
            "spec": { "selector": { "matchLabels": { "app": "operator" } }, "limits": [limit] },
        })
    }

    /// The rank that is this rule's alone; nothing where it does not go by ranks.
    pub(crate) fn own_rank(&self) -> Option<&str> {
        match &self.cut {
            Cut::Ranks { own, .. } => Some(own),
            _ => None,
        }
    }

    /// The namespaces of the seed in which the shard may have something.
    pub(crate) fn namespaces(&self, tenants: &Tenants, ranks: &Ranks) -> Vec<String> {
        let mut all = tenants.all();
        all.retain(|name| self.has_namespace(name, ranks));
        all
    }

    pub(crate) fn has_namespace(&self, name: &str, ranks: &Ranks) -> bool {
        let rank = ranks.get(name).map(String::as_str);
        match &self.cut {
            Cut::Hash(Of::Uid, _) => true,
            cut => cut.owns(Traits { namespace: name, rank, uid: "", tier: None }),
        }
    }

    /// Whether a namespace of the rank is in the shard of a rule that follows ranks.
    pub(crate) fn has_rank(&self, rank: Option<&str>) -> bool {
        self.cut.owns(Traits { namespace: "", rank, uid: "", tier: None })
    }

    /// The rule as a `shardSelector`; nothing for what has none.
    pub(crate) fn shard_selector(&self) -> Option<String> {
        let Cut::Hash(of, ranges) = &self.cut else { return None };
        let of = if *of == Of::Uid { "uid" } else { "namespace" };
        let range = |(from, to): &Range| {
            let to = to.map_or("0x10000000000000000".to_owned(), |to| format!("{to:#018x}"));
            format!("shardRange(object.metadata.{of}, '{from:#018x}', '{to}')")
        };
        Some(ranges.iter().map(range).collect::<Vec<_>>().join(" || "))
    }

    /// The rule as a label selector, by the label that every object has.
    pub(crate) fn at_selector(&self, tenants: &Tenants, ranks: &Ranks) -> String {
        let namespaces = self.namespaces(tenants, ranks);
        let letters: Vec<&str> = namespaces.iter().map(|name| Tenants::letter(name)).collect();
        format!("{AT} in ({})", letters.join(","))
    }
}

impl Cut {
    fn owns(&self, object: Traits<'_>) -> bool {
        match self {
            Self::Hash(of, ranges) => {
                let text = if *of == Of::Uid { object.uid } else { object.namespace };
                let hash = fnv1a(text);
                ranges.iter().any(|(from, to)| *from <= hash && to.is_none_or(|to| hash < to))
            }
            Self::Computed { key, is_in, values } => {
                values.contains(&key.value(object.namespace)) == *is_in
            }
            Self::Names(names) => names.contains(object.namespace),
            Self::Pattern(letters) => letters.contains(Tenants::letter(object.namespace)),
            Self::Ranks { ranks, own } => {
                object.rank.is_some_and(|rank| ranks.contains(rank) || own == rank)
            }
        }
    }
}

/// A label selector of tiers.
pub(crate) fn tier_selector(tiers: &BTreeSet<&str>) -> String {
    format!("tier in ({})", Vec::from_iter(tiers.iter().copied()).join(","))
}

pub(crate) fn has_tier(tiers: Option<&BTreeSet<&str>>, tier: Option<&str>) -> bool {
    tiers.is_none_or(|tiers| tier.is_some_and(|tier| tiers.contains(tier)))
}

/// FNV-1a with 64 bits, as KEP-5866 defines it.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
