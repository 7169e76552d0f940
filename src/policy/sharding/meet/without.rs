//! The part of a scope that another does not own.
//!
//! Hides which differences a scope can say: a scope is a conjunction, and the rest of it without
//! another is one only if a single condition tells the two apart. Does not know whose they are.

use std::collections::BTreeSet;

use super::super::{Boundary, Computed, HashOf, Scope};
use ctrlmesh_wire::selector::{Requirement, Selector};

/// One condition of a scope.
enum Condition {
    Labels(Requirement),
    /// A boundary with one condition, or none but that it has no cluster-scoped objects.
    Inside(Boundary),
}

impl Scope {
    /// The objects that the other does not own, in normal form. `None` if no scope has exactly these.
    pub fn without(&self, other: &Self) -> Option<Self> {
        let whole = self.normal();
        if whole.is_disjoint(other) {
            return Some(whole);
        }
        if whole.meet(other) == whole {
            return Some(Self::nothing());
        }
        let tells_apart = |condition: &Condition| whole.meet(&condition.scope()) != whole;
        let mut conditions = conditions(&other.normal()).into_iter().filter(tells_apart);
        let (one, None) = (conditions.next()?, conditions.next()) else { return None };
        let rest = match one {
            Condition::Labels(requirement) => {
                let but = Self::new(Selector::from_iter([requirement.opposite()?]));
                whole.meet(&but)
            }
            Condition::Inside(boundary) => whole.outside(&boundary)?,
        };
        // A rest that is not proven disjoint is of no use to the pod that claims it.
        rest.is_disjoint(other).then_some(rest)
    }

    /// The objects that are not inside a boundary with one condition.
    fn outside(&self, cut: &Boundary) -> Option<Self> {
        let has_cluster_scoped = self.boundaries().iter().all(|inside| inside.has_cluster_scoped);
        let Boundary { names, pattern, selected, computed, hash, .. } = cut;
        let mut rest = Boundary {
            has_cluster_scoped: has_cluster_scoped && !cut.has_cluster_scoped,
            ..Boundary::everything()
        };
        if let Some(rule) = hash {
            rest.hash = rule.complement();
            if rest.hash.is_none() {
                rest.names = Some(BTreeSet::new());
            }
            if rule.of() == HashOf::Uid {
                // Cluster-scoped objects has a uid, too.
                rest.has_cluster_scoped = has_cluster_scoped;
                if has_cluster_scoped && !cut.has_cluster_scoped || rest.hash.is_none() {
                    return None;
                }
            }
        } else if let Some(computed) = computed {
            rest = rest.restricted(Some(computed.opposite()?));
        } else {
            let listed = self.boundaries().iter().find_map(Boundary::namespaces);
            let is_inside = |name: &str| {
                names.as_ref().is_none_or(|names| names.contains(name))
                    && pattern.as_ref().is_none_or(|pattern| pattern.is_match(name))
                    && selected.as_ref().is_none_or(|selected| selected.names().contains(name))
            };
            let is_any = names.is_none() && pattern.is_none() && selected.is_none();
            rest.names = Some(match listed {
                Some(listed) => listed.iter().filter(|name| !is_inside(name)).cloned().collect(),
                None if is_any => BTreeSet::new(),
                None => return None,
            });
        }
        Some(self.normal().inside(rest).normal())
    }
}

/// The conditions of a scope in normal form.
fn conditions(scope: &Scope) -> Vec<Condition> {
    let labels = scope.selector().requirements().iter().cloned().map(Condition::Labels);
    let mut conditions: Vec<_> = labels.collect();
    for inside in scope.boundaries() {
        let Boundary { names, pattern, selected, computed, hash, has_cluster_scoped } = inside;
        let none =
            || Boundary { has_cluster_scoped: *has_cluster_scoped, ..Boundary::everything() };
        let before = conditions.len();
        let each = [
            names.is_some().then(|| Boundary { names: names.clone(), ..none() }),
            pattern.is_some().then(|| Boundary { pattern: pattern.clone(), ..none() }),
            selected.is_some().then(|| Boundary { selected: selected.clone(), ..none() }),
            hash.is_some().then(|| Boundary { hash: hash.clone(), ..none() }),
        ];
        let computed = computed.iter().flat_map(Computed::each);
        let computed = computed.map(|one| Boundary { computed: Some(one), ..none() });
        conditions.extend(each.into_iter().flatten().chain(computed).map(Condition::Inside));
        if conditions.len() == before {
            conditions.push(Condition::Inside(none()));
        }
    }
    conditions
}

impl Condition {
    fn scope(&self) -> Scope {
        match self {
            Self::Labels(requirement) => Scope::new(Selector::from_iter([requirement.clone()])),
            Self::Inside(boundary) => Scope::new(Selector::everything()).inside(boundary.clone()),
        }
    }
}
