//! What of a boundary the API server is told, because it proves that it understands.
//!
//! Hides the proof: one list of one object for each connection and resource. A connection leads to
//! one API server, so servers of several versions behind one address are told apart. Whatever comes
//! of it, each object is judged here too: a wrong proof costs bytes and nothing else.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;

use crate::{
    policy::{Decision, GroupResource, Hashes, Judged, Pushed},
    proxy::{config, pair::Pair, streams::RequestBody},
    wire::{Query, RequestInfo},
};

/// More than one object in a list of one.
const MAX_ANSWER: usize = 4 << 20;
/// Resources that are told apart; beyond, nothing is pushed down.
const MAX_RESOURCES: usize = 256;
/// Neither a Table nor a list of metadata has the echo.
const WHOLE: &str = "application/json";

/// What is known of the API server at the end of one connection.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Understood(RefCell<HashMap<GroupResource, Knowledge>>);

#[derive(Clone, Copy, Debug, Default)]
struct Knowledge {
    hashes: Option<bool>,
    namespaces: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    shard_info: Option<ShardInfo>,
}

#[derive(Deserialize)]
struct ShardInfo {
    #[serde(default)]
    selector: String,
}

/// What the API server may be told of the collection at `uri`, and what that is called.
pub(in crate::proxy) async fn understood(
    pair: &Rc<Pair>,
    info: &RequestInfo<'_>,
    decision: &Decision,
    uri: &Uri,
    headers: &HeaderMap,
) -> (Pushed, &'static str) {
    if !matches!(decision.judged, Judged::Each { .. }) {
        return (Pushed::default(), "selector");
    }
    let query = Query::parse(uri.query()).unwrap_or_default();
    let mut pushed = Pushed::of(&decision.judged, query);
    let probe = Probe { pair, info, uri, headers };
    if let Some(hashes) = &pushed.hashes
        && !probe.understands_hashes(hashes).await
    {
        pushed.hashes = None;
    }
    if let Some(namespace) = &pushed.namespace
        && !probe.understands_namespaces(namespace).await
    {
        pushed.namespace = None;
    }
    let how = match (&pushed.hashes, &pushed.namespace) {
        (Some(_), _) => "hash",
        (None, Some(_)) => "namespace",
        (None, None) => "none",
    };
    (pushed, how)
}

/// Asks in the name of a request, with its credentials.
pub(in crate::proxy) struct Probe<'a> {
    pub(in crate::proxy) pair: &'a Rc<Pair>,
    pub(in crate::proxy) info: &'a RequestInfo<'a>,
    pub(in crate::proxy) uri: &'a Uri,
    pub(in crate::proxy) headers: &'a HeaderMap,
}

impl Probe<'_> {
    /// Whether the API server goes by hashes of this resource: then a list says which it has.
    pub(in crate::proxy) async fn understands_hashes(&self, hashes: &Hashes) -> bool {
        if self.is_off() {
            return false;
        }
        if let Some(known) = self.known(|knowledge| knowledge.hashes) {
            return known;
        }
        let answer = self.ask("shardSelector", &hashes.to_string()).await;
        let understands = answer
            .and_then(|answer| answer.metadata.shard_info)
            .is_some_and(|info| hashes.is_said_by(&info.selector));
        self.know(|knowledge| knowledge.hashes = Some(understands));
        understands
    }

    /// Whether it selects by the namespace as a field: what does not is told so.
    async fn understands_namespaces(&self, namespace: &str) -> bool {
        if self.is_off() {
            return false;
        }
        if let Some(known) = self.known(|knowledge| knowledge.namespaces) {
            return known;
        }
        let answer = self.ask("fieldSelector", &format!("metadata.namespace={namespace}")).await;
        let understands = answer.is_some();
        self.know(|knowledge| knowledge.namespaces = Some(understands));
        understands
    }

    fn is_off(&self) -> bool {
        self.pair.worker.shared.pushdown == config::Pushdown::Off
    }

    fn known(&self, of: impl Fn(&Knowledge) -> Option<bool>) -> Option<bool> {
        let all = self.pair.understood.0.borrow();
        let Some(resource) = self.resource() else { return Some(false) };
        match all.get(&resource) {
            Some(knowledge) => of(knowledge),
            None => (all.len() >= MAX_RESOURCES).then_some(false),
        }
    }

    fn know(&self, what: impl FnOnce(&mut Knowledge)) {
        if let Some(resource) = self.resource() {
            what(self.pair.understood.0.borrow_mut().entry(resource).or_default());
        }
    }

    fn resource(&self) -> Option<GroupResource> {
        let resource = self.info.resource()?;
        Some(GroupResource::new(&resource.group, &resource.resource))
    }

    /// A list of one object; nothing unless the API server sends one.
    async fn ask(&self, name: &str, value: &str) -> Option<Answer> {
        let query = Query::default().rewrite(&[("limit", Some("1")), (name, Some(value))]);
        let mut parts = self.uri.clone().into_parts();
        let target = format!("{}?{query}", self.uri.path());
        parts.path_and_query = Some(PathAndQuery::try_from(target).ok()?);
        let mut request = Request::new(RequestBody::Whole(None));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = Uri::from_parts(parts).ok()?;
        *request.version_mut() = self.pair.upstream.version();
        let headers = request.headers_mut();
        headers.clone_from(self.headers);
        super::strip_hop_by_hop(headers, false);
        headers.remove(header::ACCEPT_ENCODING);
        headers.insert(header::ACCEPT, HeaderValue::from_static(WHOLE));
        let reply = self.pair.upstream.send(request).await.ok()?;
        let code = reply.status();
        let body = Limited::new(reply.into_body(), MAX_ANSWER).collect().await.ok()?.to_bytes();
        if code != StatusCode::OK {
            return None;
        }
        serde_json::from_slice(&body).ok()
    }
}
