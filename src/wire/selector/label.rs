//! Label selectors (`apimachinery/pkg/labels/selector.go`): a conjunction of requirements in one
//! canonical order.

use std::fmt;
use std::str::FromStr;

use super::parse;
use super::syntax::{LabelError, SelectorError, check_key, check_value};

/// A conjunction of requirements; the empty one selects everything. Canonical, so that equal
/// selectors compare equal: requirements are sorted by key, operator and values, each occurs once,
/// values are sorted and unique, and sets of one value are written as `=` and `!=`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// One validated condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    key: String,
    op: Op,
    values: Vec<String>,
}

/// The operator of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// The label is there and has one of the values.
    In,
    /// The label is not there, or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
    /// The label is there, an integer, and greater than the one value.
    GreaterThan,
    /// The label is there, an integer, and less than the one value.
    LessThan,
}

impl Selector {
    /// Selects every object.
    pub const fn everything() -> Self {
        Self { requirements: Vec::new() }
    }

    /// Reads the API server's string form, as in `?labelSelector=`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        Ok(parse::requirements(text)?.into_iter().collect())
    }

    /// The selector of the objects that both select.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.requirements.iter().chain(&other.requirements).cloned().collect()
    }

    /// Whether an object is selected; `label` returns the value of one of its labels.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(label(&requirement.key)))
    }

    /// Whether it selects every object.
    pub const fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements in canonical order.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

/// The AND of the requirements. `matchLabels` and `matchExpressions` become a selector this way.
impl FromIterator<Requirement> for Selector {
    fn from_iter<I: IntoIterator<Item = Requirement>>(iter: I) -> Self {
        let mut requirements: Vec<_> = iter.into_iter().collect();
        requirements.sort_unstable();
        requirements.dedup();
        Self { requirements }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}

/// The API server's string form; it parses to the same selector.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, requirement) in self.requirements.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
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

    /// `key=value`, as one pair of `matchLabels`.
    pub fn equals(key: impl Into<String>, value: impl Into<String>) -> Result<Self, LabelError> {
        Self::new(key, Op::In, [value.into()])
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

impl Op {
    /// The operator's name in `matchExpressions`, and in errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
            Self::GreaterThan => "Gt",
            Self::LessThan => "Lt",
        }
    }

    fn check_count(self, values: usize) -> Result<(), LabelError> {
        let (fits, expected) = match self {
            Self::In | Self::NotIn => (values > 0, "at least one value"),
            Self::Exists | Self::DoesNotExist => (values == 0, "no value"),
            Self::GreaterThan | Self::LessThan => (values == 1, "exactly one value"),
        };
        if fits {
            Ok(())
        } else {
            Err(LabelError::ValueCount { op: self, expected, found: values })
        }
    }
}
