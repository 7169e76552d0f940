//! The decision who may have a leaf: a pod of the mesh, by the token of its proxy.
//!
//! Hides what a token says and which objects are looked up for it. The token is bound to the pod and has an
//! audience of its own, and its volume is the proxy container's alone. Nothing is signed for the tokens of an app
//! container (the same account, another audience). A TokenReview still takes a deleted pod's token for some
//! seconds, so the pod itself is asked for.

use ctrlmesh_base::sidecar::AUDIENCE;
use std::collections::BTreeMap;

use k8s_openapi::api::{authentication::v1::TokenReviewStatus, core::v1::Pod};
use strum::IntoStaticStr;

use ctrlmesh_api::keys;
use ctrlmesh_net::identity::{BadIdentity, PodIdentity};

/// The keys of what a TokenReview says besides the user
/// (`k8s.io/apiserver/pkg/authentication/serviceaccount`).
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// The holder of a token by its own words, to be compared with the pod ([`Claim::holder`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    account: String,
    /// The node. `None` before Kubernetes 1.30.
    node: Option<String>,
    pod: PodIdentity,
}

/// The reason why nothing is signed for a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, IntoStaticStr)]
pub enum NotAHolder {
    #[error("the token is not accepted{}", .0.as_deref().map(|why| format!(": {why}")).unwrap_or_default())]
    NotAuthenticated(Option<String>),
    #[error("the token is not for the audience {AUDIENCE}")]
    OtherAudience,
    #[error("the token is that of {0:?}, which is no ServiceAccount")]
    NoServiceAccount(String),
    #[error("the token is bound to no pod")]
    NoPod,
    #[error("the token is bound to what is no pod")]
    BadPod(#[source] BadIdentity),
    #[error("pod {0} is gone")]
    PodGone(String),
    #[error("pod {0} has another {1} than the token says")]
    OtherPod(String, &'static str),
    #[error("pod {0} has ended")]
    PodEnded(String),
    #[error("pod {0} is not injected")]
    PodNotInjected(String),
}

impl NotAHolder {
    /// A word for metrics and logs.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

impl Claim {
    /// Reads the answer to a TokenReview that asked for [`AUDIENCE`].
    pub fn of_review(review: TokenReviewStatus) -> Result<Self, NotAHolder> {
        if review.authenticated != Some(true) {
            let why = review.error.filter(|why| !why.is_empty());
            return Err(NotAHolder::NotAuthenticated(why));
        }
        // An authenticator that knows no audiences answers none.
        if !review.audiences.iter().flatten().any(|audience| audience == AUDIENCE) {
            return Err(NotAHolder::OtherAudience);
        }
        let user = review.user.unwrap_or_default();
        let username = user.username.unwrap_or_default();
        let account = username.strip_prefix("system:serviceaccount:");
        let Some((namespace, account)) = account.and_then(|account| account.split_once(':')) else {
            return Err(NotAHolder::NoServiceAccount(username));
        };
        let account = account.to_owned();
        let mut extra = user.extra.unwrap_or_default();
        let mut one = |key| one_of(&mut extra, key);
        let (Some(name), Some(uid)) = (one(POD_NAME), one(POD_UID)) else {
            return Err(NotAHolder::NoPod);
        };
        let node = one(NODE_NAME);
        let pod = PodIdentity::new(namespace, &name, &uid).map_err(NotAHolder::BadPod)?;
        Ok(Self { account, node, pod })
    }

    /// The pod to ask for.
    pub fn pod(&self) -> &PodIdentity {
        &self.pod
    }

    /// The holder, if the pod that the API server has now is the one of the token. `None` is the
    /// answer that there is no such pod.
    pub fn holder(self, pod: Option<&Pod>) -> Result<PodIdentity, NotAHolder> {
        let claimed = &self.pod;
        let named = format!("{}/{}", claimed.namespace(), claimed.name());
        let Some(pod) = pod else { return Err(NotAHolder::PodGone(named)) };
        let spec = pod.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.as_ref());
        let node = spec.and_then(|spec| spec.node_name.as_ref());
        let compared = [
            ("namespace", pod.metadata.namespace.as_deref() == Some(claimed.namespace())),
            ("name", pod.metadata.name.as_deref() == Some(claimed.name())),
            ("uid", pod.metadata.uid.as_deref() == Some(claimed.uid())),
            ("serviceAccountName", account == Some(&self.account)),
            ("nodeName", self.node.is_none() || self.node.as_ref() == node),
        ];
        if let Some((field, _)) = compared.iter().find(|(_, is_same)| !is_same) {
            return Err(NotAHolder::OtherPod(named, field));
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return Err(NotAHolder::PodEnded(named));
        }
        match is_injected(pod) {
            true => Ok(self.pod),
            false => Err(NotAHolder::PodNotInjected(named)),
        }
    }
}

/// The only value under a key.
fn one_of(extra: &mut BTreeMap<String, Vec<String>>, key: &str) -> Option<String> {
    let mut values = extra.remove(key)?;
    let value = values.pop().filter(|value| !value.is_empty())?;
    values.is_empty().then_some(value)
}

/// Whether a pod has asked for injection and has its mark.
fn is_injected(pod: &Pod) -> bool {
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    keys::find(labels, keys::ENABLE_PROXY).is_some_and(|(_, value)| value == "true")
        && annotations.contains_key(keys::INJECTED)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn review() -> Value {
        json!({
            "authenticated": true,
            "audiences": [AUDIENCE],
            "user": {
                "username": "system:serviceaccount:operators:robot",
                "uid": "5f6e",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "extra": {
                    POD_NAME: ["op-0"],
                    POD_UID: ["u-1"],
                    NODE_NAME: ["node-a"],
                    "authentication.kubernetes.io/node-uid": ["n-1"],
                    "authentication.kubernetes.io/credential-id": ["JTI=1"],
                },
            },
        })
    }

    fn pod() -> Value {
        json!({
            "metadata": {
                "name": "op-0",
                "namespace": "operators",
                "uid": "u-1",
                "labels": { "kridge.kusionstack.io/enable-proxy": "true" },
                "annotations": { "ctrlmesh.kusionstack.io/injected": "iptables" },
            },
            "spec": { "containers": [], "nodeName": "node-a", "serviceAccountName": "robot" },
            "status": { "phase": "Pending" },
        })
    }

    fn with(mut value: Value, at: &str, new: Value) -> Value {
        let (object, member) = at.rsplit_once('/').unwrap();
        value.pointer_mut(object).unwrap()[member.replace("~1", "/")] = new;
        value
    }

    fn claim(review: Value) -> Result<Claim, NotAHolder> {
        Claim::of_review(serde_json::from_value(review).unwrap())
    }

    fn holder(review: Value, pod: Value) -> Result<PodIdentity, NotAHolder> {
        claim(review)?.holder(Some(&serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn the_proxy_of_an_injected_pod_is_a_holder() {
        let wanted = PodIdentity::new("operators", "op-0", "u-1").unwrap();
        assert_eq!(claim(review()).unwrap().pod(), &wanted);
        assert_eq!(holder(review(), pod()), Ok(wanted.clone()));
        // A pod that is to end still runs, and before 1.30 a token names no node.
        let ends = with(pod(), "/metadata/deletionTimestamp", json!("2026-01-02T03:04:05Z"));
        assert_eq!(holder(review(), ends), Ok(wanted.clone()));
        let mut without_node = review();
        without_node["user"]["extra"].as_object_mut().unwrap().remove(NODE_NAME);
        assert_eq!(holder(without_node, pod()), Ok(wanted));
    }

    #[test]
    fn nobody_else_is() {
        let extra = |key: &str, value: Value| {
            with(review(), &format!("/user/extra/{}", key.replace('/', "~1")), value)
        };
        let user = |name: &str| with(review(), "/user/username", json!(name));
        let label = "/metadata/labels/kridge.kusionstack.io~1enable-proxy";
        let cases = [
            (with(review(), "/authenticated", json!(false)), pod(), "NotAuthenticated"),
            (with(review(), "/authenticated", json!(null)), pod(), "NotAuthenticated"),
            (with(review(), "/audiences", json!(null)), pod(), "OtherAudience"),
            (
                with(review(), "/audiences", json!(["https://kubernetes.default.svc"])),
                pod(),
                "OtherAudience",
            ),
            (with(review(), "/user", json!(null)), pod(), "NoServiceAccount"),
            (user("system:node:node-a"), pod(), "NoServiceAccount"),
            (user("system:serviceaccount:operators"), pod(), "NoServiceAccount"),
            (with(review(), "/user/extra", json!(null)), pod(), "NoPod"),
            (extra(POD_UID, json!([])), pod(), "NoPod"),
            (extra(POD_NAME, json!([""])), pod(), "NoPod"),
            (extra(POD_NAME, json!(["op-0", "op-1"])), pod(), "NoPod"),
            (extra(POD_NAME, json!(["op/0"])), pod(), "BadPod"),
            (review(), with(pod(), "/metadata/uid", json!("u-2")), "OtherPod"),
            (review(), with(pod(), "/metadata/uid", json!(null)), "OtherPod"),
            (review(), with(pod(), "/metadata/name", json!("op-1")), "OtherPod"),
            (review(), with(pod(), "/metadata/namespace", json!("other")), "OtherPod"),
            (user("system:serviceaccount:other:robot"), pod(), "OtherPod"),
            (user("system:serviceaccount:operators:root"), pod(), "OtherPod"),
            (review(), with(pod(), "/spec/serviceAccountName", json!("other")), "OtherPod"),
            (review(), with(pod(), "/spec/nodeName", json!("node-b")), "OtherPod"),
            (review(), with(pod(), "/spec/nodeName", json!(null)), "OtherPod"),
            (review(), with(pod(), "/status/phase", json!("Succeeded")), "PodEnded"),
            (review(), with(pod(), "/status/phase", json!("Failed")), "PodEnded"),
            (review(), with(pod(), "/metadata/annotations", json!({})), "PodNotInjected"),
            (review(), with(pod(), "/metadata/labels", json!(null)), "PodNotInjected"),
            (review(), with(pod(), label, json!("false")), "PodNotInjected"),
        ];
        for (review, pod, wanted) in cases {
            let refused = holder(review.clone(), pod.clone()).unwrap_err();
            assert_eq!(refused.reason(), wanted, "{review:#} {pod:#}");
        }
        let gone = claim(review()).unwrap().holder(None).unwrap_err();
        assert_eq!((gone.reason(), &*gone.to_string()), ("PodGone", "pod operators/op-0 is gone"));
    }

    #[test]
    fn a_refusal_says_why() {
        let expired = json!({ "error": "[invalid bearer token, token has expired]" });
        let said = claim(expired).unwrap_err().to_string();
        assert_eq!(said, "the token is not accepted: [invalid bearer token, token has expired]");
        let said = claim(json!({})).unwrap_err().to_string();
        assert_eq!(said, "the token is not accepted");
        let other = with(pod(), "/metadata/uid", json!("u-2"));
        let said = holder(review(), other).unwrap_err().to_string();
        assert_eq!(said, "pod operators/op-0 has another uid than the token says");
    }
}
