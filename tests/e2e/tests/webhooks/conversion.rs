//! A CRD whose versions the operator converts: reviews without an owner.

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{NAMESPACE, Webhooks};
use serde_json::{Value, json};

use crate::webhooks::judge::{LIMIT, shard_of};

const COUNT: usize = 10;

/// Each is converted, by a pod of any shard.
pub(crate) fn is_answered_by_any_pod(scene: &Webhooks) -> Result<()> {
    let node = scene.node();
    node.apply(&definition(scene).to_string())?;
    let name = "customresourcedefinition/gadgets.demo.example.com";
    node.wait_for(NAMESPACE, name, "condition=Established", LIMIT)?;
    for number in 0..COUNT {
        let gadget = json!({
            "apiVersion": "demo.example.com/v1alpha1",
            "kind": "Gadget",
            "metadata": { "name": format!("gadget-{number}"), "namespace": NAMESPACE },
            "spec": { "size": number },
        });
        node.apply(&gadget.to_string())?;
    }
    let path = format!("/apis/demo.example.com/v1beta1/namespaces/{NAMESPACE}/gadgets");
    let list = node.api().client().get(&path)?.json()?;
    let items = list["items"].as_array().context("items")?;
    ensure!(items.len() == COUNT, "{list}");
    for gadget in items {
        let by = gadget["metadata"]["annotations"]["demo.example.com/converted-by"].as_str();
        shard_of(by.context("a pod converted it")?)?;
        ensure!(gadget["apiVersion"] == "demo.example.com/v1beta1", "{gadget}");
        ensure!(gadget["spec"]["size"].is_u64(), "{gadget}");
    }
    Ok(())
}

fn definition(scene: &Webhooks) -> Value {
    let properties = json!({ "size": { "type": "integer" } });
    let spec = json!({ "type": "object", "properties": properties });
    let schema = json!({ "type": "object", "properties": { "spec": spec } });
    let version = |name: &str, is_stored: bool| {
        json!({
            "name": name, "served": true, "storage": is_stored,
            "schema": { "openAPIV3Schema": schema },
        })
    };
    let client = scene.client_config(NAMESPACE, Webhooks::SERVICE, "/convert");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "gadgets.demo.example.com" },
        "spec": {
            "group": "demo.example.com",
            "scope": "Namespaced",
            "names": { "kind": "Gadget", "plural": "gadgets", "singular": "gadget" },
            "versions": [version("v1alpha1", true), version("v1beta1", false)],
            "conversion": {
                "strategy": "Webhook",
                "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": client },
            },
        },
    })
}
