//! A deletecollection by a boundary that no selector can express: a list, whose items are judged,
//! and a DELETE for each that is in the shard.
//!
//! The API server would check each object when it lists, and delete any object of that name later.
//! Here each DELETE is for one version of one object; an object that changed is listed again. All
//! else is as in `Store.DeleteCollection` (`apiserver/pkg/registry/generic/registry/store.go`):
//! with a limit as many objects as that, from the client's position or token.

use std::{fmt::Display, rc::Rc};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use percent_encoding::utf8_percent_encode;
use serde_json::json;

use super::{
    answer::{Answer, Follow, Stop, bad_target, body_kind},
    body::WholeBody,
};
use crate::{
    outcome::Why,
    policy_store::ActivePolicy,
    shared::Pair,
    upstream::{
        self, ClientBody, ClientContext, METADATA, NoAnswer, Served, UpstreamBody, discovery_path,
    },
};
use ctrlmesh_policy::{Filter, GroupResource, Refusal, Refused};
use ctrlmesh_wire::{
    ListOptions, Query, ResourceVersion,
    delete::DeleteOptions,
    frames::{Continue, Item, ListItems, Verdict},
    media::Encoding,
    object::{Object, Wanted},
    query::ESCAPED,
    request::Resource,
    selector::equal_to,
};

/// Attempts to delete an object that changes meanwhile, and restarts of a collection whose token
/// has expired.
const ATTEMPTS: usize = 10;
const PAGE: usize = 500;
/// Objects of the shard in one page at most, from a server that ignores `limit`.
const MAX_OBJECTS: usize = 20_000;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Bytes of the request's body at most: a hundred times those of its options.
const MAX_OPTIONS: usize = 64 << 10;

/// One version of an object.
struct Version {
    name: String,
    uid: String,
    resource_version: String,
}

/// The shard's objects of one page.
#[derive(Default)]
struct OwnPage {
    /// Objects, each with the number of items of the page up to and with it.
    ours: Vec<(usize, Version)>,
    items: usize,
    unreadable: Option<&'static str>,
    /// The token of the next page; empty for the last.
    next: String,
}

/// Deletes the shard's objects of a collection.
pub(super) async fn judged(
    pair: &Rc<Pair>,
    request: Request<ClientBody>,
    resource: &Resource<'_>,
    filter: &Filter,
    active: &ActivePolicy,
) -> Result<Answer, Stop> {
    let (head, body) = request.into_parts();
    let query = Query::parse(head.uri.query());
    let query = query.map_err(|error| Refusal::BadRequestLine.because(error))?;
    let body = WholeBody::whole(&pair.worker.shared.bodies, body, MAX_OPTIONS).await?;
    let options = DeleteOptions::read(body_kind(&head.headers), body.as_ref(), query);
    let options = options.map_err(Refused::from)?;
    let path = head.uri.path().trim_end_matches('/');
    let list = ListOptions::read(query);
    let sweep = Sweep { pair, head: &head, path, query, list, options, resource, filter, active };
    sweep.is_served().await?;
    sweep.delete_all().await
}

impl Version {
    /// The version that an object states. `None` if its name, uid or version is missing.
    fn of(object: &Object<'_>) -> Option<Self> {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Some(Self {
            name: text(object.name)?,
            uid: text(object.uid)?,
            resource_version: text(object.resource_version)?,
        })
    }
}

struct Sweep<'a> {
    pair: &'a Rc<Pair>,
    head: &'a Parts,
    /// The path without a slash at its end.
    path: &'a str,
    /// The query, with the shard's selectors.
    query: Query<'a>,
    list: ListOptions<'a>,
    options: DeleteOptions,
    resource: &'a Resource<'a>,
    filter: &'a Filter,
    /// The sharding of the decision.
    active: &'a ActivePolicy,
}

impl Sweep<'_> {
    /// Checks that the API server has this verb at this path: not for every resource, and not over
    /// all namespaces. Only discovery shows it without deleting anything.
    async fn is_served(&self) -> Result<(), Stop> {
        let resource = self.resource;
        let reply = self.send(Method::GET, &discovery_path(resource), JSON, None).await?;
        let code = reply.status();
        let body = read(reply).await?;
        if code != StatusCode::OK {
            return Err(whole(code, body).into());
        }
        let served = Served::read(&body, resource)
            .map_err(|_| unreadable("the discovery response is not an APIResourceList"))?;
        let is_here = |served: &Served| resource.namespace.is_some() || !served.is_namespaced;
        if served.filter(is_here).is_some_and(|served| served.has_verb("deletecollection")) {
            return Ok(());
        }
        let why = "the API server has no deletecollection for this resource, or only within one \
                   namespace";
        Err(Refusal::MethodNotAllowed.because(why).into())
    }

    async fn delete_all(&self) -> Result<Answer, Stop> {
        let mut left = self.limit();
        let mut size = left.map_or(PAGE, |left| left.min(PAGE));
        let mut token = None;
        let mut begun = 0;
        loop {
            let page = match self.page(token.as_deref(), size, left).await {
                Err(Stop::Answered(expired))
                    if expired.reply.status() == StatusCode::GONE
                        && token.is_some()
                        && self.may_begin_anew()
                        && begun < ATTEMPTS =>
                {
                    token = None;
                    begun += 1;
                    continue;
                }
                page => page?,
            };
            let count = page.ours.len();
            for (_, version) in page.ours {
                self.delete(version).await?;
            }
            left = left.map(|left| left.saturating_sub(count));
            if page.next.is_empty() || left == Some(0) {
                return Ok(success(&page.next));
            }
            token = Some(page.next);
            // Larger pages need fewer requests if few of the items are the shard's.
            size = size.saturating_mul(2).min(PAGE);
        }
    }

    /// A page that has at most `left` of the shard's objects. A page with more is listed again with
    /// fewer items, so that its token follows the last of them.
    async fn page(
        &self,
        token: Option<&str>,
        mut size: usize,
        left: Option<usize>,
    ) -> Result<OwnPage, Stop> {
        loop {
            let mut page = self.list(&self.page_query(token, size)).await?;
            let Some(left) = left.filter(|left| *left < page.ours.len()) else {
                return Ok(page);
            };
            let end = left.checked_sub(1).and_then(|last| page.ours.get(last));
            match end.map(|(items, _)| *items) {
                Some(items) if items < size => size = items,
                // The server ignores `limit`, and so has no pages.
                _ => {
                    page.ours.truncate(left);
                    page.next.clear();
                    return Ok(page);
                }
            }
        }
    }

    /// Deletes one object of the shard. An object that has changed since it was listed is listed
    /// again: it may be another shard's.
    async fn delete(&self, mut object: Version) -> Result<(), Stop> {
        let mut attempts = 0;
        loop {
            self.is_up_to_date()?;
            let path = format!("{}/{}", self.path, utf8_percent_encode(&object.name, ESCAPED));
            let body = self.options.only(&object.uid, &object.resource_version);
            let reply = self.send(Method::DELETE, &path, JSON, Some(body.into())).await?;
            let code = reply.status();
            if code.is_success() {
                return pass_over(reply).await;
            }
            let body = read(reply).await?;
            attempts += 1;
            match code {
                StatusCode::NOT_FOUND => return Ok(()),
                StatusCode::CONFLICT if attempts < ATTEMPTS => {}
                _ => return Err(whole(code, body).into()),
            }
            let page = self.list(&self.one_query(&object.name)).await?;
            match page.ours.into_iter().map(|(_, now)| now).find(|now| now.name == object.name) {
                Some(now) => object = now,
                None => return Ok(()),
            }
        }
    }

    /// Fails if the scope has changed: objects handed over meanwhile are not ours to delete.
    fn is_up_to_date(&self) -> Result<(), Stop> {
        let Self { resource, active, .. } = self;
        let resource = GroupResource::of(resource);
        let present = self.pair.worker.shared.policy_store.active();
        let is_same = present.is_some_and(|present| {
            present.epoch == active.epoch
                || !present.sharding.limits_otherwise(&active.sharding, &resource)
        });
        if is_same {
            return Ok(());
        }
        let why = "the objects that this shard sees changed while they were deleted: send the \
                   request again";
        Err(Refusal::ScopeChanged.because(why).into())
    }

    /// The number of objects to delete. `None` if the client gave none, or one that the API server has to refuse.
    fn limit(&self) -> Option<usize> {
        let limit = self.list.limit.as_ref()?.as_ref().ok()?;
        usize::try_from(*limit).ok().filter(|limit| *limit > 0)
    }

    /// Whether the deletion may start over: not if the client gave a start or a limit.
    fn may_begin_anew(&self) -> bool {
        let ListOptions { limit, continue_token, resource_version, .. } = &self.list;
        limit.is_none() && continue_token.is_none() && *resource_version == ResourceVersion::Unset
    }

    /// The query of a page. The first page starts where the client asked.
    fn page_query(&self, token: Option<&str>, size: usize) -> String {
        let size = size.to_string();
        let mut changes = Vec::from(NOT_OF_A_LIST);
        if !matches!(self.list.limit, Some(Err(_))) {
            changes.push(("limit", Some(&*size)));
        }
        if let Some(token) = token {
            changes.push(("continue", Some(token)));
            changes.extend([("resourceVersion", None), ("resourceVersionMatch", None)]);
        }
        self.query.rewrite(&changes)
    }

    /// The query of a list of the one object, as it is now.
    fn one_query(&self, name: &str) -> String {
        let fields = self.list.fields_and(&equal_to("metadata.name", name));
        let mut changes = Vec::from(NOT_OF_A_LIST);
        changes.push(("fieldSelector", Some(&fields)));
        let all = ["limit", "continue", "resourceVersion", "resourceVersionMatch"];
        changes.extend(all.map(|name| (name, None)));
        self.query.rewrite(&changes)
    }

    /// Lists a page. Memory holds one item of it, and the metadata of the shard's objects.
    async fn list(&self, query: &str) -> Result<OwnPage, Stop> {
        let target = format!("{}?{query}", self.path);
        let reply = self.send(Method::GET, &target, METADATA, None).await?;
        let code = reply.status();
        if code != StatusCode::OK {
            return Err(whole(code, read(reply).await?).into());
        }
        let mut page = OwnPage::default();
        let wanted = Wanted { version: true, ..Wanted::default() };
        let items = ListItems::wanting(Encoding::Json, wanted);
        let mut items = items.ok_or_else(|| unreadable("the list is not JSON"))?;
        let mut body = reply.into_body();
        while let Some(frame) = body.frame().await {
            let Ok(chunk) = frame.map_err(|_| cut_off())?.into_data() else { continue };
            let mut take = |item: Item<'_>| {
                if let Err(why) = self.take(&item, &mut page) {
                    page.unreadable.get_or_insert(why);
                }
            };
            items.feed(&chunk, &mut take).map_err(unreadable)?;
            if let Some(why) = page.unreadable {
                return Err(unreadable(why).into());
            }
        }
        page.next = match items.finish().map_err(unreadable)?.meta.continue_token {
            Continue::None => String::new(),
            Continue::Token(token) => token,
            Continue::Unreadable => {
                return Err(unreadable("the list's continue token is too long").into());
            }
        };
        Ok(page)
    }

    /// Takes an item if it is the shard's. Fails with the reason why the page cannot be used.
    fn take(&self, item: &Item<'_>, page: &mut OwnPage) -> Result<(), &'static str> {
        page.items += 1;
        match self.filter.judge(&item.object) {
            Verdict::Drop => return Ok(()),
            Verdict::Unknown => return Err("an item lacks metadata that the boundary needs"),
            Verdict::Keep => {}
        }
        let namespace = self.resource.namespace.as_deref().unwrap_or_default();
        match Version::of(&item.object) {
            None => Err("an item lacks its name, uid or resourceVersion"),
            Some(_) if page.ours.len() >= MAX_OBJECTS => {
                Err("a page has more than 20,000 objects of the shard")
            }
            Some(_) if item.object.namespace != namespace => Err("an item is of another namespace"),
            Some(version) => {
                page.ours.push((page.items, version));
                Ok(())
            }
        }
    }

    /// Sends one request as the client, with its credentials.
    async fn send(
        &self,
        method: Method,
        target: &str,
        accept: HeaderValue,
        json: Option<Bytes>,
    ) -> Result<Response<UpstreamBody>, Stop> {
        let own = ClientContext { uri: &self.head.uri, headers: &self.head.headers };
        let request = own
            .request(&self.pair.upstream, method, target, Some(accept), json)
            .map_err(bad_target)?;
        Ok(own.send(&self.pair.upstream, Why::DeleteCollection, request).await?)
    }
}

/// Parameters of a deletecollection that a list does not have.
const NOT_OF_A_LIST: [(&str, Option<&str>); 6] = [
    ("dryRun", None),
    ("gracePeriodSeconds", None),
    ("orphanDependents", None),
    ("propagationPolicy", None),
    ("timeoutSeconds", None),
    ("watch", None),
];

/// The body of a response that is not a list.
async fn read(reply: Response<UpstreamBody>) -> Result<Bytes, Stop> {
    let reply = upstream::whole(reply).await.map_err(|none| match none {
        NoAnswer::Ever => unreadable("a response to one request has more than 4 MiB"),
        NoAnswer::Now => cut_off(),
    })?;
    Ok(reply.into_body())
}

/// Discards the body of a response: on HTTP/1.1 the next response is behind it.
async fn pass_over(reply: Response<UpstreamBody>) -> Result<(), Stop> {
    let mut body = reply.into_body();
    while let Some(frame) = body.frame().await {
        frame.map_err(|_| cut_off())?;
    }
    Ok(())
}

fn cut_off() -> Refused {
    unreadable("the list was cut off")
}

fn unreadable(why: impl Display) -> Refused {
    Refusal::UnreadableList.because(why)
}

/// The response after the last DELETE, with the token of the rest, if any.
fn success(next: &str) -> Answer {
    let meta = if next.is_empty() { json!({}) } else { json!({ "continue": next }) };
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": meta,
        "status": "Success", "code": 200 });
    whole(StatusCode::OK, format!("{status}\n").into())
}

/// A response in JSON, as all that are requested here.
fn whole(code: StatusCode, body: Bytes) -> Answer {
    let mut reply = Response::new(());
    *reply.status_mut() = code;
    reply.headers_mut().insert(header::CONTENT_TYPE, JSON);
    Answer { reply, follow: Follow::Whole(body) }
}
