//! `spec.fence`.

use std::sync::Arc;

use crate::{
    dialect::{
        draft::DraftScope,
        problem::{Problem, Problems},
    },
    fence::{Except, Fence, FencedLimit},
    sharding::Rule,
};
use ctrlmesh_api as api;

/// Most exceptions of a config.
const MOST: usize = 64;

/// The fence of a config with these limits.
pub(super) fn fence(
    given: Option<&api::Fence>,
    limits: &[(Rule, Arc<DraftScope>)],
    problems: &mut Problems,
    warnings: &mut Vec<Problem>,
) -> Fence {
    let limits = limits.iter().map(|(rule, scope)| FencedLimit {
        rule: rule.clone(),
        field: scope.field.as_str().into(),
        is_by_namespace: scope.is_by_namespace,
    });
    let limits = limits.collect();
    let Some(given) = given else { return Fence { limits, ..Fence::default() } };
    if given.except.len() > MOST {
        let what = format!("has {} entries: give at most {MOST}", given.except.len());
        problems.add("spec.fence.except", what);
    }
    let mut except = Vec::new();
    for (at, entry) in given.except.iter().enumerate() {
        let field = format!("spec.fence.except[{at}]");
        let Some(entry) = problems.ok(&field, Except::new(entry)) else { continue };
        if entry.is_everything() {
            let what =
                "lets every write pass: name resources and namespaces, or set mode: Disabled"
                    .into();
            warnings.push(Problem { field, what });
        }
        except.push(entry);
    }
    Fence { mode: given.mode, except, limits, ..Fence::default() }
}
