//! Requests to the API server, and why they fail.

use std::{fmt::Debug, time::Duration};

use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, ListParams, PartialObjectMeta},
    client::Body,
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::doctor::facts::{Answer, CannotLook, Looked};
use ctrlmesh_base::cluster::chain;

/// The time in which a request is answered.
const ANSWER: Duration = Duration::from_secs(10);
/// Objects of one request.
const PAGE: u32 = 500;
/// The maximum bytes read of an answer that is no list.
const MAX_ANSWER: usize = 4 << 20;

/// The cluster, and how it is asked.
pub(crate) struct Asked {
    pub(crate) client: Client,
}

/// A complete response with its date.
pub(crate) struct Dated {
    pub(crate) answer: Answer,
    pub(crate) date: Option<Timestamp>,
}

impl Asked {
    /// An object by its name.
    pub(crate) async fn get<K>(&self, api: Api<K>, name: &str) -> Looked<Option<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let found = in_time(api.get_opt(name)).await;
        found.map_err(|why| why.cannot_look("get", &resource::<K>(), &api))
    }

    /// All objects.
    pub(crate) async fn list<K>(&self, api: Api<K>, params: ListParams) -> Looked<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let listed = paged(params, async |params| api.list(&params).await).await;
        listed.map_err(|why| why.cannot_look("list", &resource::<K>(), &api))
    }

    /// The metadata of all objects.
    pub(crate) async fn list_metadata<K>(
        &self,
        api: Api<K>,
        plural: &str,
        params: ListParams,
    ) -> Looked<Vec<PartialObjectMeta<K>>>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let listed = paged(params, async |params| api.list_metadata(&params).await).await;
        listed.or_else(Why::none_if_unknown).map_err(|why| why.cannot_look("list", plural, &api))
    }

    /// All objects of a kind that the API server may not know: none then.
    pub(crate) async fn list_dynamic(
        &self,
        api: Api<DynamicObject>,
        plural: &str,
    ) -> Looked<Vec<DynamicObject>> {
        let listed = paged(ListParams::default(), async |params| api.list(&params).await).await;
        listed.or_else(Why::none_if_unknown).map_err(|why| why.cannot_look("list", plural, &api))
    }

    /// The answer to a GET of this path, whatever its code; a refusal for want of a right is none.
    pub(crate) async fn path(&self, path: &str, resource: &str, place: &str) -> Looked<Dated> {
        let request = Request::get(path).body(Body::empty());
        let request = request.map_err(|error| CannotLook::Failed(chain(&error)))?;
        let answered = in_time(async {
            let response = self.client.send(request).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            Ok((head, body))
        });
        let (head, body) =
            answered.await.map_err(|why| why.cannot_look_at("get", resource, place))?;
        if head.status == StatusCode::FORBIDDEN {
            return Err(right("get", resource, place));
        }
        let date = head.headers.get(header::DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| rfc2822::parse(date).ok()).map(|date| date.timestamp());
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Dated { answer: Answer { code: head.status.as_u16(), body }, date })
    }
}

/// The reason why a request failed.
enum Why {
    Api(kube::Error),
    Late,
}

impl Why {
    /// An empty list if the API server does not know the resource.
    fn none_if_unknown<T>(self) -> Result<Vec<T>, Self> {
        match &self {
            Self::Api(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            _ => Err(self),
        }
    }

    fn cannot_look<K: Resource>(
        self,
        verb: &'static str,
        resource: &str,
        api: &Api<K>,
    ) -> CannotLook {
        let place = match api.resource_url().split_once("/namespaces/") {
            Some((_, rest)) => {
                format!(" in namespace {}", rest.split('/').next().unwrap_or_default())
            }
            None => String::new(),
        };
        self.cannot_look_at(verb, resource, &place)
    }

    fn cannot_look_at(self, verb: &'static str, resource: &str, place: &str) -> CannotLook {
        match self {
            Self::Api(kube::Error::Api(status)) if status.code == 403 => {
                right(verb, resource, place)
            }
            Self::Api(error) => CannotLook::Failed(chain(&error)),
            Self::Late => CannotLook::Failed(format!("no answer in {} s", ANSWER.as_secs())),
        }
    }
}

fn right(verb: &'static str, resource: &str, place: &str) -> CannotLook {
    CannotLook::Right { verb, resource: resource.to_owned(), place: place.to_owned() }
}

/// The resource as RBAC and kubectl name it.
fn resource<K: Resource<DynamicType = ()>>() -> String {
    let (plural, group) = (K::plural(&()), K::group(&()));
    if group.is_empty() { plural.into_owned() } else { format!("{plural}.{group}") }
}

async fn in_time<T>(asked: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Why> {
    timeout(ANSWER, asked).await.map_err(|_| Why::Late)?.map_err(Why::Api)
}

/// Lists page by page.
async fn paged<K: Clone>(
    mut params: ListParams,
    list: impl AsyncFn(ListParams) -> Result<kube::core::ObjectList<K>, kube::Error>,
) -> Result<Vec<K>, Why> {
    params = params.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = in_time(list(params.clone())).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}
