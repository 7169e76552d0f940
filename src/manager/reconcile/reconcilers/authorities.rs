//! The authorities in their Secret: made if there are none, and taken through their steps, each
//! stored before the next.
//!
//! A write replaces the version that was judged, so that of two replicas that both think they lead
//! one fails, and reads again.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use serde_json::json;

use crate::{
    config::Objects,
    reconcile::{
        key::{NotWritten, WorkKey},
        reconciler::{Reconciler, Round, Work},
    },
    shared::{OwnObjects, Shared},
    trust::{Known, SecretData, Trust, Trusted},
};
use ctrlmesh_base::cluster::chain;

/// Keeps the authorities.
pub(super) struct Authorities;

impl Reconciler for Authorities {
    fn due(&mut self, round: &Round<'_>) -> Vec<(WorkKey, Work)> {
        let Round { view, shared, own, trusted, .. } = *round;
        let known = trusted.map(|trusted| view.knows(trusted, own, shared)).unwrap_or_default();
        let change = due(shared, own, trusted, known).unwrap_or_else(|error| {
            tracing::error!(error = chain(&error), "cannot create a CA");
            None
        });
        let key = || WorkKey::own("Secret", "");
        let write = |change: Change| {
            let objects = shared.config.objects.clone();
            (key(), round.work(async move |client| change.store(&client, &objects).await))
        };
        change.map(write).into_iter().collect()
    }
}

/// A Secret to store.
struct Change {
    data: SecretData,
    /// The version that it replaces. `None` if there is none.
    replaces: Option<String>,
    why: String,
}

/// The change that is due, if one is. A Secret that cannot be read is left as it is: someone may
/// still restore it.
fn due(
    shared: &Shared,
    own: &OwnObjects,
    trusted: Option<&Trusted>,
    known: Known,
) -> Result<Option<Change>, rcgen::Error> {
    let clock = &shared.config.clock;
    let Some(stored) = &own.secret else {
        // A Secret that was deleted comes back as it was, so that pods go on to trust the root.
        let (data, why) = match trusted {
            Some(trusted) => (trusted.trust.to_data(), "the Secret was deleted".to_owned()),
            // What they may sign for is in them for good.
            None if own.addresses.is_empty() => return Ok(None),
            None => {
                let made = Trust::make(&shared.purpose(&own.addresses), clock.now())?;
                (made.to_data(), "there are none yet".to_owned())
            }
        };
        return Ok(Some(Change { data, replaces: None, why }));
    };
    let (Ok(mut trust), Some(trusted)) = (Trust::parse(&stored.data), trusted) else {
        return Ok(None);
    };
    let step = trust.step(&trusted.purpose, known, clock)?;
    Ok(step.map(|step| Change {
        data: trust.to_data(),
        replaces: Some(stored.version.clone()),
        why: format!("{step:?}"),
    }))
}

impl Change {
    async fn store(self, client: &Client, objects: &Objects) -> Result<(), NotWritten> {
        let Self { data, replaces, why } = self;
        tracing::info!(why, "storing CAs");
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &objects.namespace);
        let labels = json!({ "app.kubernetes.io/managed-by": "ctrlmesh" });
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(objects.secret.clone()),
                resource_version: replaces.clone(),
                labels: serde_json::from_value(labels).ok(),
                ..ObjectMeta::default()
            },
            data: Some(data.into_iter().map(|(key, bytes)| (key, ByteString(bytes))).collect()),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        match replaces {
            None => secrets.create(&PostParams::default(), &secret).await?,
            Some(_) => secrets.replace(&objects.secret, &PostParams::default(), &secret).await?,
        };
        Ok(())
    }
}
