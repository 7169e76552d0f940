//! A deletecollection by a boundary that no selector can say: a list, whose items are judged, and a
//! DELETE for each that is in the shard.
//!
//! The API server would check each object when it lists, and delete whatever has the name by then.
//! Here each DELETE is for one version of one object; what changed meanwhile is listed again.

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::{Answer, Follow, MAX_BODY, OnBehalf, Stop, bad_target, body_kind};
use crate::{
    policy::{Judged, Refusal},
    proxy::pair::Pair,
    wire::{
        Query,
        delete::DeleteOptions,
        frames::{Object, Verdict},
    },
};

/// How often what changed while it was to be deleted is listed again.
const ROUNDS: usize = 10;
const PAGE: &str = "500";
/// A page of metadata, in bytes: a thousand times what most objects have.
const MAX_PAGE: usize = 32 << 20;
const METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const SUCCESS: &[u8] =
    b"{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Success\",\"code\":200}\n";
/// What a segment of a path may hold as it is (RFC 3986).
const SEGMENT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    items: Option<Vec<Item>>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    token: String,
}

#[derive(Deserialize)]
struct Item {
    metadata: Meta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    resource_version: String,
}

/// Deletes what is in the shard of the collection at `target`, which has the shard's selectors
/// already.
pub(super) async fn judged(
    pair: &Rc<Pair>,
    request: Request<Incoming>,
    target: &str,
    judged: &Judged,
) -> Result<Answer, Stop> {
    let (head, body) = request.into_parts();
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    let query = Query::parse(query).map_err(|error| Refusal::BadRequestLine.because(error))?;
    let options = options(&head, body, query).await?;
    let collection = Collection { pair, head, path, query, options, judged };
    let mut last = None;
    for _ in 0..ROUNDS {
        match collection.round().await? {
            Round::Done => return Ok(whole(StatusCode::OK, Bytes::from_static(SUCCESS))),
            Round::Ended(answer) => return Ok(answer),
            Round::Again(answer) => last = Some(answer),
        }
    }
    last.ok_or_else(|| Refusal::UnreadableList.because("it does not end").into())
}

async fn options(head: &Parts, body: Incoming, query: Query<'_>) -> Result<DeleteOptions, Stop> {
    let kind = body_kind(&head.headers);
    let body = Limited::new(body, MAX_BODY).collect().await;
    let body =
        body.map_err(|_| Refusal::BadBody.because("the body was cut off, or is too large"))?;
    DeleteOptions::read(kind, &body.to_bytes(), query)
        .map_err(|error| Refusal::BadBody.because(error).into())
}

/// How one pass over the collection ended.
enum Round {
    /// Everything of the shard is gone, or was never there.
    Done,
    /// Something changed meanwhile.
    Again(Answer),
    /// The API server says no: that is the client's answer.
    Ended(Answer),
}

struct Collection<'a> {
    pair: &'a Rc<Pair>,
    head: Parts,
    path: &'a str,
    query: Query<'a>,
    options: DeleteOptions,
    judged: &'a Judged,
}

impl Collection<'_> {
    async fn round(&self) -> Result<Round, Stop> {
        let mut token = String::new();
        let mut changed = None;
        loop {
            let (code, body) = self.send(Method::GET, &self.page(&token), None).await?;
            if code == StatusCode::GONE && !token.is_empty() {
                return Ok(Round::Again(whole(code, body)));
            }
            if code != StatusCode::OK {
                return Ok(Round::Ended(whole(code, body)));
            }
            let page: Page = serde_json::from_slice(&body)
                .map_err(|_| Refusal::UnreadableList.because("it is no list of objects"))?;
            for Item { metadata } in page.items.unwrap_or_default() {
                match self.delete(&metadata).await? {
                    None => {}
                    Some((StatusCode::CONFLICT, body)) => {
                        changed = Some(whole(StatusCode::CONFLICT, body));
                    }
                    Some((code, body)) => return Ok(Round::Ended(whole(code, body))),
                }
            }
            token = page.metadata.token;
            if token.is_empty() {
                return Ok(changed.map_or(Round::Done, Round::Again));
            }
        }
    }

    /// Deletes one object if it is the shard's; the answer, if it was not deleted.
    async fn delete(&self, meta: &Meta) -> Result<Option<(StatusCode, Bytes)>, Stop> {
        let Meta { name, namespace, uid, resource_version } = meta;
        let object = Object { namespace, name, uid, kind: "", api_version: "" };
        match self.judged.judge(&object) {
            Verdict::Drop => return Ok(None),
            Verdict::Unknown => {
                let why = "an item lacks what the boundary goes by";
                return Err(Refusal::UnreadableList.because(why).into());
            }
            Verdict::Keep => {}
        }
        let name = utf8_percent_encode(name, &SEGMENT);
        let target = format!("{}/{name}", self.path.trim_end_matches('/'));
        let body = self.options.only(uid, resource_version);
        let (code, body) = self.send(Method::DELETE, &target, Some(body.into())).await?;
        let is_gone = code.is_success() || code == StatusCode::NOT_FOUND;
        Ok((!is_gone).then_some((code, body)))
    }

    /// The list of the same collection.
    fn page(&self, token: &str) -> String {
        const OPTIONS: [&str; 8] = [
            "dryRun",
            "gracePeriodSeconds",
            "orphanDependents",
            "propagationPolicy",
            "resourceVersion",
            "resourceVersionMatch",
            "timeoutSeconds",
            "watch",
        ];
        let mut changes: Vec<(&str, Option<&str>)> = OPTIONS.map(|name| (name, None)).to_vec();
        changes.push(("limit", Some(PAGE)));
        changes.push(("continue", Some(token).filter(|token| !token.is_empty())));
        format!("{}?{}", self.path, self.query.rewrite(&changes))
    }

    /// One request as the client, with its credentials.
    async fn send(
        &self,
        method: Method,
        target: &str,
        json: Option<Bytes>,
    ) -> Result<(StatusCode, Bytes), Stop> {
        let accept = if json.is_none() { METADATA } else { "application/json" };
        let accept = Some(HeaderValue::from_static(accept));
        let own = OnBehalf { uri: &self.head.uri, headers: &self.head.headers };
        let request = own.request(self.pair, method, target, accept, json).map_err(bad_target)?;
        let reply = self.pair.upstream.send(request).await?;
        let code = reply.status();
        let body = Limited::new(reply.into_body(), MAX_PAGE).collect().await;
        let body = body.map_err(|error| {
            let is_long = error.is::<LengthLimitError>();
            let why = if is_long { "a page of it has more than 32 MiB" } else { "it was cut off" };
            Refusal::UnreadableList.because(why)
        })?;
        Ok((code, body.to_bytes()))
    }
}

/// An answer in JSON, as all are that were asked for here.
fn whole(code: StatusCode, body: Bytes) -> Answer {
    let mut reply = Response::new(());
    *reply.status_mut() = code;
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(header::CONTENT_TYPE, json);
    Answer { reply, follow: Follow::Whole(body) }
}
