//! Lists of metadata, page by page.
//!
//! Hides how pages follow each other, and how much of a page is in memory: the parts of each object that
//! are asked for, however much more it says of itself. Does not know the kind of the objects.

use std::time::Duration;

use kube::{Client, api::ListParams, core::Request};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::timeout;

/// The objects of a page. Each may have annotations of 256 KiB, and a page is read whole.
const PAGE: u32 = 100;
/// The time for a page.
const ANSWER: Duration = Duration::from_secs(10);

/// The reason why a list is not complete.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum NotListed {
    #[error("the API server")]
    Api(#[from] kube::Error),
    #[error("no answer in {} s", ANSWER.as_secs())]
    Late,
}

#[derive(Deserialize)]
struct Page<M> {
    metadata: Position,
    /// `None` if there are none: null, as Go writes an empty list.
    items: Option<Vec<Item<M>>>,
}

#[derive(Deserialize)]
struct Position {
    #[serde(default)]
    r#continue: String,
}

#[derive(Deserialize)]
struct Item<M> {
    metadata: M,
}

/// Calls `each` with the metadata of each object at a path, by a consistent list. What the type does not
/// name is skipped. Fails with [`NotListed`], also after some objects.
pub async fn pages<M: DeserializeOwned>(
    client: &Client,
    path: String,
    params: ListParams,
    mut each: impl FnMut(M),
) -> Result<(), NotListed> {
    let request = Request::new(path);
    let mut params = params.limit(PAGE);
    loop {
        let page = request.list_metadata(&params).map_err(kube::Error::BuildRequest)?;
        let page = timeout(ANSWER, client.request::<Page<M>>(page)).await;
        let Page { metadata, items } = page.map_err(|_| NotListed::Late)??;
        items.into_iter().flatten().for_each(|item| each(item.metadata));
        if metadata.r#continue.is_empty() {
            return Ok(());
        }
        params.continue_token = Some(metadata.r#continue);
    }
}
