//! The companions of injected pods: the bundle of CAs in each namespace of the mesh, and the rights of the
//! pods' accounts.
//!
//! A namespace gets the bundle before its first pod if its ShardingConfig is there first. The objects have fixed
//! names, so that RBAC can name them, and are written by server-side apply. An object that is no longer wanted
//! stays: pods may still mount it.

use std::collections::BTreeSet;

use super::apply::Apply;
use crate::{
    reconcile::{
        key::WorkKey,
        observed::{FoundRights, key},
        reconciler::{Reconciler, Round, Work},
        view::ClusterView,
    },
    trust::Trusted,
};
use ctrlmesh_inject::companions::{self, BUNDLE_MAP, Bundle};
use ctrlmesh_net::ca::certificate_pem;

/// Keeps the companions.
pub(super) struct Companions;

impl Reconciler for Companions {
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)> {
        let due = round.trusted.map(|trusted| due(round.view, trusted)).unwrap_or_default();
        let write = |(key, apply): (WorkKey, Apply)| {
            (key, round.work(async move |client| apply.send(&client).await))
        };
        due.into_iter().map(write).collect()
    }
}

fn due(view: &ClusterView, trusted: &Trusted) -> Vec<(WorkKey, Apply)> {
    let Some(cluster_ca) = &view.cluster_ca else { return Vec::new() };
    let bundle = Bundle {
        cluster_ca: cluster_ca.clone(),
        mesh_cas: trusted.trust.root().published().map(certificate_pem).collect(),
        manager_cas: trusted.trust.serving_pem(),
    };
    let mut due = Vec::new();
    for (namespace, accounts) in view.accounts() {
        due.extend(bundle_due(view, namespace, &bundle));
        if !accounts.is_empty() {
            due.extend(rights_due(view, namespace, &accounts));
        }
    }
    due.extend(cluster_rights_due(view));
    due
}

fn bundle_due(view: &ClusterView, namespace: &str, bundle: &Bundle) -> Option<(WorkKey, Apply)> {
    let found = view.bundles.known()?.get(&key(namespace, BUNDLE_MAP));
    if found.is_some_and(|found| found.is_ours && found.data == bundle.data()) {
        return None;
    }
    let since = found.and_then(|found| found.since_of(bundle)).unwrap_or_else(|| view.now());
    let foreign = found.filter(|found| !found.is_ours).map(|_| {
        format!(
            "ConfigMap {namespace}/{BUNDLE_MAP} is not ours: it has no label {}; delete \
                 it, or give it that label",
            companions::OURS
        )
    });
    let object = bundle.config_map(namespace, &since.to_string());
    Some((WorkKey::new("ConfigMap", "", key(namespace, BUNDLE_MAP)), Apply { object, foreign }))
}

fn rights_due(view: &ClusterView, namespace: &str, accounts: &[&str]) -> Option<(WorkKey, Apply)> {
    let found = view.rights.known()?.get(&key(namespace, companions::ROLE));
    if found.is_some_and(|found| found.is_ours && found.accounts == accounts) {
        return None;
    }
    let foreign = found.filter(|found| !found.is_ours).map(|_| {
        format!(
            "RoleBinding {namespace}/{} is not ours: it binds another role, or has no \
                 label {}; delete it",
            companions::ROLE,
            companions::OURS
        )
    });
    let object = companions::rights(namespace, accounts);
    Some((
        WorkKey::new("RoleBinding", "", key(namespace, companions::ROLE)),
        Apply { object, foreign },
    ))
}

/// The right to the labels of namespaces, for the pods of configs that need them: all namespaces
/// or none, and so not for others.
fn cluster_rights_due(view: &ClusterView) -> Option<(WorkKey, Apply)> {
    let in_need: BTreeSet<_> = view.configs.iter().flat_map(|configs| configs.in_need()).collect();
    let mut all = view.accounts();
    all.retain(|namespace, _| in_need.contains(namespace));
    let accounts: Vec<_> = all
        .iter()
        .flat_map(|(namespace, names)| names.iter().map(move |name| (*namespace, *name)))
        .collect();
    let found = view.cluster_rights.known()?.get(&key("", companions::NAMESPACES_ROLE));
    let wanted: Vec<_> = accounts.iter().map(|(at, name)| key(at, name)).collect();
    let is_as_wanted = |found: &FoundRights| found.is_ours && found.accounts == wanted;
    match found {
        None if accounts.is_empty() => return None,
        Some(found) if is_as_wanted(found) => return None,
        _ => {}
    }
    let foreign = found.filter(|found| !found.is_ours).map(|_| {
        format!(
            "ClusterRoleBinding {} is not ours: it binds another role, or has no label \
                 {}; delete it",
            companions::NAMESPACES_ROLE,
            companions::OURS
        )
    });
    let object = companions::cluster_rights(&accounts);
    Some((WorkKey::own("ClusterRoleBinding", ""), Apply { object, foreign }))
}
