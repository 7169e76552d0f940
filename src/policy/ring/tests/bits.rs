//! Pieces of a resource as sets of cells.

use super::super::Claim;
use crate::{ByResource, GroupResource, ObjectSet, Rule};

/// Cells of a resource, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bits(pub(super) u8);

impl ObjectSet for Bits {
    fn nothing() -> Self {
        Self(0)
    }

    fn is_nothing(&self) -> bool {
        self.0 == 0
    }

    fn meet(&self, other: &Self) -> Self {
        Self(self.0 & other.0)
    }

    fn is_disjoint(&self, other: &Self) -> bool {
        self.0 & other.0 == 0
    }

    fn without(&self, other: &Self) -> Option<Self> {
        Some(Self(self.0 & !other.0))
    }
}

/// Where cells are: a resource each, or namespaces of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    Resources,
    Namespaces,
}

impl Layout {
    pub(super) fn resource(self, cell: u8) -> GroupResource {
        let names = ["r0", "r1"];
        GroupResource::new(
            "",
            if self == Self::Resources { names[usize::from(cell)] } else { "r0" },
        )
    }

    pub(super) fn area(self, cells: u8) -> ByResource<Bits> {
        let rule = |cell| Rule::of(&self.resource(cell));
        match self {
            Self::Resources => {
                ByResource::new([0, 1].map(|cell| (rule(cell), Some(Bits(cells >> cell & 1)))))
            }
            Self::Namespaces => ByResource::new([(rule(0), Some(Bits(cells)))]),
        }
    }

    pub(super) fn cells(self, area: &ByResource<Bits>) -> u8 {
        let of = |cell| area.find(&Rule::of(&self.resource(cell))).map_or(0, |bits| bits.0);
        if self == Self::Resources { of(0) | of(1) << 1 } else { of(0) }
    }

    pub(super) fn claim(self, cells: u8) -> Claim<Bits> {
        Claim::of(self.area(cells))
    }
}
