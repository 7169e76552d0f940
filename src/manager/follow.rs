//! The objects that both replicas follow: the Secret with the authorities, the webhooks that call
//! us, the Service of the API server, the ShardingConfigs, the labels of namespaces.
//!
//! Hides how they are watched, and which authorities are in force: the last good ones.

use std::{collections::BTreeMap, future::pending, mem, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    core::v1::{Namespace, Secret, Service},
};
use kube::{
    Api, Client,
    api::{DynamicObject, PartialObjectMeta},
    runtime::watcher::{Config, watcher},
};
use tokio::time::{Instant, interval, sleep_until};

use super::{
    configs::{ConfigFacts, Configs, key},
    shared::{Hook, OwnObjects, Shared, StoredSecret},
};
use crate::trust::{Trust, Trusted};
use ctrlmesh_base::cluster::{OwnAccess, PAGE, Reflector, Update, describe};
use ctrlmesh_policy::{Kind, LabelSet};

/// The interval at which certificates are looked at.
const LOOK: Duration = Duration::from_secs(10);

/// The time in which changes of namespaces gather before they are shown: each time all are copied.
const GATHER: Duration = Duration::from_secs(1);

/// The subjects of problems, by which `/readyz` names them.
pub(super) const AUTHORITIES: &str = "authorities";
pub(super) const CERTIFICATE: &str = "certificate";
pub(super) const CONFIGS: &str = "shardingconfigs";
const NAMESPACES: &str = "namespaces";

/// Follows the objects for as long as it is polled, and keeps the certificate of our own ports.
pub(super) async fn follow(shared: Arc<Shared>, client: Client) {
    let access = OwnAccess::Client(client);
    tokio::join!(follow_own(&shared, access.clone()), follow_namespaces(&shared, access));
}

async fn follow_own(shared: &Shared, access: OwnAccess) {
    let objects = &shared.config.objects;
    let mut secret = secret(access.clone(), &objects.namespace, &objects.secret);
    let mut hooks = hooks(access.clone(), &objects.webhooks);
    let mut validating = validating(access.clone(), &objects.webhooks);
    let mut service = service(access.clone());
    let mut configs = configs(access);
    let mut looks = interval(LOOK);
    loop {
        let (update, plural) = tokio::select! {
            update = configs.next() => (update, CONFIGS),
            update = secret.next() => (update, "secrets"),
            update = hooks.next() => (update, "mutatingwebhookconfigurations"),
            update = validating.next() => (update, "validatingwebhookconfigurations"),
            update = service.next() => (update, "services"),
            _ = looks.tick() => {
                refresh(shared);
                continue;
            }
        };
        match update {
            Update::Listing => continue,
            Update::Failed(error) => {
                shared.note(plural, Some(describe(&error, plural, "")));
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
            // A role from before there was such a configuration must not keep us from the rest.
            validating: validating
                .known()
                .and_then(|known| known.values().next().cloned())
                .unwrap_or_default(),
            addresses: services.values().next().cloned().unwrap_or_default(),
        };
        trust(shared, &own);
        shared.own.send_replace(Some(Arc::new(own)));
        refresh(shared);
    }
}

async fn follow_namespaces(shared: &Shared, access: OwnAccess) {
    let mut namespaces = namespaces(access);
    let mut shows_at: Option<Instant> = None;
    loop {
        let due = async {
            match shows_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            update = namespaces.next() => match update {
                Update::Listing => {}
                Update::Failed(error) => {
                    shared.note(NAMESPACES, Some(describe(&error, NAMESPACES, "")));
                }
                Update::Whole { is_other } => {
                    shared.note(NAMESPACES, None);
                    let is_first = shared.namespaces.borrow().is_none();
                    let gather = if is_first { Duration::ZERO } else { GATHER };
                    if is_first || is_other {
                        shows_at.get_or_insert_with(|| Instant::now() + gather);
                    }
                }
            },
            () = due => {
                shows_at = None;
                let known = namespaces.known().cloned().map(Arc::new);
                shared.namespaces.send_replace(known);
            }
        }
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
                "Secret {name}: {bad}; restore it, or delete it, and the leader writes one again"
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

fn secret(access: OwnAccess, namespace: &str, name: &str) -> Reflector<Secret, StoredSecret> {
    let (namespace, config) = (namespace.to_owned(), named(name));
    let watch = move |client: Client| {
        watcher(Api::<Secret>::namespaced(client, &namespace), config.clone())
    };
    Reflector::new(access, watch, |secret: Secret| {
        let data = secret.data.unwrap_or_default();
        let data: BTreeMap<_, _> = data.into_iter().map(|(key, bytes)| (key, bytes.0)).collect();
        let version = secret.metadata.resource_version.unwrap_or_default();
        (secret.metadata.name.unwrap_or_default(), StoredSecret { version, data })
    })
}

fn hooks(access: OwnAccess, name: &str) -> Reflector<MutatingWebhookConfiguration, Vec<Hook>> {
    let config = named(name);
    let watch = move |client: Client| watcher(Api::all(client), config.clone());
    Reflector::new(access, watch, |mut found: MutatingWebhookConfiguration| {
        let hooks = mem::take(&mut found.webhooks).into_iter().flatten();
        let hooks = hooks.map(|hook| Hook::of(hook.name, hook.client_config));
        (found.metadata.name.unwrap_or_default(), hooks.collect())
    })
}

fn validating(
    access: OwnAccess,
    name: &str,
) -> Reflector<ValidatingWebhookConfiguration, Vec<Hook>> {
    let config = named(name);
    let watch = move |client: Client| watcher(Api::all(client), config.clone());
    Reflector::new(access, watch, |mut found: ValidatingWebhookConfiguration| {
        let hooks = mem::take(&mut found.webhooks).into_iter().flatten();
        let hooks = hooks.map(|hook| Hook::of(hook.name, hook.client_config));
        (found.metadata.name.unwrap_or_default(), hooks.collect())
    })
}

impl Hook {
    fn of(name: String, config: WebhookClientConfig) -> Self {
        Self { name, ca_bundle: config.ca_bundle.map(|bytes| bytes.0).unwrap_or_default() }
    }
}

/// The labels of all namespaces.
fn namespaces(access: OwnAccess) -> Reflector<PartialObjectMeta<Namespace>, LabelSet> {
    let watch = |client: Client| {
        let config = Config::default().page_size(PAGE);
        watcher(Api::<PartialObjectMeta<Namespace>>::all(client), config)
    };
    Reflector::new(access, watch, |namespace: PartialObjectMeta<Namespace>| {
        let meta = namespace.metadata;
        (meta.name.unwrap_or_default(), meta.labels.unwrap_or_default().into())
    })
}

/// The addresses of the API server's Service, of all families.
fn service(access: OwnAccess) -> Reflector<Service, Vec<IpAddr>> {
    let watch = |client: Client| {
        watcher(Api::<Service>::namespaced(client, "default"), named("kubernetes"))
    };
    Reflector::new(access, watch, |service: Service| {
        let spec = service.spec.unwrap_or_default();
        let addresses = spec.cluster_ips.unwrap_or_default();
        let addresses = addresses.iter().filter_map(|address| address.parse().ok()).collect();
        (service.metadata.name.unwrap_or_default(), addresses)
    })
}

fn configs(access: OwnAccess) -> Reflector<DynamicObject, Arc<ConfigFacts>> {
    let watch = |client: Client| {
        let kind = Kind::ShardingConfig.api_resource();
        watcher(Api::<DynamicObject>::all_with(client, &kind), Config::default().page_size(PAGE))
    };
    Reflector::new(access, watch, |config: DynamicObject| {
        let meta = [&config.metadata.namespace, &config.metadata.name];
        let [namespace, name] = meta.map(|text| text.as_deref().unwrap_or_default());
        (key(namespace, name), Arc::new(ConfigFacts::of(&config)))
    })
}
