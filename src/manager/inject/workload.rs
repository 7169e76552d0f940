//! Where pods are found in what users write.

use serde_json::Value;

/// Where an object of the API holds the pods that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodPath(&'static str);

impl PodPath {
    /// The place in an object of this `apiVersion` and `kind`, for the kinds of Kubernetes itself.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        let text = |key| object.get(key).and_then(Value::as_str);
        let group = match text("apiVersion")?.rsplit_once('/') {
            None => "",
            Some((group, _version)) => group,
        };
        match (group, text("kind")?) {
            ("", "Pod") => Some(Self("")),
            ("", "ReplicationController")
            | ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
            | ("batch", "Job") => Some(Self("/spec/template")),
            ("batch", "CronJob") => Some(Self("/spec/jobTemplate/spec/template")),
            _ => None,
        }
    }

    /// The pod or its template.
    #[must_use]
    pub fn find(self, object: &mut Value) -> Option<&mut Value> {
        object.pointer_mut(self.0)
    }
}
