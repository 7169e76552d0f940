//! The reconcilers of the leader, a file each.

mod apply;
mod authorities;
mod children;
mod companions;
mod conditions;
mod events;
mod finalizers;
mod leases;
mod translations;
mod webhook_configurations;

use super::reconciler::Reconciler;

/// All of them, what others need first.
pub(super) fn all() -> Vec<Box<dyn Reconciler>> {
    vec![
        Box::new(authorities::Authorities),
        Box::new(webhook_configurations::WebhookConfigurations),
        Box::new(companions::Companions),
        Box::<translations::Translations>::default(),
        Box::new(leases::GoneLeases),
        Box::new(children::Children),
        Box::new(finalizers::Finalizers),
        Box::new(conditions::Conditions),
        Box::<events::Events>::default(),
    ]
}
