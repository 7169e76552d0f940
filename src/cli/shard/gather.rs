//! The look at a workload and what surrounds it. It judges nothing.
//!
//! Hides which requests are made, and that they are made at once.

use std::collections::BTreeMap;

use futures_util::{StreamExt, future::OptionFuture, stream};
use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
        ValidatingAdmissionPolicy, ValidatingWebhookConfiguration,
    },
    core::v1::{Namespace, Pod, Secret, Service},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
    core::Selector,
};
use serde_json::Value;
use tokio::try_join;

use super::{
    args::WorkloadName,
    error::ShardError,
    facts::{CustomKind, Facts, Hook, MeshFacts, Workload},
    read::{
        release::{self, Release},
        rights::{Account, Rights, Roles},
    },
};
use crate::doctor::{
    CannotLook, Looked,
    collect::{Asked, WEBHOOKS, has_definition},
};
use ctrlmesh_api::{RootTarget, TargetKind};
use ctrlmesh_policy::Kind;

/// The policy by which the manager may patch pods.
const PODS_POLICY: &str = "ctrlmesh-pods";
/// The number of requests under way at once.
const AT_ONCE: usize = 16;
/// The number of objects that are looked at to see their namespaces.
const SAMPLE: u32 = 500;

/// Gathers the facts. Fails if there is no such workload.
pub(super) async fn gather(
    asked: &Asked,
    namespace: &str,
    named: &WorkloadName,
) -> Result<Facts, ShardError> {
    let workload = workload(asked, namespace, named).await?;
    let client = || asked.client.clone();
    let everything = ListParams::default;
    let (rights, pods, leases, hooks, budgets, autoscalers, configs, labels, release, mesh) = tokio::join!(
        rights(asked, &workload),
        pods(asked, &workload),
        asked.list(Api::all(client()), everything()),
        hooks(asked, &workload),
        asked.list(Api::namespaced(client(), namespace), everything()),
        asked.list(Api::namespaced(client(), namespace), everything()),
        configs(asked, namespace),
        asked.get(Api::<Namespace>::all(client()), namespace),
        release(asked, &workload),
        mesh(asked),
    );
    let kinds = kinds(asked, rights.as_ref().ok()).await;
    Ok(Facts {
        namespace: labels
            .map(|found| found.and_then(|found| found.metadata.labels).unwrap_or_default()),
        workload,
        mesh,
        pods,
        rights,
        leases,
        hooks,
        budgets,
        autoscalers,
        configs,
        kinds,
        release,
    })
}

/// The path of a workload.
pub(super) fn path(namespace: &str, target: &RootTarget) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/{}/{}", plural(target.kind), target.name)
}

fn plural(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Deployment => "deployments",
        TargetKind::StatefulSet => "statefulsets",
    }
}

/// The workload as it is now.
pub(super) async fn workload(
    asked: &Asked,
    namespace: &str,
    WorkloadName { kind, name }: &WorkloadName,
) -> Result<Workload, ShardError> {
    let target = RootTarget { kind: *kind, name: name.clone() };
    let resource = format!("{}.apps", plural(*kind));
    let place = format!(" in namespace {namespace}");
    let answer = asked.path(&path(namespace, &target), &resource, &place).await?.answer;
    let object: Option<Value> = serde_json::from_str(&answer.body).ok();
    let namespace = namespace.to_owned();
    match (answer.code, object) {
        (200, Some(object)) => Ok(Workload { namespace, target, object }),
        (404, _) => {
            Err(ShardError::NoWorkload { kind: kind.as_str(), namespace, name: name.clone() })
        }
        (code, _) => {
            Err(CannotLook::Failed(format!("{resource} {name} has the code {code}")).into())
        }
    }
}

/// The pods of a workload that have not ended.
pub(super) async fn pods(asked: &Asked, workload: &Workload) -> Looked<Vec<Pod>> {
    let labels = workload.object.pointer("/spec/selector").cloned();
    let labels = labels.and_then(|labels| serde_json::from_value::<LabelSelector>(labels).ok());
    let selector = labels.map(Selector::try_from).and_then(Result::ok).unwrap_or_default();
    let params = ListParams::default().labels(&selector.to_string());
    let mut pods: Vec<Pod> =
        asked.list(Api::namespaced(asked.client.clone(), &workload.namespace), params).await?;
    pods.retain(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Succeeded" | "Failed"))
    });
    Ok(pods)
}

/// The ShardingConfigs of a namespace.
pub(super) async fn configs(asked: &Asked, namespace: &str) -> Looked<Vec<DynamicObject>> {
    let kind = Kind::ShardingConfig.api_resource();
    let api = Api::namespaced_with(asked.client.clone(), namespace, &kind);
    asked.list_dynamic(api, &format!("{}.{}", kind.plural, kind.group)).await
}

async fn rights(asked: &Asked, workload: &Workload) -> Looked<Rights> {
    let client = || asked.client.clone();
    let everything = ListParams::default;
    let (cluster_bindings, bindings, cluster_roles, roles) = try_join!(
        asked.list(Api::all(client()), everything()),
        asked.list(Api::all(client()), everything()),
        asked.list(Api::all(client()), everything()),
        asked.list(Api::all(client()), everything()),
    )?;
    let account = Account { namespace: &workload.namespace, name: workload.account() };
    Ok(Rights::of(account, &Roles { cluster_bindings, bindings, cluster_roles, roles }))
}

/// A webhook before its Service is known.
struct Called {
    of: String,
    service: Option<ServiceReference>,
    rules: Vec<RuleWithOperations>,
    namespaces: Option<LabelSelector>,
    failure_policy: Option<String>,
}

/// The webhooks whose Services select the workload's pods.
async fn hooks(asked: &Asked, workload: &Workload) -> Looked<Vec<Hook>> {
    let client = || asked.client.clone();
    let everything = ListParams::default;
    let (mutating, validating, services) = try_join!(
        asked.list(Api::<MutatingWebhookConfiguration>::all(client()), everything()),
        asked.list(Api::<ValidatingWebhookConfiguration>::all(client()), everything()),
        asked.list(Api::<Service>::namespaced(client(), &workload.namespace), everything()),
    )?;
    let mutating = mutating.into_iter().flat_map(|config| {
        let of =
            format!("MutatingWebhookConfiguration {}", config.metadata.name.unwrap_or_default());
        config.webhooks.into_iter().flatten().map(move |hook| Called {
            of: of.clone(),
            service: hook.client_config.service,
            rules: hook.rules.unwrap_or_default(),
            namespaces: hook.namespace_selector,
            failure_policy: hook.failure_policy,
        })
    });
    let validating = validating.into_iter().flat_map(|config| {
        let of =
            format!("ValidatingWebhookConfiguration {}", config.metadata.name.unwrap_or_default());
        config.webhooks.into_iter().flatten().map(move |hook| Called {
            of: of.clone(),
            service: hook.client_config.service,
            rules: hook.rules.unwrap_or_default(),
            namespaces: hook.namespace_selector,
            failure_policy: hook.failure_policy,
        })
    });
    Ok(mutating.chain(validating).filter_map(|called| hook(called, workload, &services)).collect())
}

fn hook(called: Called, workload: &Workload, services: &[Service]) -> Option<Hook> {
    let reference = called.service?;
    let labels = workload.pod_labels();
    let selects = |service: &&Service| {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        service.metadata.name.as_deref() == Some(&*reference.name)
            && selector.is_some_and(|selector| {
                let has = |(key, value): (&String, &String)| labels.get(&**key) == Some(&&**value);
                !selector.is_empty() && selector.iter().all(has)
            })
    };
    let service =
        services.iter().find(selects).filter(|_| reference.namespace == workload.namespace)?;
    Some(Hook {
        of: called.of,
        rules: called.rules,
        namespaces: called.namespaces,
        fails_closed: called.failure_policy.as_deref() != Some("Ignore"),
        service: service.clone(),
        port: reference.port.unwrap_or(443),
    })
}

async fn release(asked: &Asked, workload: &Workload) -> Looked<Option<Release>> {
    let Some(name) = workload.marked("meta.helm.sh/release-name") else { return Ok(None) };
    let namespace = workload.marked("meta.helm.sh/release-namespace");
    let namespace = namespace.unwrap_or(&workload.namespace);
    let params = ListParams::default().labels(&format!("owner=helm,name={name},status=deployed"));
    let secrets: Vec<Secret> =
        asked.list(Api::namespaced(asked.client.clone(), namespace), params).await?;
    let mut fields = secrets.into_iter().filter_map(|secret| secret.data?.remove("release"));
    let kind = workload.target.kind.as_str();
    Ok(fields.next().and_then(|field| release::read(&field.0, kind, &workload.target.name)))
}

async fn mesh(asked: &Asked) -> MeshFacts {
    let client = || asked.client.clone();
    let (has_definition, policy, webhooks) = tokio::join!(
        has_definition(asked),
        asked.get(Api::<ValidatingAdmissionPolicy>::all(client()), PODS_POLICY),
        asked.get(Api::<MutatingWebhookConfiguration>::all(client()), WEBHOOKS),
    );
    let injects = |rules: &[RuleWithOperations]| {
        let has = |all: &Option<Vec<String>>| all.iter().flatten().any(|one| one == "pods");
        rules.iter().any(|rule| has(&rule.resources))
    };
    let selectors = webhooks.map(|found| {
        let all = found?.webhooks.unwrap_or_default().into_iter();
        let pods = all.filter(|hook| injects(hook.rules.as_deref().unwrap_or_default()));
        let selectors: Vec<_> = pods.filter_map(|hook| hook.namespace_selector).collect();
        (!selectors.is_empty()).then_some(selectors)
    });
    MeshFacts {
        has_definition,
        has_pods_policy: policy.map(|found| found.is_some()),
        injected_namespaces: selectors,
    }
}

/// The custom kinds that an account may list.
async fn kinds(asked: &Asked, rights: Option<&Rights>) -> Looked<Vec<CustomKind>> {
    let Some(rights) = rights else { return Ok(Vec::new()) };
    let definition =
        GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let definition = ApiResource::from_gvk(&definition);
    let api: Api<DynamicObject> = Api::all_with(asked.client.clone(), &definition);
    let all = asked.list_metadata(api, "customresourcedefinitions", ListParams::default()).await?;
    let names = all.into_iter().filter_map(|one| one.metadata.name);
    let names = names.filter(|name| {
        let (plural, group) = name.split_once('.').unwrap_or((name, ""));
        rights.names(&["list", "watch"], group, plural)
    });
    let kinds = stream::iter(names.map(|name| kind(asked, name, rights)));
    let mut all: Vec<CustomKind> = Vec::new();
    let mut kinds = kinds.buffer_unordered(AT_ONCE);
    while let Some(kind) = kinds.next().await {
        all.extend(kind?);
    }
    all.sort_by(|one, other| (&one.group, &one.plural).cmp(&(&other.group, &other.plural)));
    Ok(all)
}

/// A kind by the name of its definition. `None` if that is gone.
async fn kind(asked: &Asked, name: String, rights: &Rights) -> Looked<Option<CustomKind>> {
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
    let answer = asked.path(&path, "customresourcedefinitions", "").await?.answer;
    let Ok(mut definition) = serde_json::from_str::<Value>(&answer.body) else { return Ok(None) };
    let text = |at: &str| definition.pointer(at).and_then(Value::as_str).map(str::to_owned);
    let parts = (text("/spec/group"), text("/spec/names/plural"), text("/spec/names/kind"));
    let (Some(group), Some(plural), Some(kind)) = parts else { return Ok(None) };
    let is_namespaced = text("/spec/scope").as_deref() == Some("Namespaced");
    let versions = definition.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    let mut versions = versions.into_iter().flatten();
    let Some(version) = versions.find(|version| version["storage"] == true) else {
        return Ok(None);
    };
    let schema =
        version.pointer_mut("/schema/openAPIV3Schema").map(Value::take).unwrap_or_default();
    let version = version["name"].as_str().unwrap_or_default();
    let gvk = GroupVersionKind::gvk(&group, version, &kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, &plural);
    let mut found = CustomKind { group, plural, kind, is_namespaced, schema, objects: None };
    let counted: OptionFuture<_> =
        (is_namespaced && found.is_reconciled(rights)).then(|| objects(asked, &resource)).into();
    found.objects = counted.await.flatten();
    Ok(Some(found))
}

/// The numbers of objects by their namespaces: of the first ones, and of one more elsewhere. `None` if they
/// cannot be read.
async fn objects(asked: &Asked, resource: &ApiResource) -> Option<BTreeMap<String, usize>> {
    let api: Api<DynamicObject> = Api::all_with(asked.client.clone(), resource);
    let page = api.list_metadata(&ListParams::default().limit(SAMPLE)).await.ok()?;
    let mut counts = BTreeMap::new();
    let is_whole = page.metadata.continue_.is_none_or(|token| token.is_empty());
    let mut count =
        |namespace: Option<String>| *counts.entry(namespace.unwrap_or_default()).or_insert(0) += 1;
    page.items.into_iter().for_each(|one| count(one.metadata.namespace));
    if let (false, 1, Some((first, _))) = (is_whole, counts.len(), counts.first_key_value()) {
        let elsewhere =
            ListParams::default().limit(1).fields(&format!("metadata.namespace!={first}"));
        let page = api.list_metadata(&elsewhere).await.ok()?;
        page.items.into_iter().for_each(|one| {
            *counts.entry(one.metadata.namespace.unwrap_or_default()).or_insert(0) += 1
        });
    }
    Some(counts)
}
