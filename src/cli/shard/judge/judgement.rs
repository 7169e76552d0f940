//! The words of a judgement: remarks, and parts of the root with their reasons.

use crate::{
    doctor::Looked,
    shard::{
        args::By,
        facts::{CustomKind, Facts},
    },
};
use ctrlmesh_api::{LockRef, Shared};
use ctrlmesh_policy::GroupResource;

/// The layout that is asked for.
#[derive(Clone, Debug)]
pub(in crate::shard) struct Wanted {
    /// The number of shards.
    pub(in crate::shard) shards: u32,
    /// The attribute that tells the shard of an object.
    pub(in crate::shard) by: By,
    /// The resources to shard by uid. Empty means those that are reconciled.
    pub(in crate::shard) resources: Vec<GroupResource>,
}

/// The weight of a remark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) enum Weight {
    /// It cannot be sharded so.
    Refused,
    /// It can, and something may go wrong.
    Warning,
    /// Only the user can tell.
    Unknown,
}

/// Something that the user must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::shard) struct Remark {
    /// Its weight.
    pub(in crate::shard) weight: Weight,
    /// The fact, and what follows from it.
    pub(in crate::shard) says: String,
    /// The remedy. Empty if there is none.
    pub(in crate::shard) fix: String,
}

/// A part of the root, with the fact by which it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::shard) struct Because<T> {
    /// The part.
    pub(in crate::shard) part: T,
    /// The fact.
    pub(in crate::shard) reason: String,
}

/// The server of the workload's webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::shard) struct Server {
    /// The directory of its certificate.
    pub(in crate::shard) cert_dir: String,
    /// Its port.
    pub(in crate::shard) port: u16,
}

/// The judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::shard) struct Judgement {
    /// The locks by which it elects its leader.
    pub(in crate::shard) locks: Vec<Because<LockRef>>,
    /// The server of its webhooks.
    pub(in crate::shard) webhook: Option<Because<Server>>,
    /// The objects that all shards see.
    pub(in crate::shard) shared: Vec<Because<Shared>>,
    /// The resources that are sharded by uid.
    pub(in crate::shard) resources: Vec<Because<GroupResource>>,
    /// The remarks, the heaviest first.
    pub(in crate::shard) remarks: Vec<Remark>,
}

impl Judgement {
    /// Whether it can be sharded so.
    pub(in crate::shard) fn is_refused(&self) -> bool {
        self.remarks.iter().any(|remark| remark.weight == Weight::Refused)
    }

    pub(super) fn refuse(&mut self, says: impl Into<String>, fix: impl Into<String>) {
        self.remark(Weight::Refused, says.into(), fix.into());
    }

    pub(super) fn warn(&mut self, says: impl Into<String>, fix: impl Into<String>) {
        self.remark(Weight::Warning, says.into(), fix.into());
    }

    pub(super) fn unknown(&mut self, says: impl Into<String>, fix: impl Into<String>) {
        self.remark(Weight::Unknown, says.into(), fix.into());
    }

    fn remark(&mut self, weight: Weight, says: String, fix: String) {
        self.remarks.push(Remark { weight, says, fix });
    }

    /// The facts that were looked for; `None`, and a remark, if they could not be read.
    pub(super) fn seen<'f, T>(&mut self, what: &str, looked: &'f Looked<T>) -> Option<&'f T> {
        let unseen = |why| self.unknown(format!("{what}: {why}"), "");
        looked.as_ref().map_err(unseen).ok()
    }
}

/// The custom kinds that the operator reconciles, as far as that is known.
pub(super) fn reconciled(facts: &Facts) -> Vec<&CustomKind> {
    let (Ok(kinds), Ok(rights)) = (&facts.kinds, &facts.rights) else { return Vec::new() };
    kinds.iter().filter(|kind| kind.is_reconciled(rights)).collect()
}

/// Names, of which the first few are said.
pub(super) fn some(names: &[String]) -> String {
    const MOST: usize = 4;
    let more = names.len().saturating_sub(MOST);
    let said = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more == 0 { said } else { format!("{said} and {more} more") }
}
