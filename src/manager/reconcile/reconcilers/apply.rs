//! Objects that the leader applies.
//!
//! Hides how each kind is written: by server-side apply, as ours alone.

use k8s_openapi::api::{
    core::v1::ConfigMap,
    rbac::v1::{ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::Value;

use crate::reconcile::key::NotWritten;
use ctrlmesh_policy::Kind;

/// An object to apply.
pub(super) struct Apply {
    pub(super) object: Value,
    /// The reason why it must not be written.
    pub(super) foreign: Option<String>,
}

impl Apply {
    pub(super) async fn send(self, client: &Client) -> Result<(), NotWritten> {
        let Self { object, foreign } = self;
        if let Some(problem) = foreign {
            return Err(NotWritten::Foreign(problem));
        }
        let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let params = PatchParams::apply("ctrlmesh-manager").force();
        let patch = Patch::Apply(&object);
        match text("/kind") {
            "ConfigMap" => {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
                api.patch(name, &params, &patch).await.map(drop)?;
            }
            "ShardingConfig" => {
                let kind = Kind::of(text("/apiVersion"), "ShardingConfig");
                let kind = kind.unwrap_or(Kind::ShardingConfig).api_resource();
                let api: Api<DynamicObject> =
                    Api::namespaced_with(client.clone(), namespace, &kind);
                api.patch_status(name, &params, &patch).await.map(drop)?;
            }
            "ClusterRoleBinding" => {
                let api: Api<ClusterRoleBinding> = Api::all(client.clone());
                api.patch(name, &params, &patch).await.map(drop)?;
            }
            _ => {
                let api: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
                api.patch(name, &params, &patch).await.map(drop)?;
            }
        }
        Ok(())
    }
}
