//! Label and field selectors in the API server's grammar: parsed, AND-ed, matched and written
//! again.

mod field;
mod label;
mod parse;
mod requirement;
mod syntax;

pub use field::{FieldSelector, FieldSelectorError, equal_to};
pub use label::Selector;
pub use requirement::Requirement;
pub use syntax::{LabelError, Op, SelectorError};
