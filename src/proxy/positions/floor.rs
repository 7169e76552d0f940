//! The highest position of an older scope.

/// The highest position that was shown under an older scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floor {
    /// A known position; 0 if nothing was shown.
    At(u64),
    /// Any position.
    Unknown,
}

impl Floor {
    pub(super) fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(a), Self::At(b)) => Self::At(a.max(b)),
            _ => Self::Unknown,
        }
    }
}
