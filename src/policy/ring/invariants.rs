//! The rules of the handover, by name, where the machine obeys them.
//!
//! Hides how a test breaks one of them. Knows nothing of what they are about. Words: a *law* is a
//! rule of the handover, so that it is not taken for a rule for resources.

/// A rule of the machine. Broken, it loses objects or gives them two writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Invariant {
    /// A claim is given back when all that is under way outside of the new one has ended.
    DrainFirst,
    /// A request of unknown end is under way until its deadline and longer.
    UnknownIsUnderWay,
    /// Nothing opens before the Leases are read.
    ReadBeforeOpening,
    /// The Leases are read after the own claim is stored.
    ClaimBeforeReading,
    /// The Leases are read from the store, not from a cache.
    ReadConsistently,
    /// Nothing opens that is not claimed.
    OpenWithinClaim,
    /// The own Lease is written with the version that it replaces.
    WriteWithVersion,
    /// The own Lease stays when its pod is deleted.
    LeaseOutlivesPod,
    /// Of what two configs want and no one has, the elder claims it.
    ElderClaims,
    /// Lost objects leave the claim, whether or not gained ones can be claimed.
    ClaimWhatIsLeft,
}

/// The laws that hold: all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Invariants {
    /// The law that a test breaks.
    #[cfg(test)]
    pub(super) broken: Option<Invariant>,
}

impl Invariants {
    #[cfg(not(test))]
    pub(super) const fn hold(self, _: Invariant) -> bool {
        true
    }

    #[cfg(test)]
    pub(super) fn hold(self, law: Invariant) -> bool {
        self.broken != Some(law)
    }
}
