//! The objects that both replicas follow: the Secret with the authorities, the webhooks that call
//! us, the Service of the API server, the ShardingConfigs.
//!
//! Hides how they are watched, and which authorities are in force: the last good ones.

use std::{collections::BTreeMap, mem, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Secret, Service},
};
use kube::{
    Api, Client,
    api::DynamicObject,
    runtime::watcher::{Config, watcher},
};
use tokio::time::interval;

use super::{
    configs::{ConfigFacts, Configs, key},
    shared::{Hook, OwnObjects, Shared, StoredSecret},
};
use crate::{
    cluster::{Followed, OwnAccess, Update, describe},
    manager::trust::{Trust, Trusted},
    policy::Kind,
};

/// The interval at which certificates are looked at.
const LOOK: Duration = Duration::from_secs(10);

/// The subjects of problems, by which `/readyz` names them.
pub(super) const AUTHORITIES: &str = "authorities";
pub(super) const CERTIFICATE: &str = "certificate";
pub(super) const CONFIGS: &str = "shardingconfigs";

/// Follows the objects for as long as it is polled, and keeps the certificate of our own ports.
pub(super) async fn follow(shared: Arc<Shared>, client: Client) {
    let objects = &shared.config.objects;
    let access = OwnAccess::Client(client);
    let mut secret = secret(access.clone(), &objects.namespace, &objects.secret);
    let mut hooks = hooks(access.clone(), &objects.webhooks);
    let mut service = service(access.clone());
    let mut configs = configs(access);
    let mut looks = interval(LOOK);
    loop {
        let (update, plural) = tokio::select! {
            update = configs.next() => (update, CONFIGS),
            update = secret.next() => (update, "secrets"),
            update = hooks.next() => (update, "mutatingwebhookconfigurations"),
            update = service.next() => (update, "services"),
            _ = looks.tick() => {
                refresh(&shared);
                continue;
            }
        };
        match update {
            Update::Listing => continue,
            Update::Failed(trouble) => {
                shared.note(plural, Some(describe(&trouble, plural, "")));
                continue;
            }
            Update::Whole { is_other } => {
                shared.note(plural, None);
                if plural == CONFIGS {
                    let known = configs.known().filter(|_| is_other).cloned();
                    known
                        .map(|known| shared.configs.send_replace(Some(Configs::new(known).into())));
                    continue;
                }
            }
        }
        let (Some(secrets), Some(hooks), Some(services)) =
            (secret.known(), hooks.known(), service.known())
        else {
            continue;
        };
        let own = OwnObjects {
            secret: secrets.values().next().cloned(),
            hooks: hooks.values().next().cloned(),
            addresses: services.values().next().cloned().unwrap_or_default(),
        };
        trust(&shared, &own);
        shared.own.send_replace(Some(Arc::new(own)));
        refresh(&shared);
    }
}

/// Puts in force the authorities that were read. Those before stay if these cannot be used.
fn trust(shared: &Shared, own: &OwnObjects) {
    let name = &shared.config.objects.secret;
    let Some(secret) = &own.secret else {
        shared.note(AUTHORITIES, Some(format!("there is no Secret {name} yet")));
        return;
    };
    match Trust::parse(&secret.data) {
        Ok(trust) => {
            let trusted = Trusted { trust, purpose: shared.purpose(&own.addresses) };
            shared.trusted.send_replace(Some(Arc::new(trusted)));
            shared.note(AUTHORITIES, None);
        }
        Err(bad) => shared.note(
            AUTHORITIES,
            Some(format!(
                "Secret {name}: {bad}; restore it, or delete it, and the leader writes one anew"
            )),
        ),
    }
}

/// Renews the certificate of our own ports if that is due.
fn refresh(shared: &Shared) {
    let Some(trusted) = shared.trusted.borrow().clone() else { return };
    match shared.serving.refresh(&trusted, &shared.config.clock) {
        Ok(false) => {}
        Ok(true) => {
            tracing::info!("the certificate of our own ports is new");
            shared.note(CERTIFICATE, None);
        }
        Err(error) => shared.note(CERTIFICATE, Some(error.to_string())),
    }
}

fn named(name: &str) -> Config {
    Config::default().fields(&format!("metadata.name={name}"))
}

fn secret(access: OwnAccess, namespace: &str, name: &str) -> Followed<Secret, StoredSecret> {
    let (namespace, config) = (namespace.to_owned(), named(name));
    let watch = move |client: Client| {
        watcher(Api::<Secret>::namespaced(client, &namespace), config.clone())
    };
    Followed::new(access, watch, |secret: Secret| {
        let data = secret.data.unwrap_or_default();
        let data: BTreeMap<_, _> = data.into_iter().map(|(key, bytes)| (key, bytes.0)).collect();
        let version = secret.metadata.resource_version.unwrap_or_default();
        (secret.metadata.name.unwrap_or_default(), StoredSecret { version, data })
    })
}

fn hooks(access: OwnAccess, name: &str) -> Followed<MutatingWebhookConfiguration, Vec<Hook>> {
    let config = named(name);
    let watch = move |client: Client| watcher(Api::all(client), config.clone());
    Followed::new(access, watch, |mut found: MutatingWebhookConfiguration| {
        let hooks = mem::take(&mut found.webhooks).unwrap_or_default();
        let hook = |hook: k8s_openapi::api::admissionregistration::v1::MutatingWebhook| Hook {
            ca_bundle: hook.client_config.ca_bundle.map(|bytes| bytes.0).unwrap_or_default(),
            name: hook.name,
        };
        (found.metadata.name.unwrap_or_default(), hooks.into_iter().map(hook).collect())
    })
}

/// The addresses of the API server's Service, of all families.
fn service(access: OwnAccess) -> Followed<Service, Vec<IpAddr>> {
    let watch = |client: Client| {
        watcher(Api::<Service>::namespaced(client, "default"), named("kubernetes"))
    };
    Followed::new(access, watch, |service: Service| {
        let spec = service.spec.unwrap_or_default();
        let addresses = spec.cluster_ips.unwrap_or_default();
        let addresses = addresses.iter().filter_map(|address| address.parse().ok()).collect();
        (service.metadata.name.unwrap_or_default(), addresses)
    })
}

fn configs(access: OwnAccess) -> Followed<DynamicObject, Arc<ConfigFacts>> {
    let watch = |client: Client| {
        let kind = Kind::ShardingConfig.api_resource();
        watcher(Api::<DynamicObject>::all_with(client, &kind), Config::default())
    };
    Followed::new(access, watch, |config: DynamicObject| {
        let meta = [&config.metadata.namespace, &config.metadata.name];
        let [namespace, name] = meta.map(|text| text.as_deref().unwrap_or_default());
        (key(namespace, name), Arc::new(ConfigFacts::of(&config)))
    })
}
