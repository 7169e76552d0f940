//! `metadata.resourceVersion`.

use std::fmt;

/// A position in a resource's history. Since KEP-5504 it is a decimal integer of at most 128 bits,
/// without leading zeros, and two of one resource can be compared; an aggregated API server may
/// still use any text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ResourceVersion {
    /// Unset, absent or empty: "the newest".
    #[default]
    Unset,
    /// `"0"`: "any". Never a position of an object.
    Zero,
    /// A position.
    At(u128),
    /// Opaque: any other text, which cannot be compared.
    Opaque,
}

impl ResourceVersion {
    /// Reads the decoded value from a query or an object.
    pub fn parse(text: &[u8]) -> Self {
        match text {
            [] => Self::Unset,
            b"0" => Self::Zero,
            [b'1'..=b'9', ..] => str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .map_or(Self::Opaque, Self::At),
            _ => Self::Opaque,
        }
    }

    /// The position; `None` for every other variant.
    pub const fn position(self) -> Option<u128> {
        match self {
            Self::At(position) => Some(position),
            Self::Unset | Self::Zero | Self::Opaque => None,
        }
    }
}

/// The text on the wire; that of `Opaque` was not kept.
impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => Ok(()),
            Self::Zero => f.write_str("0"),
            Self::At(position) => position.fmt(f),
            Self::Opaque => f.write_str("(opaque)"),
        }
    }
}
