//! The AdmissionReview of admission.k8s.io/v1, as far as pods and ShardingConfigs need it.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// The code of a refusal: Unprocessable Content, as for a field that is invalid.
const UNPROCESSABLE: u16 = 422;

/// The most values of a review, objects and lists among them: each takes up to a kilobyte of memory
/// while the review is answered, and a pod of thirty containers has some thousands.
const MAX_VALUES: usize = 100_000;

/// The requests that are reviewed at one path.
pub(super) struct Reviewed {
    groups: &'static [&'static str],
    version: &'static str,
    kind: &'static str,
    operations: &'static [&'static str],
    named: &'static str,
}

/// Pods that are created.
pub(super) const PODS: Reviewed = Reviewed {
    groups: &[""],
    version: "v1",
    kind: "Pod",
    operations: &["CREATE"],
    named: "the creation of a Pod of v1",
};

/// ShardingConfigs of both dialects that are created or updated.
pub(super) const CONFIGS: Reviewed = Reviewed {
    groups: &["ctrlmesh.kusionstack.io", "kridge.kusionstack.io"],
    version: "v1alpha1",
    kind: "ShardingConfig",
    operations: &["CREATE", "UPDATE"],
    named: "the creation or update of a ShardingConfig of ctrlmesh.kusionstack.io/v1alpha1, or of \
            kridge.kusionstack.io/v1alpha1,",
};

/// The reason why a body is no review that its path accepts.
#[derive(Debug, thiserror::Error)]
pub enum BadReview {
    #[error("the body is no AdmissionReview of {API_VERSION}")]
    Malformed(#[from] serde_json::Error),
    #[error("the body has {0} values, and {MAX_VALUES} are taken")]
    TooManyValues(usize),
    #[error(
        "the body is a {kind} of {api_version}, and an AdmissionReview of {API_VERSION} is needed"
    )]
    Other { api_version: String, kind: String },
    #[error("{operation} of {kind}: only {reviewed} is reviewed here")]
    Another { operation: String, kind: String, reviewed: &'static str },
}

/// A review.
pub(super) struct Review {
    pub(super) uid: String,
    pub(super) namespace: String,
    /// The object as it will be stored.
    pub(super) object: Value,
    /// The object that it replaces, or null.
    pub(super) old: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    api_version: String,
    kind: String,
    request: Asked,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    uid: String,
    kind: Gvk,
    operation: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
}

#[derive(Deserialize)]
struct Gvk {
    group: String,
    version: String,
    kind: String,
}

/// The response to a review.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Value>,
}

/// The change of a pod as a JSON patch (RFC 6902). `add` replaces a member that is there.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Patch(Vec<Add>);

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename = "add")]
struct Add {
    path: &'static str,
    value: Value,
}

impl Review {
    /// Reads a review. `request.object` is taken as it is: unknown fields survive.
    pub(super) fn parse(body: &[u8], reviewed: &Reviewed) -> Result<Self, BadReview> {
        let values = values(body);
        if values > MAX_VALUES {
            return Err(BadReview::TooManyValues(values));
        }
        let Request { api_version, kind, request } = serde_json::from_slice(body)?;
        if api_version != API_VERSION || kind != KIND {
            return Err(BadReview::Other { api_version, kind });
        }
        let Asked { uid, kind, operation, namespace, object, old_object } = request;
        let Gvk { group, version, kind } = kind;
        let Reviewed { groups, version: of_version, kind: of_kind, .. } = *reviewed;
        let is_kind = groups.contains(&&*group) && (&*version, &*kind) == (of_version, of_kind);
        if !is_kind || !reviewed.operations.contains(&&*operation) {
            let kind = format!("{group}/{version} {kind}");
            return Err(BadReview::Another { operation, kind, reviewed: reviewed.named });
        }
        Ok(Self { uid, namespace, object, old: old_object })
    }
}

/// The number of values of a JSON text, or a little more: what opens an object or a list, and what
/// separates members.
fn values(json: &[u8]) -> usize {
    let (mut values, mut is_text, mut is_escaped) = (1, false, false);
    for byte in json {
        match (is_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_text = !is_text,
            (false, b'{' | b'[' | b',') => values += 1,
            _ => {}
        }
    }
    values
}

impl Patch {
    /// The parts that injection changes: annotations and spec, and the labels if they are others. Takes them
    /// out of the pod.
    pub(super) fn of(pod: &mut Value, has_other_labels: bool) -> Self {
        let labels = has_other_labels.then_some("/metadata/labels");
        let paths = ["/metadata/annotations", "/spec"].into_iter().chain(labels);
        let part = |path| {
            let value = pod.pointer_mut(path).map(Value::take).unwrap_or_default();
            Add { path, value }
        };
        Self(paths.map(part).collect())
    }
}

impl Response {
    pub(super) fn allowed(uid: String) -> Self {
        Self {
            uid,
            allowed: true,
            patch_type: None,
            patch: None,
            warnings: Vec::new(),
            status: None,
        }
    }

    pub(super) fn patched(uid: String, patch: &Patch, warnings: Vec<String>) -> Self {
        let patch = STANDARD.encode(json!(patch).to_string());
        let patch_type = Some("JSONPatch");
        Self { patch_type, patch: Some(patch), warnings, ..Self::allowed(uid) }
    }

    pub(super) fn warned(uid: String, warnings: Vec<String>) -> Self {
        Self { warnings, ..Self::allowed(uid) }
    }

    pub(super) fn refused(uid: String, reason: &str) -> Self {
        let status = json!({
            "apiVersion": "v1",
            "kind": "Status",
            "status": "Failure",
            "reason": "Invalid",
            "code": UNPROCESSABLE,
            "message": reason,
        });
        Self { allowed: false, status: Some(status), ..Self::allowed(uid) }
    }

    pub(super) fn into_body(self) -> Vec<u8> {
        json!({ "apiVersion": API_VERSION, "kind": KIND, "response": self })
            .to_string()
            .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (json, count) in
            [("1", 1), ("[1,2,3]", 4), (r#"{"a":{"b":[]}}"#, 4), (r#"[",,,[[{{\",,","\\",","]"#, 4)]
        {
            assert_eq!(values(json.as_bytes()), count, "{json}");
        }
    }
}
