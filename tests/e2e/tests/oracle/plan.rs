//! What a seed decides before anything runs.

use std::collections::BTreeSet;

use fastrand::Rng;

use crate::oracle::rule::{Cut, Key, Of, RANKS, Range, Rule, TIERS, Tenants, fnv1a};

/// Whether the API server shards by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    On,
    Off,
}

/// The program that keeps the informers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// client-go.
    Go { watch_list: bool, encoding: Encoding, http1: bool },
    /// The crate `kube`.
    Rust { streaming: bool },
    /// The Python package, over HTTP/1.1.
    Python { pages: bool, bookmarks: bool },
    /// fabric8's watches, over WebSocket.
    Java { bookmarks: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Protobuf,
    Json,
    Cbor,
    Metadata,
}

/// What happens to the cluster in one of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disruption {
    Compaction,
    /// The API server is ended politely.
    Restart,
    /// The API server is killed.
    Kill,
    /// The proxy is killed, and away for longer than clients pause.
    ProxyKill,
}

/// What stands for the rule at a server that does not shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Native {
    Shard,
    Label,
    /// A watch a namespace.
    Fields,
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) gate: Gate,
    pub(crate) seed: u64,
    pub(crate) tenants: Tenants,
    pub(crate) client: Client,
    pub(crate) native: Native,
    pub(crate) rule: Rule,
    /// The client's own label selector.
    pub(crate) asked: Option<BTreeSet<&'static str>>,
    /// The one namespace that the client asks for, instead of all.
    pub(crate) inside: Option<String>,
    /// Whether the policy changes.
    pub(crate) changes: bool,
    /// Whether the policy is a ShardingConfig of the cluster, not a file.
    pub(crate) of_cluster: bool,
    /// Whether the config is in a ring: its boundary moves in two steps.
    pub(crate) in_ring: bool,
    /// Whether the proxy remembers positions over a restart.
    pub(crate) keeps_state: bool,
    /// Whether the proxy may hand ranges to the server.
    pub(crate) pushdown: bool,
    pub(crate) rounds: usize,
    /// In which round, what, and whether while the policy changes.
    pub(crate) disruption: Option<(usize, Disruption, bool)>,
    limit_has_tiers: bool,
    /// How many rules by ranks were drawn.
    by_rank: usize,
    random: Rng,
}

impl Plan {
    pub(crate) fn of(gate: Gate, seed: u64) -> Self {
        let mut random = Rng::with_seed(mixed(seed) ^ u64::from(gate == Gate::On));
        let tenants = Tenants::new(seed);
        let changes = seed % 2 == 1;
        let native = match gate {
            Gate::On => Native::Shard,
            // A list has one selector.
            Gate::Off if changes || random.u8(..3) > 0 => Native::Label,
            Gate::Off => Native::Fields,
        };
        let asked = (random.u8(..3) == 0).then(|| some_of(&mut random, &TIERS));
        let limit_has_tiers = random.u8(..3) == 0;
        let client = client(&mut random, native);
        let rounds = match client {
            _ if !changes => 2,
            // A change costs it no back-off.
            Client::Go { http1: false, .. } => 5,
            _ => 3,
        };
        let disruption = match random.u8(..24) {
            0..=4 => Some(Disruption::Compaction),
            5 => Some(Disruption::Restart),
            6..=7 => Some(Disruption::Kill),
            8..=12 => Some(Disruption::ProxyKill),
            _ => None,
        };
        let of_cluster = random.u8(..4) == 0;
        let mut plan = Self {
            gate,
            seed,
            client,
            native,
            rule: Rule { cut: Cut::Names(BTreeSet::new()), tiers: None },
            asked,
            inside: None,
            changes,
            of_cluster,
            in_ring: of_cluster && !seed.is_multiple_of(3),
            keeps_state: random.bool(),
            pushdown: random.u8(..4) == 0,
            rounds,
            disruption: disruption.map(|what| (random.usize(..rounds), what, random.bool())),
            limit_has_tiers,
            by_rank: 0,
            tenants,
            random,
        };
        plan.rule = plan.some_rule();
        if !changes && native != Native::Fields && plan.random.u8(..6) == 0 {
            let mut namespaces = plan.tenants.busy();
            let ranks = plan.tenants.first_ranks();
            namespaces.retain(|name| plan.rule.has_namespace(name, &ranks));
            plan.inside = plan.random.choice(namespaces);
        }
        plan
    }

    /// How many more clients of each resource the proxy has: where it is killed, each may be shown
    /// what another must not go on from.
    pub(crate) fn companions(&self) -> usize {
        match self.disruption {
            Some((_, Disruption::ProxyKill, _)) => 2,
            _ => 0,
        }
    }

    /// Another rule for the same objects.
    pub(crate) fn next_rule(&mut self) -> Rule {
        loop {
            let rule = self.some_rule();
            if rule != self.rule {
                self.rule = rule.clone();
                return rule;
            }
        }
    }

    pub(crate) fn disruption_in(&self, round: usize) -> Option<Disruption> {
        self.disruption.filter(|(at, _, _)| *at == round).map(|(_, what, _)| what)
    }

    /// Whether it is to happen while the policy changes. Which one a proxy finds first that starts
    /// just then is only sure of a file.
    pub(crate) fn disrupts_change(&self, round: usize) -> bool {
        let is_sure = |what| what != Disruption::ProxyKill || !self.of_cluster;
        self.changes
            && round > 0
            && self.disruption.is_some_and(|(_, what, is_during)| is_during && is_sure(what))
    }

    /// True once in so many times.
    pub(crate) fn some_in(&mut self, times: u8) -> bool {
        self.random.u8(..times) == 0
    }

    pub(crate) fn has_detector(&self) -> bool {
        !self.changes && matches!(self.client, Client::Go { watch_list: true, .. })
    }

    /// The special traits of this plan.
    pub(crate) fn traits(&self) -> Vec<&'static str> {
        let mut traits = Vec::new();
        traits.push(match self.client {
            Client::Go { encoding: Encoding::Protobuf, watch_list: true, .. } => {
                "client-go, protobuf, streamed list"
            }
            Client::Go { encoding: Encoding::Protobuf, .. } => "client-go, protobuf, list",
            Client::Go { encoding: Encoding::Json, .. } => "client-go, JSON",
            Client::Go { encoding: Encoding::Cbor, .. } => "client-go, CBOR",
            Client::Go { encoding: Encoding::Metadata, .. } => "client-go, metadata",
            Client::Rust { streaming: true } => "kube, streamed list",
            Client::Rust { streaming: false } => "kube, list",
            Client::Python { bookmarks: true, .. } => "Python",
            Client::Python { .. } => "Python, no bookmarks",
            Client::Java { bookmarks: true } => "Java",
            Client::Java { .. } => "Java, no bookmarks",
        });
        traits.push(match self.native {
            Native::Shard => "shard selector",
            Native::Label => "label selector",
            Native::Fields => "field selectors",
        });
        traits.extend(self.disruption.map(|(_, what, _)| match what {
            Disruption::Compaction => "compaction",
            Disruption::Restart => "restart of the server",
            Disruption::Kill => "end of the server",
            Disruption::ProxyKill => "end of the proxy",
        }));
        let is_during = (0..self.rounds)
            .any(|round| self.disruption_in(round).is_some() && self.disrupts_change(round));
        let kind = self.disruption.map(|(_, what, _)| what);
        let is_by_rank = self.rule.own_rank().is_some();
        let is_steady = matches!(self.client, Client::Go { http1: false, .. });
        let others = [
            (self.has_detector(), "detector"),
            (self.inside.is_some(), "one namespace"),
            (self.asked.is_some(), "the client's own selector"),
            (self.rule.tiers.is_some(), "the limit's selector"),
            (matches!(self.rule.cut, Cut::Computed { .. }), "computed keys"),
            (is_by_rank && !self.changes, "namespaces by label"),
            (is_by_rank && self.changes && is_steady, "relabelled namespaces, by difference"),
            (self.of_cluster && self.changes && !self.in_ring, "changes in the cluster"),
            (self.in_ring && self.changes, "changes in two steps"),
            (!self.of_cluster && self.changes, "changes of the file"),
            (is_during && kind != Some(Disruption::ProxyKill), "disruption of a change"),
            (is_during && kind == Some(Disruption::ProxyKill), "end of the proxy in a change"),
        ];
        traits.extend(others.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| what));
        traits
    }

    fn some_rule(&mut self) -> Rule {
        let kind = match self.gate {
            Gate::On => self.random.u8(..3),
            Gate::Off => self.random.u8(2..9),
        };
        let cut = match kind {
            0 | 1 => Cut::Hash(Of::Uid, self.uid_ranges()),
            2 => Cut::Hash(Of::Namespace, self.namespace_ranges()),
            3 => {
                let letters = some_of(&mut self.random, &Tenants::LETTERS);
                Cut::Names(letters.iter().map(|letter| self.tenants.name(letter)).collect())
            }
            4 => Cut::Pattern(some_of(&mut self.random, &Tenants::LETTERS)),
            7 | 8 => self.computed(),
            _ => {
                self.by_rank += 1;
                let own = format!("rule-{}", self.by_rank);
                Cut::Ranks { ranks: some_of(&mut self.random, &RANKS), own }
            }
        };
        let tiers = self.limit_has_tiers.then(|| some_of(&mut self.random, &TIERS));
        // What no one sees cannot be written last.
        let tiers =
            tiers.filter(|tiers| self.asked.as_ref().is_none_or(|asked| !asked.is_disjoint(tiers)));
        Rule { cut, tiers }
    }

    /// A condition that tells some namespaces apart.
    fn computed(&mut self) -> Cut {
        let keys = [Key::Namespace, Key::ShardHash, Key::ShardingHash];
        let key = keys[self.random.usize(..keys.len())];
        let letters = some_of(&mut self.random, &Tenants::LETTERS);
        let names = letters.iter().map(|letter| self.tenants.name(letter));
        let values: BTreeSet<_> = names.map(|name| key.value(&name)).collect();
        let is_all = self.tenants.busy().iter().all(|name| values.contains(&key.value(name)));
        Cut::Computed { key, is_in: is_all || self.random.bool(), values }
    }

    /// One or two ranges with a quarter of all hashes at least.
    fn uid_ranges(&mut self) -> Vec<Range> {
        const EIGHTH: u64 = 1 << 61;
        let from = self.random.u64(..4) * EIGHTH + self.random.u64(..EIGHTH);
        let first = (from, Some(from + 2 * EIGHTH));
        match self.random.u8(..3) {
            0 => vec![first],
            1 => vec![(0, Some(from + EIGHTH))],
            _ => vec![first, (from + 2 * EIGHTH + EIGHTH / 2, None)],
        }
    }

    /// Ranges of which the bounds are hashes of namespaces.
    fn namespace_ranges(&mut self) -> Vec<Range> {
        let mut hashes: Vec<u64> = self.tenants.busy().iter().map(|name| fnv1a(name)).collect();
        hashes.sort_unstable();
        let at = self.random.usize(1..hashes.len());
        match self.random.u8(..4) {
            0 => vec![(0, Some(hashes[at]))],
            1 => vec![(hashes[at], None)],
            2 => vec![(hashes[at - 1], Some(hashes[at]))],
            _ => vec![(0, Some(hashes[1])), (hashes[at.max(2)], None)],
        }
    }
}

fn client(random: &mut Rng, native: Native) -> Client {
    match random.u8(..16) {
        0..=1 if native != Native::Fields => {
            Client::Python { pages: random.bool(), bookmarks: random.bool() }
        }
        2..=3 if native != Native::Fields => Client::Java { bookmarks: random.bool() },
        4..=6 => Client::Rust { streaming: random.bool() },
        _ => {
            let encoding = random.u8(..8);
            Client::Go {
                watch_list: random.bool(),
                encoding: match encoding {
                    0..=2 => Encoding::Protobuf,
                    3..=4 => Encoding::Json,
                    5..=6 => Encoding::Cbor,
                    _ => Encoding::Metadata,
                },
                http1: random.u8(..4) == 0,
            }
        }
    }
}

/// Some, not none and not all.
fn some_of(random: &mut Rng, all: &[&'static str]) -> BTreeSet<&'static str> {
    loop {
        let some: BTreeSet<_> = all.iter().copied().filter(|_| random.bool()).collect();
        if !some.is_empty() && some.len() < all.len() {
            return some;
        }
    }
}

/// Seeds are numbered one after the other, and what they draw first must not be alike
/// (`SplitMix64`'s finaliser).
pub(crate) fn mixed(seed: u64) -> u64 {
    let seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ (seed >> 31)
}
