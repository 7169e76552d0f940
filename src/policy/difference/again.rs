//! Requests to the API server on behalf of a live watch whose policy changes.
//!
//! Hides which query parameters of the watch are kept. Every request keeps the client's selectors.

use super::part::Part;
use crate::{decision::own_selector, refusal::Refused};
use ctrlmesh_wire::RequestInfo;

/// Query parameters for the start, duration and initial events of a watch.
const OF_THE_WATCH: [&str; 6] = [
    "watch",
    "allowWatchBookmarks",
    "sendInitialEvents",
    "timeoutSeconds",
    "resourceVersion",
    "resourceVersionMatch",
];
const PAGE: &str = "500";

/// One page of a list.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// The exact resourceVersion of the list.
    pub at: u64,
    /// The `continue` token; empty for the first page.
    pub token: &'a str,
    /// Whether the part's hashes are pushed to the API server.
    pub is_hash_pushed: bool,
}

impl Part {
    /// The path and query that list this part of the watch's collection. `None` for a watch in the
    /// deprecated form, with the verb in its path. Fails with [`Refused`] when the client's own
    /// selectors cannot be read.
    pub fn list(&self, info: &RequestInfo<'_>, page: Page<'_>) -> Result<Option<String>, Refused> {
        let Some(path) = self.path(info) else { return Ok(None) };
        let own = own_selector(&info.options)?;
        let selector = own.map_or_else(|| self.selector.clone(), |own| own.and(&self.selector));
        let selector = selector.to_string();
        let hashes = self
            .hashes
            .as_ref()
            .filter(|hashes| page.is_hash_pushed && hashes.may_be_pushed(&info.options));
        let hashes = hashes.map(ToString::to_string);
        let at = page.at.to_string();
        let selector = Some(selector.as_str()).filter(|text| !text.is_empty());
        let mut changes = vec![("labelSelector", selector), ("limit", Some(PAGE))];
        if page.token.is_empty() {
            changes.push(("resourceVersion", Some(&at)));
            changes.push(("resourceVersionMatch", Some("Exact")));
        } else {
            // The token contains the position, and the query may not give another.
            changes.push(("continue", Some(page.token)));
        }
        if let Some(hashes) = &hashes {
            changes.push(("shardSelector", Some(hashes)));
        }
        // Last, so that those that were set stay.
        changes.extend(OF_THE_WATCH.map(|name| (name, None)));
        Ok(Some(format!("{path}?{}", info.query.rewrite(&changes))))
    }

    /// The path of the collection, or of one namespace of it.
    fn path(&self, info: &RequestInfo<'_>) -> Option<String> {
        let path = info.path.trim_end_matches('/');
        let resource = info.resource().filter(|resource| !resource.verb_in_path)?;
        let Some(namespace) = &self.namespace else { return Some(path.to_owned()) };
        // Names of namespaces need no escaping.
        let (before, last) = path.rsplit_once('/')?;
        (last == resource.resource).then(|| format!("{before}/namespaces/{namespace}/{last}"))
    }
}

/// The query of a watch that resumes from `at`, for the rest of the client's `timeoutSeconds`.
pub fn watch_from(info: &RequestInfo<'_>, at: u64, elapsed: u64) -> String {
    let given = info.options.timeout_seconds.as_ref().and_then(|given| given.as_ref().ok());
    let given = given.and_then(|seconds| u64::try_from(*seconds).ok());
    let left = given.map(|seconds| seconds.saturating_sub(elapsed).max(1).to_string());
    let at = at.to_string();
    let mut changes = vec![
        ("resourceVersion", Some(at.as_str())),
        ("resourceVersionMatch", None),
        ("sendInitialEvents", None),
    ];
    if let Some(left) = &left {
        changes.push(("timeoutSeconds", Some(left)));
    }
    info.query.rewrite(&changes)
}
