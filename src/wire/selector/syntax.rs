//! The syntax of label keys and values (`apimachinery/pkg/api/validate/content`), the operators,
//! and the errors.

use strum::IntoStaticStr;

use crate::dns::is_subdomain;

const MAX_NAME: usize = 63;
const MAX_PREFIX: usize = 253;

/// The operator of a requirement, by its name in `matchExpressions` and in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr)]
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
    #[strum(serialize = "Gt")]
    GreaterThan,
    /// The label is there, an integer, and less than the one value.
    #[strum(serialize = "Lt")]
    LessThan,
}

impl Op {
    /// The operator's name.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub(super) fn check_count(self, values: usize) -> Result<(), LabelError> {
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

/// A label requirement that the API server would refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum LabelError {
    #[error(
        "label key {0:?} is invalid: must be [PREFIX/]NAME, NAME at most 63 of [-A-Za-z0-9_.] with an alphanumeric at both ends, \
         PREFIX a lowercase DNS subdomain of at most 253"
    )]
    Key(String),
    #[error(
        "label value {0:?} is invalid: must be empty, or at most 63 of [-A-Za-z0-9_.] with an alphanumeric at both ends"
    )]
    Value(String),
    #[error("label value {0:?} is invalid: Gt and Lt need a decimal 64-bit integer")]
    NotInteger(String),
    #[error("operator {} takes {expected}, found {found}", op.as_str())]
    ValueCount { op: Op, expected: &'static str, found: usize },
}

/// The error for a text that is not a label selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("label selector: at byte {position}: {reason}")]
pub struct SelectorError {
    /// Byte offset of the wrong token in the text.
    pub position: usize,
    /// The token found there, and the expected one.
    pub reason: String,
}

pub(super) fn check_key(key: &str) -> Result<(), LabelError> {
    let valid = match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => prefix.len() <= MAX_PREFIX && is_subdomain(prefix) && is_name(name),
    };
    if valid { Ok(()) } else { Err(LabelError::Key(key.to_owned())) }
}

pub(super) fn check_value(value: &str) -> Result<(), LabelError> {
    if value.is_empty() || is_name(value) {
        Ok(())
    } else {
        Err(LabelError::Value(value.to_owned()))
    }
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    bytes.len() <= MAX_NAME
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(inner)
}
