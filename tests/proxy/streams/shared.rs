//! What the tests of lists and watches share: objects, a scene with a policy, and watches.

use bytes::Bytes;
use ctrlmesh::wire::media::Encoding;
use http::{HeaderValue, Method, Request, Response, header};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::support::{
    client::{self, AnyBody, Client, Http, chunk, request},
    events::too_old,
    proxy::Proxy,
    soon,
    upstream::{Call, Stream, Upstream},
};

/// All ConfigMaps.
pub(super) const ALL: &str = "/api/v1/configmaps";
pub(super) const SECRETS: &str = "/api/v1/namespaces/ns/secrets";
pub(super) const CHANGES: &str = "ctrlmesh_stream_changes_total";

/// A proxy with this policy before an upstream of this HTTP version only, and a client.
pub(super) async fn scene_of(policy: &str, http: Http) -> (Upstream, Proxy, Client) {
    let upstream = Upstream::speaking(http).await;
    let proxy = Proxy::with_policy(&upstream, policy).await;
    let client = Client::new(&proxy, http).await;
    (upstream, proxy, client)
}

/// A ConfigMap; its uid is its name.
pub(super) fn object(namespace: &str, name: &str, rv: u64) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata":
        {"name": name, "namespace": namespace, "uid": name, "resourceVersion": rv.to_string()}})
}

/// A page of a list at this position.
pub(super) fn page(at: u64, token: &str, items: &[Value]) -> String {
    json!({"kind": "ConfigMapList", "apiVersion": "v1",
        "metadata": {"resourceVersion": at.to_string(), "continue": token}, "items": items})
    .to_string()
}

/// A watch event about the ConfigMap `x`.
pub(super) fn event(kind: &str, namespace: &str, rv: u64) -> String {
    format!("{}\n", json!({"type": kind, "object": object(namespace, "x", rv)}))
}

/// Opens a watch in this encoding; returns both ends of it.
pub(super) async fn watch(
    client: &mut Client,
    upstream: &mut Upstream,
    path: &str,
    query: &str,
    encoding: Encoding,
) -> (Stream, Response<Incoming>) {
    let mut sent = request(Method::GET, &format!("{path}?{query}"));
    let accept = HeaderValue::from_static(encoding.stream_content_type());
    sent.headers_mut().insert(header::ACCEPT, accept);
    opened(client, upstream, sent, encoding).await
}

/// Sends a watch, which is answered in this encoding; returns both ends of it.
pub(super) async fn opened(
    client: &mut Client,
    upstream: &mut Upstream,
    sent: Request<AnyBody>,
    encoding: Encoding,
) -> (Stream, Response<Incoming>) {
    let pending = client.send(sent);
    let call = upstream.call().await;
    let events = call.stream(200, &[("content-type", encoding.stream_content_type())]);
    (events, pending.await.unwrap())
}

/// Whether a watch from this position goes upstream; otherwise it must get a 410. It must, too, if it
/// could be brought over from the scopes of before, and the API server has compacted its position.
pub(super) async fn resumes(
    client: &mut Client,
    upstream: &mut Upstream,
    path: &str,
    rv: u64,
) -> bool {
    let target = format!("{path}?watch=1&resourceVersion={rv}");
    let mut pending = Box::pin(client.send(request(Method::GET, &target)));
    let answer = loop {
        let call = tokio::select! {
            call = upstream.call() => call,
            answer = &mut pending => break answer,
        };
        if call.query("limit").as_deref() == Some("1") {
            // What clients were shown stays unknown.
            call.json(500, "{}");
        } else if call.query("resourceVersionMatch").is_some() {
            is_compacted(call, rv);
        } else {
            assert!(call.target().contains(&format!("resourceVersion={rv}")));
            call.watch().end();
            let answer = client::text(pending.await.unwrap()).await;
            assert_eq!(answer, (200, String::new()));
            return true;
        }
    };
    let (code, body) = client::whole(answer.unwrap()).await.unwrap();
    assert_eq!(code, 200, "an HTTP 410 would be repeated for ever by some");
    assert_eq!(body, too_old(Encoding::Json));
    false
}

/// Answers a list as of a position that the API server does not have any more.
pub(super) fn is_compacted(call: Call, rv: u64) {
    assert_eq!(call.query("resourceVersionMatch").as_deref(), Some("Exact"));
    assert_eq!(call.query("resourceVersion"), Some(rv.to_string()));
    call.json(410, "{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\"}");
}

pub(super) async fn ends_clean(response: &mut Response<Incoming>) {
    let end = soon("the end", chunk(response)).await;
    assert!(end.is_none(), "{end:?}");
}

/// What a watch is notified that comes back while the API server cannot list what has changed hands.
pub(super) async fn cannot_come_back(
    client: &mut Client,
    upstream: &mut Upstream,
    target: &str,
) -> Bytes {
    let pending = client.send(request(Method::GET, target));
    upstream.call().await.json(410, "{}");
    client::whole(pending.await.unwrap()).await.unwrap().1
}
