//! The requirements of a label selector.

use std::fmt;

use super::syntax::{LabelError, Op, check_key, check_value};

/// One validated condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    key: String,
    op: Op,
    values: Vec<String>,
}

impl Requirement {
    /// Validates as apimachinery's `NewRequirement`: the key, the number of values for the
    /// operator, each value.
    pub fn new(
        key: impl Into<String>,
        op: Op,
        values: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, LabelError> {
        let key = key.into();
        check_key(&key)?;
        let mut values: Vec<String> = values.into_iter().map(Into::into).collect();
        op.check_count(values.len())?;
        for value in &values {
            check_value(value)?;
            if matches!(op, Op::GreaterThan | Op::LessThan) && value.parse::<i64>().is_err() {
                return Err(LabelError::NotInteger(value.clone()));
            }
        }
        values.sort_unstable();
        values.dedup();
        Ok(Self { key, op, values })
    }

    /// The requirement `key=value`, as one pair of `matchLabels`.
    pub fn equals(key: impl Into<String>, value: impl Into<String>) -> Result<Self, LabelError> {
        Self::new(key, Op::In, [value.into()])
    }

    /// The requirement that is met where this one is not. `None` for a comparison of numbers: a value
    /// that is not a number is neither greater nor less.
    pub fn opposite(&self) -> Option<Self> {
        let op = match self.op {
            Op::In => Op::NotIn,
            Op::NotIn => Op::In,
            Op::Exists => Op::DoesNotExist,
            Op::DoesNotExist => Op::Exists,
            Op::GreaterThan | Op::LessThan => return None,
        };
        Some(Self { op, ..self.clone() })
    }

    /// The requirement, on the label of this key.
    pub fn on(&self, key: &'static str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// Name of the label.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The operator.
    pub const fn op(&self) -> Op {
        self.op
    }

    /// The values, sorted and unique: none for `Exists` and `DoesNotExist`, one for `GreaterThan`
    /// and `LessThan`.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether it matches the label's value, which is `None` if there is no such label.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match self.op {
            Op::In => value.is_some_and(|value| self.lists(value)),
            Op::NotIn => !value.is_some_and(|value| self.lists(value)),
            Op::Exists => value.is_some(),
            Op::DoesNotExist => value.is_none(),
            Op::GreaterThan => self.ordered(value).is_some_and(|(value, bound)| value > bound),
            Op::LessThan => self.ordered(value).is_some_and(|(value, bound)| value < bound),
        }
    }

    fn lists(&self, value: &str) -> bool {
        self.values.binary_search_by(|listed| listed.as_str().cmp(value)).is_ok()
    }

    fn ordered(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((value?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

/// Whether it is proven that no label satisfies all requirements, which are of one key.
pub(super) fn contradict(all: &[Requirement]) -> bool {
    if all.iter().all(|requirement| requirement.matches(None)) {
        return false;
    }
    if all.iter().any(|requirement| requirement.op == Op::DoesNotExist) {
        return true;
    }
    if let Some(one) = all.iter().find(|requirement| requirement.op == Op::In) {
        let fits = |value: &String| all.iter().all(|other| other.matches(Some(value)));
        return !one.values.iter().any(fits);
    }
    let bounds = |op| {
        let of_op = all.iter().filter(move |requirement| requirement.op == op);
        of_op.filter_map(|requirement| requirement.values.first()?.parse::<i64>().ok())
    };
    let least = bounds(Op::GreaterThan).max().map(|bound| i128::from(bound) + 1);
    let most = bounds(Op::LessThan).min().map(|bound| i128::from(bound) - 1);
    let (first, last) = (i128::from(i64::MIN), i128::from(i64::MAX));
    least.unwrap_or(first) > most.unwrap_or(last)
}

/// The fewest requirements that mean the same as these, which are of one key and do not contradict each
/// other.
pub(super) fn simplest(all: &[Requirement]) -> Vec<Requirement> {
    let of_op = |op| all.iter().filter(move |requirement| requirement.op == op);
    if let Some(one) = of_op(Op::In).next() {
        let fits = |value: &&String| all.iter().all(|other| other.matches(Some(value)));
        let values = one.values.iter().filter(fits).cloned().collect();
        return vec![Requirement { values, ..one.clone() }];
    }
    // All others are satisfied by no label.
    if let Some(absent) = of_op(Op::DoesNotExist).next() {
        return vec![absent.clone()];
    }
    let bound = |requirement: &&Requirement| {
        requirement.values.first().and_then(|value| value.parse::<i64>().ok())
    };
    let mut fewest: Vec<_> = of_op(Op::NotIn).next().cloned().into_iter().collect();
    if let Some(excluded) = fewest.first_mut() {
        excluded.values = of_op(Op::NotIn).flat_map(|other| other.values.clone()).collect();
        excluded.values.sort_unstable();
        excluded.values.dedup();
    }
    let bounds = [of_op(Op::GreaterThan).max_by_key(bound), of_op(Op::LessThan).min_by_key(bound)];
    let has_bound = bounds.iter().any(Option::is_some);
    fewest.extend(bounds.into_iter().flatten().cloned());
    // Which a bound implies.
    fewest.extend(of_op(Op::Exists).next().filter(|_| !has_bound).cloned());
    fewest
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, op, values } = self;
        match (op, values.as_slice()) {
            (Op::In, [value]) => write!(f, "{key}={value}"),
            (Op::NotIn, [value]) => write!(f, "{key}!={value}"),
            (Op::In, values) => write!(f, "{key} in ({})", values.join(",")),
            (Op::NotIn, values) => write!(f, "{key} notin ({})", values.join(",")),
            (Op::Exists, _) => f.write_str(key),
            (Op::DoesNotExist, _) => write!(f, "!{key}"),
            (Op::GreaterThan, values) => write!(f, "{key}>{}", values.join(",")),
            (Op::LessThan, values) => write!(f, "{key}<{}", values.join(",")),
        }
    }
}
