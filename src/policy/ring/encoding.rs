//! The encoding of a claim in the annotations of a Lease.
//!
//! Hides that a claim that is too long becomes a digest, and that one that cannot be read claims everything. Knows
//! nothing of rings or of time. Words: a text *says* a claim; the *digest* stands for a boundary that
//! is too long to be said.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::claim::{Claim, Lease};
use crate::{
    Boundary, ByResource, Computed, HashFunction, HashOf, HashRange, HashRule, Pattern, Rule,
    Scope, Selected, Sharding, Shared,
};
use ctrlmesh_api as api;
use ctrlmesh_wire::selector::Selector;

/// The longest text of a claim, in bytes: ten thousand namespaces. All annotations of an object have
/// 256 KiB.
const LONGEST: usize = 192 << 10;
/// The release of the format. A text of a later one is read as far as it is known: fields are added,
/// none of which widens the claim.
pub const SPEAKS: u32 = 1;

/// A claim over the scopes of resources.
pub type ScopeClaim = Claim<Arc<Scope>>;

/// The metadata of the Lease of a pod, as far as it is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said<'a> {
    /// The shard. `None` if it does not say.
    pub shard: Option<&'a str>,
    /// The text of the claim. `None` if it does not say.
    pub claim: Option<&'a str>,
}

/// A claim that cannot be said: its rules alone are too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limits name too many resources: what a shard claims must fit into {LONGEST} bytes")]
pub struct TooLong;

#[derive(Default, Serialize, Deserialize)]
struct Text {
    #[serde(skip_serializing_if = "Option::is_none")]
    pieces: Option<Vec<PieceText>>,
    /// The digest of the pieces, where only their rules are said.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    all: bool,
    /// What all shards are shown. No claim says it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shared: Vec<api::Shared>,
}

#[derive(Serialize, Deserialize)]
struct PieceText {
    group: String,
    resource: String,
    /// Whether the resource is not limited.
    #[serde(default, skip_serializing_if = "is_false")]
    free: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    nothing: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    labels: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inside: Vec<BoundaryText>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BoundaryText {
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<BTreeSet<Box<str>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pattern: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selected: Option<SelectedText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    computed: Option<String>,
    /// The same, where cluster-scoped objects is claimed too although it does not meet it: earlier
    /// releases, which do not know this field, read a claim of all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    computed_inside: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uids: Option<Vec<(String, String)>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Vec<(String, String)>>,
    /// The mixed hashes of namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mixed: Option<Vec<(String, String)>>,
    cluster_scoped: bool,
}

#[derive(Serialize, Deserialize)]
struct SelectedText {
    by: String,
    names: BTreeSet<Box<str>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(is: &bool) -> bool {
    !is
}

/// The text that says exactly what a shard owns and is shown. `None` if it is too long.
pub fn boundary_text(sharding: &Sharding) -> Option<String> {
    let area = sharding.area();
    let pieces = area.pieces().map(|(rule, scope)| piece_text(rule, scope.map(AsRef::as_ref)));
    let shared = sharding.shared().given().cloned().collect();
    let text = written(&Text { pieces: Some(pieces.collect()), shared, ..Text::default() });
    Some(text).filter(|text| text.len() <= LONGEST)
}

/// The sharding of which a text says what it owns and shows, as one of the shard of `like`. `None` if it
/// cannot be read.
pub fn read_boundary(text: &str, like: &Arc<Sharding>) -> Option<Arc<Sharding>> {
    let text: Text = serde_json::from_str(text).ok()?;
    let is_whole = !text.all && text.digest.is_none();
    let area = text.pieces.filter(|_| is_whole).and_then(area_of)?;
    let shared = Shared::new(&text.shared).ok()?;
    match shared == *like.shared() {
        true => Some(like.within(&area)),
        false => Some(like.with_shared(&area, shared)),
    }
}

fn area_of(texts: Vec<PieceText>) -> Option<ByResource<Arc<Scope>>> {
    let mut rules = BTreeSet::new();
    let mut pieces = Vec::new();
    for piece in texts {
        let (rule, scope) = piece.read()?;
        if !rules.insert(rule.clone()) {
            return None;
        }
        pieces.push((rule, scope));
    }
    Some(ByResource::new(pieces))
}

impl ScopeClaim {
    /// The text that says the claim. The same claim has the same text.
    pub fn text(&self) -> Result<String, TooLong> {
        let pieces = match self {
            Self::All => return Ok(written(&Text { all: true, ..Text::default() })),
            Self::Nothing => Vec::new(),
            Self::Of(area) => {
                let pieces = area.pieces();
                pieces.map(|(rule, scope)| piece_text(rule, scope.map(AsRef::as_ref))).collect()
            }
        };
        let text = written(&Text { pieces: Some(pieces), ..Text::default() });
        if text.len() <= LONGEST {
            return Ok(text);
        }
        let digest = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        let rules = self.area().into_iter().flat_map(ByResource::pieces);
        // This text only names the resources, so it claims all of their objects.
        let everything = Scope::new(Selector::everything());
        let pieces = rules.map(|(rule, scope)| piece_text(rule, scope.map(|_| &everything)));
        let pieces = Some(pieces.collect());
        let text = written(&Text { pieces, digest: Some(digest), ..Text::default() });
        if text.len() <= LONGEST { Ok(text) } else { Err(TooLong) }
    }

    /// The claim that a text says. `None` if it cannot be read.
    pub fn read(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let text: Text = serde_json::from_str(text).ok()?;
        if text.all {
            return Some(Self::All);
        }
        area_of(text.pieces?).map(Self::of)
    }
}

impl Lease<Arc<Scope>> {
    /// The Lease of a pod. One that cannot be read claims all, for no one's shard.
    pub fn read(pod: &str, ring: &str, version: &str, said: Said<'_>) -> Self {
        let read = || Some((said.shard?, Claim::read(said.claim?)?));
        let (shard, claim) = match read() {
            Some((shard, claim)) => (Some(shard.into()), claim),
            None => (None, Claim::All),
        };
        Self { pod: pod.into(), ring: ring.into(), shard, version: version.into(), claim }
    }
}

fn written(text: &Text) -> String {
    // A struct of texts, numbers and lists has a JSON.
    serde_json::to_string(text).unwrap_or_default()
}

fn piece_text(rule: &Rule, scope: Option<&Scope>) -> PieceText {
    let (group, resource) = rule.names();
    let inside = scope.into_iter().flat_map(Scope::boundaries);
    PieceText {
        group: group.to_owned(),
        resource: resource.to_owned(),
        free: scope.is_none(),
        nothing: scope.is_some_and(Scope::is_nothing),
        labels: scope.map(|scope| scope.text().to_owned()).unwrap_or_default(),
        inside: inside.map(BoundaryText::of).collect(),
    }
}

impl PieceText {
    fn read(self) -> Option<(Rule, Option<Arc<Scope>>)> {
        let rule = Rule::new(&self.group, &self.resource).ok()?;
        if self.free {
            return Some((rule, None));
        }
        if self.nothing {
            return Some((rule, Some(Arc::new(Scope::nothing()))));
        }
        let mut scope = Scope::new(self.labels.parse().ok()?);
        for boundary in self.inside {
            scope = scope.inside(boundary.read()?);
        }
        Some((rule, Some(Arc::new(scope.normal()))))
    }
}

impl BoundaryText {
    fn of(boundary: &Boundary) -> Self {
        let Boundary { names, pattern, selected, computed, hash, has_cluster_scoped } = boundary;
        let is_of = |rule: &&HashRule, of, function| (rule.of(), rule.function()) == (of, function);
        let ranges = |of, function| {
            hash.as_ref().filter(|rule| is_of(rule, of, function)).map(HashRule::texts)
        };
        let text = computed.as_ref().map(ToString::to_string);
        // Cluster-scoped objects is claimed although it does not meet the condition.
        let is_inside = *has_cluster_scoped && computed.as_ref().is_some_and(|one| !one.has(""));
        let (computed, computed_inside) = if is_inside { (None, text) } else { (text, None) };
        Self {
            names: names.clone(),
            pattern: pattern.as_ref().map(|pattern| pattern.as_str().to_owned()),
            selected: selected.as_ref().map(|selected| SelectedText {
                by: selected.selector().to_string(),
                names: selected.names().clone(),
            }),
            computed,
            computed_inside,
            uids: ranges(HashOf::Uid, HashFunction::Fnv1a),
            namespaces: ranges(HashOf::Namespace, HashFunction::Fnv1a),
            mixed: ranges(HashOf::Namespace, HashFunction::Mixed),
            cluster_scoped: *has_cluster_scoped,
        }
    }

    fn read(self) -> Option<Boundary> {
        let hash = match (&self.uids, &self.namespaces, &self.mixed) {
            (None, None, None) => None,
            (Some(uids), None, None) => Some(HashRule::new(HashOf::Uid, hash_ranges(uids)?).ok()?),
            (None, Some(plain), None) => {
                Some(HashRule::new(HashOf::Namespace, hash_ranges(plain)?).ok()?)
            }
            (None, None, Some(mixed)) => Some(HashRule::mixed(hash_ranges(mixed)?).ok()?),
            _ => return None,
        };
        let selected = match self.selected {
            None => None,
            Some(SelectedText { by, names }) => Some(Selected::drawn(by.parse().ok()?, names)),
        };
        let pattern = match &self.pattern {
            None => None,
            Some(pattern) => Some(Pattern::new(pattern).ok()?),
        };
        if self.computed.is_some() && self.computed_inside.is_some() {
            return None;
        }
        let computed = match self.computed.or(self.computed_inside) {
            None => None,
            Some(text) => match Computed::split(&text.parse().ok()?) {
                (Some(computed), rest) if rest.is_everything() => Some(computed),
                _ => return None,
            },
        };
        let (names, has_cluster_scoped) = (self.names, self.cluster_scoped);
        let boundary =
            Boundary { names, pattern, selected, computed: None, hash, has_cluster_scoped };
        Some(boundary.restricted(computed))
    }
}

fn hash_ranges(ranges: &[(String, String)]) -> Option<Vec<HashRange>> {
    ranges.iter().map(|(from, to)| HashRange::new(from, to).ok()).collect()
}
