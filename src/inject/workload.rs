//! The place of pods in the objects that users write.

use serde_json::Value;

/// The path of the pod or its template in an object of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodPath(&'static str);

impl PodPath {
    /// The path for the object's `apiVersion` and `kind`. `None` for all kinds but Kubernetes' own
    /// with pods.
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
    pub fn find(self, object: &mut Value) -> Option<&mut Value> {
        object.pointer_mut(self.0)
    }
}
