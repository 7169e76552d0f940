//! The writes of pods: a label and an annotation, or an eviction.
//!
//! Hides how two leaders are kept from giving a pod two shards: a patch holds for the very pod, and for the
//! labels that were seen.

use http::{Method, Request, header};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    jiff::Timestamp,
};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    super::{
        key::{ANSWER, NotWritten},
        observed::namespace,
        problem::{About, Problem, ProblemEvent},
    },
    pods::PlacedPod,
};
use crate::{configs::name, shared::Shared};
use ctrlmesh_api::{keys, lease::PodLease};
use ctrlmesh_policy::roots::{Root, Shard};

/// A pod that is given a shard.
pub(super) struct Placement {
    key: String,
    uid: String,
    shard: Shard,
    child: String,
    /// Whether its proxy says that it has this shard, and its label does not.
    is_given_back: bool,
    patch: Value,
}

/// A pod that is evicted.
pub(super) struct Eviction {
    key: String,
    uid: String,
}

/// The result of a write that is answered in time.
pub(super) async fn answered(
    write: impl Future<Output = Result<(), NotWritten>>,
) -> Result<(), NotWritten> {
    timeout(ANSWER, write).await.map_err(|_| NotWritten::Late)?
}

/// The shard of a root that the proxy of a pod has, by its Lease. `None` if it has none.
pub(super) async fn shard_of_lease(
    client: &Client,
    namespace: &str,
    uid: &str,
    root: &Root,
) -> Option<Shard> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let name = PodLease::name_of(uid);
    let lease = timeout(ANSWER, leases.get_opt(&name)).await.ok()?.ok()??;
    root.shard_named(&PodLease::read(&lease)?.shard?)
}

impl Placement {
    pub(super) fn new(
        key: &str,
        pod: &PlacedPod,
        shard: Shard,
        child: String,
        is_given_back: bool,
    ) -> Self {
        let at = |map: &str, key: &str| {
            format!("/metadata/{map}/{}", key.replace('~', "~0").replace('/', "~1"))
        };
        let cost = shard.deletion_cost().to_string();
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": pod.uid },
            { "op": "test", "path": "/metadata/labels", "value": pod.labels },
            { "op": "add", "path": at("labels", keys::SHARD), "value": child },
            { "op": "add", "path": at("annotations", keys::DELETION_COST), "value": cost },
        ]);
        Self { key: key.to_owned(), uid: pod.uid.clone(), shard, child, is_given_back, patch }
    }

    pub(super) fn pod(&self) -> &str {
        &self.key
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    pub(super) fn shard(&self) -> Shard {
        self.shard
    }

    /// Sends it; returns it with the result.
    pub(super) async fn sent(
        self,
        client: &Client,
        shared: &Shared,
    ) -> (Self, Result<(), NotWritten>) {
        let sent = answered(self.send(client, shared)).await;
        (self, sent)
    }

    async fn send(&self, client: &Client, shared: &Shared) -> Result<(), NotWritten> {
        let path = Pod::url_path(&(), Some(namespace(&self.key)));
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(format!("{path}/{}", name(&self.key)))
            .header(header::CONTENT_TYPE, "application/json-patch+json")
            .body(self.patch.to_string().into_bytes())?;
        client.request_text(request).await?;
        if self.is_given_back {
            self.report(client, shared).await?;
        }
        Ok(())
    }

    /// Says that someone took the label off.
    async fn report(&self, client: &Client, shared: &Shared) -> Result<(), NotWritten> {
        let message = format!(
            "its label {} did not name {}, the shard that its proxy has, and does so again: a pod keeps \
             its shard while it runs",
            keys::SHARD,
            self.child
        );
        tracing::warn!(
            pod = self.key,
            shard = self.child,
            "its label was taken off, and is given back"
        );
        let (key, uid) = (self.key.as_str(), self.uid.as_str());
        let problem = Problem { about: About::Pod, key, uid, reason: "ShardLabelLost", message };
        let replica = &shared.config.objects.replica;
        ProblemEvent::new(problem, Timestamp::now(), replica).send(client).await
    }
}

impl Eviction {
    pub(super) fn new(key: &str, uid: &str) -> Self {
        Self { key: key.to_owned(), uid: uid.to_owned() }
    }

    pub(super) fn pod(&self) -> &str {
        &self.key
    }

    /// Evicts the pod, as far as a PodDisruptionBudget lets it, and no other pod of its name.
    pub(super) async fn send(&self, client: &Client) -> Result<(), NotWritten> {
        // kube's own eviction names its options as no API server does.
        let path = Pod::url_path(&(), Some(namespace(&self.key)));
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": name(&self.key), "namespace": namespace(&self.key) },
            "deleteOptions": { "preconditions": { "uid": self.uid } },
        });
        let request = Request::post(format!("{path}/{}/eviction", name(&self.key)))
            .header(header::CONTENT_TYPE, "application/json")
            .body(eviction.to_string().into_bytes())?;
        client.request_text(request).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use http::{Response, StatusCode};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use parking_lot::Mutex;
    use tower::service_fn;

    use super::*;

    type Asked = Arc<Mutex<Vec<(String, Value)>>>;

    /// A client of an API server that takes all, and what it was asked.
    fn client() -> (Client, Asked) {
        let asked = Asked::default();
        let asking = Arc::clone(&asked);
        let service = service_fn(move |request: Request<Body>| {
            let asking = Arc::clone(&asking);
            async move {
                let at = format!("{} {}", request.method(), request.uri());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                asking.lock().push((at, serde_json::from_slice(&body).unwrap()));
                let said = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" });
                let mut response = Response::new(Body::from(said.to_string().into_bytes()));
                *response.status_mut() = StatusCode::OK;
                Ok::<_, Infallible>(response)
            }
        });
        (Client::new(service, "ops"), asked)
    }

    #[tokio::test]
    async fn a_shard_is_given_with_its_cost_to_the_very_pod_with_the_labels_that_were_seen() {
        let pod = json!({
            "metadata": {
                "name": "op-a-x", "namespace": "ops", "uid": "one",
                "labels": { "pod-template-hash": "a", "app": "op" },
                "annotations": { "ctrlmesh.kusionstack.io/injected": "iptables" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "op-a", "uid": "set",
                    "controller": true,
                }],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pod = PlacedPod::of(pod).unwrap();
        let (client, asked) = client();
        let placement =
            Placement::new("ops/op-a-x", &pod, Shard::Normal(3), "op-3-normal".to_owned(), false);
        placement.sent(&client, &Shared::for_tests()).await.1.unwrap();
        // Another leader that has given it a shard meanwhile has changed the labels.
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": "one" },
            { "op": "test", "path": "/metadata/labels", "value": { "pod-template-hash": "a", "app": "op" } },
            {
                "op": "add", "path": "/metadata/labels/ctrlmesh.kusionstack.io~1shard",
                "value": "op-3-normal",
            },
            {
                "op": "add", "path": "/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost",
                "value": "-3",
            },
        ]);
        let at = "PATCH /api/v1/namespaces/ops/pods/op-a-x".to_owned();
        assert_eq!(*asked.lock(), [(at, patch)]);
    }

    #[tokio::test]
    async fn the_very_pod_is_evicted_and_none_of_its_name() {
        let (client, asked) = client();
        Eviction::new("ops/op-a-x", "one").send(&client).await.unwrap();
        let asked = asked.lock();
        let [(at, body)] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(at, "POST /api/v1/namespaces/ops/pods/op-a-x/eviction");
        assert_eq!(body["deleteOptions"]["preconditions"], json!({ "uid": "one" }));
        assert_eq!(body["metadata"]["name"], "op-a-x");
    }
}
