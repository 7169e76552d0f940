//! The condition `WebhookRedirected` of a ShardingConfig: whether the reviews of its webhook come to
//! the proxies of its pods.
//!
//! Hides the spelling of a condition, and when one differs from another. Does not know how a config
//! selects its pods, or how an object is written.

use std::num::NonZeroU16;

use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde_json::{Value, json};

use super::found::PodFacts;
use crate::{
    api::{Condition, ShardingConfig},
    manager::configs::{ConfigFacts, name, namespace},
    policy::Draft,
};

const TYPE: &str = "WebhookRedirected";

/// The injected pods that a config with a webhook selects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SelectedPods<'a> {
    in_env_mode: Missed<'a>,
    /// Those whose rules lead another port to the proxy, or none.
    with_other_rules: Missed<'a>,
    is_any_redirected: bool,
}

/// Pods whose reviews do not come.
#[derive(Clone, Copy, Debug, Default)]
struct Missed<'a> {
    /// The first of them by name.
    first: Option<&'a str>,
    are_several: bool,
}

impl<'a> Missed<'a> {
    fn add(&mut self, name: &'a str) {
        self.are_several = self.first.is_some();
        self.first = Some(self.first.map_or(name, |first| first.min(name)));
    }

    /// Their name, so that it changes no more often than it must. `None` if there are none.
    fn named(&self) -> Option<String> {
        let others = if self.are_several { " and others" } else { "" };
        self.first.map(|first| format!("pod {first}{others}"))
    }
}

impl<'a> SelectedPods<'a> {
    pub(super) fn add(&mut self, name: &'a str, pod: &PodFacts, port: NonZeroU16) {
        match pod.webhook_port {
            _ if pod.is_in_env_mode => self.in_env_mode.add(name),
            Some(redirected) if redirected == port => self.is_any_redirected = true,
            _ => self.with_other_rules.add(name),
        }
    }

    /// The status, the reason and the message. `None` before there is a pod: none says yet whether
    /// its reviews come.
    fn condition(&self, port: NonZeroU16) -> Option<(&'static str, &'static str, String)> {
        if let Some(pods) = self.in_env_mode.named() {
            let message = format!(
                "spec.webhook has no effect on {pods}: nothing is redirected in env mode, so reviews \
                 are answered by the pod that gets them; have the pods injected with redirect rules, \
                 or remove spec.webhook"
            );
            return Some(("False", "EnvMode", message));
        }
        if let Some(pods) = self.with_other_rules.named() {
            let message = format!(
                "spec.webhook has no effect on {pods}: port {port} was not in the config when they \
                 were created, so reviews are answered by the pod that gets them; create the pods \
                 again"
            );
            return Some(("False", "OtherRules", message));
        }
        self.is_any_redirected.then(|| ("True", "Redirected", String::new()))
    }
}

/// The object to apply to the status of a config. `None` if its condition is as it should be.
pub(super) fn due(
    key: &str,
    config: &ConfigFacts,
    pods: &SelectedPods<'_>,
    now: Timestamp,
) -> Option<Value> {
    let present = config.status.conditions.iter().find(|condition| condition.r#type == TYPE);
    let wanted = match &config.checked {
        Ok(Draft::Sharding(draft)) => match &draft.webhook {
            Some(webhook) => {
                let (status, reason, message) = pods.condition(webhook.port)?;
                Some(Condition {
                    r#type: TYPE.to_owned(),
                    status: status.to_owned(),
                    observed_generation: draft.config.object.generation,
                    last_transition_time: now.to_string(),
                    reason: reason.to_owned(),
                    message,
                })
            }
            None => None,
        },
        // The last good policy is in force, whose webhook is not known here.
        Err(_) => return None,
    };
    let wanted = wanted.map(|wanted| since(wanted, present));
    (wanted.as_ref() != present).then(|| {
        json!({
            "apiVersion": ShardingConfig::api_version(&()),
            "kind": ShardingConfig::kind(&()),
            "metadata": { "namespace": namespace(key), "name": name(key) },
            "status": { "conditions": Vec::from_iter(wanted) },
        })
    })
}

/// The condition with the time since when it has its status.
fn since(wanted: Condition, present: Option<&Condition>) -> Condition {
    let same = present.filter(|present| present.status == wanted.status);
    let since = same.map(|present| present.last_transition_time.clone());
    Condition { last_transition_time: since.unwrap_or(wanted.last_transition_time), ..wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MONDAY: &str = "2026-11-23T08:00:00Z";
    const TUESDAY: &str = "2026-11-24T08:00:00Z";

    fn config(spec: &Value, status: &Value) -> ConfigFacts {
        let object = json!({
            "metadata": { "namespace": "ns", "name": "blue", "generation": 7 },
            "spec": spec,
            "status": status,
        });
        ConfigFacts::of(&serde_json::from_value(object).unwrap())
    }

    fn with_webhook() -> Value {
        json!({
            "selector": { "matchLabels": { "shard": "blue" } },
            "webhook": { "certDir": "/certs", "port": 9443 },
        })
    }

    /// A pod as injection leaves it: in this mode, with these arguments of the proxy.
    fn pod(mode: &str, args: &[&str]) -> PodFacts {
        let pod = json!({
            "metadata": { "annotations": { "ctrlmesh.kusionstack.io/injected": mode } },
            "spec": { "containers": [
                { "name": "manager", "args": ["--webhook-port=9443"] },
                { "name": "ctrlmesh-proxy", "args": args },
            ] },
        });
        PodFacts::of(serde_json::from_value(pod).unwrap())
    }

    fn pods<'a>(env: &[&'a str], redirected: &[&'a str]) -> SelectedPods<'a> {
        let mut pods = SelectedPods::default();
        let port = NonZeroU16::new(9443).unwrap();
        env.iter().for_each(|name| pods.add(name, &pod("env", &[]), port));
        let with_rules = pod("iptables", &["proxy", "--webhook-port=9443"]);
        redirected.iter().for_each(|name| pods.add(name, &with_rules, port));
        pods
    }

    #[test]
    fn i13_a_config_says_that_pods_are_older_than_its_webhook() {
        for args in [&["proxy"][..], &["proxy", "--webhook-port=8443"]] {
            let mut pods = pods(&[], &["op-1"]);
            let port = NonZeroU16::new(9443).unwrap();
            pods.add("op-0", &pod("iptables", args), port);
            let new = config(&with_webhook(), &Value::Null);
            let written = due_at(MONDAY, &new, &pods).unwrap();
            let condition = &written["status"]["conditions"][0];
            assert_eq!(condition["status"], "False", "{args:?}");
            assert_eq!(condition["reason"], "OtherRules");
            let message = condition["message"].as_str().unwrap();
            assert!(
                message.starts_with("spec.webhook has no effect on pod op-0: port 9443 "),
                "{message}"
            );
            assert!(message.ends_with("create the pods again"), "{message}");
        }
    }

    fn due_at(time: &str, config: &ConfigFacts, pods: &SelectedPods<'_>) -> Option<Value> {
        due("ns/blue", config, pods, time.parse().unwrap())
    }

    #[test]
    fn i13_a_config_says_that_reviews_do_not_come_to_pods_in_env_mode() {
        let new = config(&with_webhook(), &Value::Null);
        let written = due_at(MONDAY, &new, &pods(&["op-1", "op-0"], &["op-2"])).unwrap();
        assert_eq!(written["metadata"], json!({ "namespace": "ns", "name": "blue" }));
        let [condition] = written["status"]["conditions"].as_array().unwrap().as_slice() else {
            panic!("{written}")
        };
        assert_eq!(condition["type"], "WebhookRedirected");
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("False"), &json!("EnvMode"))
        );
        assert_eq!(condition["observedGeneration"], 7);
        assert_eq!(condition["lastTransitionTime"], MONDAY);
        let message = condition["message"].as_str().unwrap();
        assert!(
            message.starts_with("spec.webhook has no effect on pod op-0 and others: "),
            "{message}"
        );
        assert!(message.ends_with("or remove spec.webhook"), "{message}");

        // It is not written again, whatever the time and however many there are.
        let told = config(&with_webhook(), &written["status"]);
        assert_eq!(due_at(TUESDAY, &told, &pods(&["op-0", "op-1", "op-3"], &[])), None);
        // Another message is, with the time of its status.
        let one = due_at(TUESDAY, &told, &pods(&["op-1"], &[])).unwrap();
        assert_eq!(one["status"]["conditions"][0]["lastTransitionTime"], MONDAY);
        // All have rules now.
        let mended = due_at(TUESDAY, &told, &pods(&[], &["op-0"])).unwrap();
        let condition = &mended["status"]["conditions"][0];
        assert_eq!(
            (&condition["status"], &condition["lastTransitionTime"]),
            (&json!("True"), &json!(TUESDAY))
        );
    }

    #[test]
    fn i13_a_config_without_a_webhook_or_pods_says_nothing() {
        let mut without = with_webhook();
        without.as_object_mut().unwrap().remove("webhook");
        assert_eq!(due_at(MONDAY, &config(&without, &Value::Null), &pods(&["op-0"], &[])), None);
        let new = config(&with_webhook(), &Value::Null);
        assert_eq!(due_at(MONDAY, &new, &SelectedPods::default()), None);
        let said = due_at(MONDAY, &new, &pods(&["op-0"], &[])).unwrap();
        // Its pods are gone for a while: the condition stays.
        let told = config(&with_webhook(), &said["status"]);
        assert_eq!(due_at(MONDAY, &told, &SelectedPods::default()), None);
        // A bad edit changes nothing: the last good config is in force.
        let mut bad = with_webhook();
        bad["webhook"]["port"] = json!(5441);
        assert_eq!(due_at(MONDAY, &config(&bad, &said["status"]), &pods(&[], &["op-0"])), None);
        // No webhook any more: what it said goes.
        let removed = due_at(MONDAY, &config(&without, &said["status"]), &SelectedPods::default());
        assert_eq!(removed.unwrap()["status"], json!({ "conditions": [] }));
    }
}
