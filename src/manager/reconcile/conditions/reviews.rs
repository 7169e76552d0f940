//! The condition `WebhookRedirected` of a ShardingConfig: whether the reviews of its webhook come to
//! the proxies of its pods.
//!
//! Hides why they do not. Does not know how a config selects its pods.

use std::num::NonZeroU16;

use crate::reconcile::{
    observed::PodFacts,
    verdict::{Missed, Verdict},
};
use ctrlmesh_policy::ShardingDraft;

pub(super) const TYPE: &str = "WebhookRedirected";

/// The injected pods that a config with a webhook selects, by where their reviews go.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReviewedPods<'a> {
    in_env_mode: Missed<'a>,
    /// The pods whose rules lead another port to the proxy, or none.
    with_other_rules: Missed<'a>,
    is_any_redirected: bool,
}

impl<'a> ReviewedPods<'a> {
    pub(super) fn add(&mut self, name: &'a str, pod: &PodFacts, port: NonZeroU16) {
        match pod.webhook_port {
            _ if pod.is_in_env_mode => self.in_env_mode.add(name),
            Some(redirected) if redirected == port => self.is_any_redirected = true,
            _ => self.with_other_rules.add(name),
        }
    }

    /// The verdict about a config. Unknown before there is a pod: none says yet whether its reviews
    /// come.
    pub(super) fn verdict(&self, draft: &ShardingDraft) -> Verdict {
        let Some(port) = draft.webhook.as_ref().map(|webhook| webhook.port) else {
            return Verdict::None;
        };
        if let Some(pods) = self.in_env_mode.named("pod") {
            let message = format!(
                "spec.webhook has no effect on {pods}: nothing is redirected in env mode, so reviews \
                 are answered by the pod that gets them; have the pods injected with redirect rules, \
                 or remove spec.webhook"
            );
            return Verdict::No("EnvMode", message);
        }
        if let Some(pods) = self.with_other_rules.named("pod") {
            let message = format!(
                "spec.webhook has no effect on {pods}: port {port} was not in the config when they \
                 were created, so reviews are answered by the pod that gets them; create the pods \
                 again"
            );
            return Verdict::No("OtherRules", message);
        }
        match self.is_any_redirected {
            true => Verdict::Yes("Redirected", String::new()),
            false => Verdict::Unknown,
        }
    }
}
