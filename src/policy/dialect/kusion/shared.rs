//! `spec.shared`.

use crate::{
    dialect::problem::{Problem, Problems},
    sharding::Shared,
};
use ctrlmesh_api as api;

/// Most entries of a config.
const MOST: usize = 64;

/// What all shards are shown.
pub(super) fn shared(
    given: &[api::Shared],
    problems: &mut Problems,
    warnings: &mut Vec<Problem>,
) -> Shared {
    if given.len() > MOST {
        let what = format!("has {} entries: give at most {MOST}", given.len());
        problems.add("spec.shared", what);
    }
    for (at, entry) in given.iter().enumerate() {
        let is_same = |other: &&api::Shared| {
            (&other.api_groups, &other.resources, &other.namespaces)
                == (&entry.api_groups, &entry.resources, &entry.namespaces)
        };
        if let Some(first) = given.iter().take(at).position(|other| is_same(&other)) {
            let what = format!("says nothing: spec.shared[{first}] names the same, and counts");
            warnings.push(Problem { field: format!("spec.shared[{at}]"), what });
        }
    }
    match Shared::new(given) {
        Ok(shared) => shared,
        Err((at, bad)) => {
            problems.add(format!("spec.shared[{at}]"), bad.to_string());
            Shared::default()
        }
    }
}
