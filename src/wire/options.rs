//! The options of a list, watch or deletecollection (`metav1.ListOptions`), read once.
//!
//! The API server itself answers a request whose options it cannot decode. So an error here is no
//! refusal, and the caller that needs the value says what follows from it.

use std::{borrow::Cow, num::ParseIntError};

use super::{
    query::{Query, is_true},
    rv::ResourceVersion,
    selector::{FieldSelector, FieldSelectorError, Selector, SelectorError},
};

/// The options of a list, watch or deletecollection, see the module. Those of any other request are
/// the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions<'a> {
    /// `limit`.
    pub limit: Option<Result<i64, ParseIntError>>,
    /// `timeoutSeconds`.
    pub timeout_seconds: Option<Result<i64, ParseIntError>>,
    /// `continue`, which is never empty.
    pub continue_token: Option<Cow<'a, str>>,
    /// `resourceVersion`.
    pub resource_version: ResourceVersion,
    /// `sendInitialEvents`.
    pub sends_initial_events: bool,
    /// `allowWatchBookmarks`.
    pub allows_bookmarks: bool,
    /// Whether there is a `shardSelector`.
    pub has_shard_selector: bool,
    /// Whether the rows of a Table come without their objects (`includeObject=None`).
    pub leaves_out_objects: bool,
    /// The label selector. An error if it cannot be parsed.
    pub labels: Option<Result<Selector, SelectorError>>,
    /// The field selector. An error if it cannot be parsed.
    pub fields: Option<Result<FieldSelector, FieldSelectorError>>,
    /// The text of the label selector.
    pub label_text: Option<Cow<'a, str>>,
    /// The text of the field selector.
    pub field_text: Option<Cow<'a, str>>,
    watch: Option<Cow<'a, str>>,
}

impl<'a> ListOptions<'a> {
    /// Reads the options in a query.
    pub fn read(query: Query<'a>) -> Self {
        let mut options = Self::default();
        // Backwards: the first value of a key is the one that counts.
        for pair in query.pairs().rev() {
            let text = pair.value();
            match &*pair.key() {
                b"limit" => options.limit = Some(text.parse()),
                b"timeoutSeconds" => options.timeout_seconds = Some(text.parse()),
                b"continue" => options.continue_token = Some(text).filter(|text| !text.is_empty()),
                b"resourceVersion" => {
                    options.resource_version = ResourceVersion::parse(text.as_bytes());
                }
                b"sendInitialEvents" => options.sends_initial_events = is_true(&text),
                b"allowWatchBookmarks" => options.allows_bookmarks = is_true(&text),
                b"shardSelector" => options.has_shard_selector = !text.is_empty(),
                b"includeObject" => options.leaves_out_objects = text == "None",
                b"labelSelector" => options.label_text = Some(text),
                b"fieldSelector" => options.field_text = Some(text),
                b"watch" => options.watch = Some(text),
                _ => {}
            }
        }
        options.labels = options.label_text.as_deref().map(Selector::parse);
        options.fields = options.field_text.as_deref().map(FieldSelector::parse);
        options
    }

    /// The text of the field selector AND `term`.
    pub fn fields_and(&self, term: &str) -> String {
        match self.field_text.as_deref() {
            None | Some("") => term.to_owned(),
            Some(own) => format!("{own},{term}"),
        }
    }

    /// The namespace that the field selector requires.
    pub fn namespace(&self) -> Option<&str> {
        self.required("metadata.namespace").filter(|namespace| !namespace.is_empty())
    }

    /// The name that the field selector requires. Malformed options require none.
    pub(super) fn name(&self) -> Option<&str> {
        let name = self.required("metadata.name").filter(|name| is_segment_name(name))?;
        (!self.is_malformed()).then_some(name)
    }

    /// Whether they turn a list into a watch. Of malformed options the API server reads `watch`
    /// again, by `strings.ToLower`: only a value that is "false" by Unicode's case folding alone
    /// makes a difference.
    pub(super) fn is_watch(&self) -> bool {
        let lowered = |value: &str| value != "0" && !value.eq_ignore_ascii_case("false");
        let reads = if self.is_malformed() { lowered } else { is_true };
        self.watch.as_deref().is_some_and(reads)
    }

    fn required(&self, field: &str) -> Option<&str> {
        self.fields.as_ref()?.as_ref().ok()?.requires(field)
    }

    /// Whether the API server fails to decode them as a whole.
    fn is_malformed(&self) -> bool {
        matches!(self.limit, Some(Err(_)))
            || matches!(self.timeout_seconds, Some(Err(_)))
            || matches!(self.labels, Some(Err(_)))
            || matches!(self.fields, Some(Err(_)))
    }
}

/// Whether `IsPathSegmentName` of apimachinery accepts it, and it is not empty.
fn is_segment_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%'])
}
