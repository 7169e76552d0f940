//! Label selectors.

use crate::dialect::problem::Problems;
use ctrlmesh_api::{LabelSelector, LabelSelectorRequirement, Operator};
use ctrlmesh_wire::selector::{LabelError, Op, Requirement, Selector};

/// The selector at a field. A requirement that is a problem is left out.
pub(super) fn selector(field: &str, given: &LabelSelector, problems: &mut Problems) -> Selector {
    let labels = given.match_labels.iter().map(|(key, value)| {
        (format!("{field}.matchLabels[{key:?}]"), Requirement::equals(key, value))
    });
    let expressions = given.match_expressions.iter().enumerate().map(|(at, expression)| {
        (format!("{field}.matchExpressions[{at}]"), requirement(expression))
    });
    labels.chain(expressions).filter_map(|(field, parsed)| problems.ok(field, parsed)).collect()
}

fn requirement(given: &LabelSelectorRequirement) -> Result<Requirement, LabelError> {
    let op = match given.operator {
        Operator::In => Op::In,
        Operator::NotIn => Op::NotIn,
        Operator::Exists => Op::Exists,
        Operator::DoesNotExist => Op::DoesNotExist,
    };
    Requirement::new(&given.key, op, &given.values)
}
