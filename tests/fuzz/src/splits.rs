//! Ways to cut an input, and what the targets judge by.

use ctrlmesh::wire::{frames::Verdict, object::Object};

/// A number that depends on every byte.
pub(crate) fn hash(bytes: &[u8]) -> usize {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    usize::try_from(hash >> 16).unwrap_or_default()
}

/// Each byte alone, chunks of one length, and three pieces; which ones the input decides.
pub(crate) fn splits(input: &[u8]) -> [Vec<&[u8]>; 3] {
    let hash = hash(input);
    let (first, rest) = input.split_at(hash % (input.len() + 1));
    let (second, third) = rest.split_at((hash >> 8) % (rest.len() + 1));
    [input.chunks(1).collect(), input.chunks(2 + hash % 70).collect(), vec![first, second, third]]
}

/// What an object said of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) kind: String,
    pub(crate) api_version: String,
}

impl Seen {
    pub(crate) fn new(object: &Object<'_>) -> Self {
        Self {
            namespace: object.namespace.to_owned(),
            name: object.name.to_owned(),
            uid: object.uid.to_owned(),
            kind: object.kind.to_owned(),
            api_version: object.api_version.to_owned(),
        }
    }

    /// The rule of all targets.
    pub(crate) fn verdict(&self) -> Verdict {
        match self.namespace.as_str() {
            "team-alpha" => Verdict::Keep,
            unknown if unknown.contains('?') => Verdict::Unknown,
            _ => Verdict::Drop,
        }
    }

    pub(crate) fn is_table(&self) -> bool {
        self.kind == "Table" && self.api_version.starts_with("meta.k8s.io/")
    }
}
