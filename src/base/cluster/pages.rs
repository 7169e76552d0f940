//! Lists of metadata, page by page.
//!
//! Hides how pages follow each other, and how much of a page is in memory: the parts of each object that
//! are asked for, however much more it says of itself. Does not know the kind of the objects.

use std::{marker::PhantomData, time::Duration};

use kube::{Client, api::ListParams, core::Request};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::timeout;

/// The objects of a page. Each may have annotations of 256 KiB, and a page is read whole.
pub const PAGE: u32 = 100;
/// The time for a page.
const ANSWER: Duration = Duration::from_secs(10);

/// The reason why a list is not complete.
#[derive(Debug, thiserror::Error)]
pub enum NotListed {
    #[error("the API server")]
    Api(#[from] kube::Error),
    #[error("no answer in {} s", ANSWER.as_secs())]
    Late,
}

/// A list of metadata that is read page by page. What the type does not name is skipped.
pub struct Pages<M> {
    client: Client,
    request: Request,
    params: ListParams,
    is_complete: bool,
    /// The resourceVersion of the first page. `None` before it was read.
    first: Option<String>,
    objects: PhantomData<fn() -> M>,
}

#[derive(Deserialize)]
struct ListPage<M> {
    metadata: Position,
    /// `None` if there are none: null, as Go writes an empty list.
    items: Option<Vec<Item<M>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Position {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

#[derive(Deserialize)]
struct Item<M> {
    metadata: M,
}

impl<M: DeserializeOwned> Pages<M> {
    /// The objects at a path, by a consistent list.
    pub fn new(client: Client, path: String, params: ListParams) -> Self {
        let (request, params) = (Request::new(path), params.limit(PAGE));
        Self { client, request, params, is_complete: false, first: None, objects: PhantomData }
    }

    /// The next page. `None` once all were read. Fails with [`NotListed`]; the same page may be asked for
    /// again.
    pub async fn next(&mut self) -> Result<Option<Vec<M>>, NotListed> {
        if self.is_complete {
            return Ok(None);
        }
        let page = self.request.list_metadata(&self.params).map_err(kube::Error::BuildRequest)?;
        let page = timeout(ANSWER, self.client.request::<ListPage<M>>(page)).await;
        let ListPage { metadata, items } = page.map_err(|_| NotListed::Late)??;
        self.first.get_or_insert(metadata.resource_version);
        self.is_complete = metadata.r#continue.is_empty();
        self.params.continue_token = Some(metadata.r#continue);
        Ok(Some(items.into_iter().flatten().map(|item| item.metadata).collect()))
    }

    /// Goes on where the list has expired, with what exists now, and returns whether that can be: the
    /// API server sends the position with its 410. What was changed before that position is not seen:
    /// watch from [`Self::first`] on.
    pub fn go_on(&mut self, after: &NotListed) -> bool {
        let NotListed::Api(kube::Error::Api(status)) = after else { return false };
        let meta = status.metadata.as_ref().filter(|_| status.code == 410);
        let position = meta.and_then(|meta| meta.continue_.clone());
        let Some(position) = position.filter(|position| !position.is_empty()) else { return false };
        self.params.continue_token = Some(position);
        true
    }

    /// The resourceVersion of the first page. `None` before it was read.
    pub fn first(&self) -> Option<&str> {
        self.first.as_deref()
    }
}

/// Calls `each` with the metadata of each object at a path, by a consistent list. Fails with
/// [`NotListed`], also after some objects.
pub async fn pages<M: DeserializeOwned>(
    client: &Client,
    path: String,
    params: ListParams,
    mut each: impl FnMut(M),
) -> Result<(), NotListed> {
    let mut pages = Pages::new(client.clone(), path, params);
    while let Some(page) = pages.next().await? {
        page.into_iter().for_each(&mut each);
    }
    Ok(())
}
