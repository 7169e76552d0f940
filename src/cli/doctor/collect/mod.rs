//! Collects facts from the cluster, from one pod's proxy and from the files of the local proxy. The local proxy
//! is the one in whose container this command runs. The collection judges nothing.

mod ask;
mod own;

use std::{collections::BTreeSet, env};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{
            MutatingWebhookConfiguration, ServiceReference, ValidatingWebhookConfiguration,
        },
        core::v1::{Namespace, Pod},
    },
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use serde_json::Value;

pub(crate) use self::ask::Asked;
use self::ask::Dated;
use super::{
    args::DoctorArgs,
    facts::{
        AdmissionHook, CannotLook, ClusterFacts, Facts, Looked, ManagerFacts, NamespaceFacts,
        PodFacts, Server,
    },
};
use ctrlmesh_api::keys;
use ctrlmesh_base::{
    cluster::{OwnAccess, chain},
    sidecar,
};
use ctrlmesh_inject::companions;
use ctrlmesh_policy::Kind;

/// The names that the chart gives.
pub(crate) const WEBHOOKS: &str = "ctrlmesh";
const MANAGER: &str = "ctrlmesh-manager";
const MANAGER_NAMESPACE: &str = "ctrlmesh-system";

/// The pod that was asked for.
struct Target {
    namespace: String,
    name: String,
    /// Whether this runs in the container of its proxy.
    is_own: bool,
}

/// Gathers the facts.
pub(super) async fn gather(args: &DoctorArgs) -> Facts {
    let files = own::files();
    let mut facts = Facts {
        here: Timestamp::now(),
        server: Err(CannotLook::Failed(String::new())),
        cluster: None,
        pod: None,
        files,
    };
    let asked = match OwnAccess::Environment.client().await {
        Ok(client) => Asked { client },
        Err(error) => {
            facts.server = Err(CannotLook::Failed(chain(&error)));
            return facts;
        }
    };
    let version = asked.path("/version", "/version", "").await;
    facts.here = Timestamp::now();
    facts.server = version.and_then(server);
    let own = own_pod().filter(|_| !facts.files.is_empty());
    let target = target(args, asked.client.default_namespace(), own);
    if facts.server.is_ok() {
        let manager = manager(&asked, args).await;
        let namespace = args.namespace.as_deref();
        let namespace = namespace.or_else(|| target.as_ref().map(|target| &*target.namespace));
        let namespaces = match namespace {
            Some(name) => Ok(vec![self::namespace(&asked, name).await]),
            None => namespaces(&asked).await,
        };
        let hooks = hooks(&asked).await;
        facts.cluster = Some(ClusterFacts { manager, hooks, namespaces });
    }
    // A proxy answers by loopback whether the API server does or not.
    if let Some(target) = target.filter(|target| target.is_own || facts.server.is_ok()) {
        facts.pod = Some(pod(&asked, target).await);
    }
    facts
}

/// The version of the API server by its answer.
fn server(Dated { answer, date }: Dated) -> Looked<Server> {
    let version: Option<Value> = serde_json::from_str(&answer.body).ok();
    let version = version.as_ref().and_then(|version| version["gitVersion"].as_str());
    match version {
        Some(version) => Ok(Server { version: version.to_owned(), date }),
        None => Err(CannotLook::Failed(format!("/version has the code {}", answer.code))),
    }
}

/// The name and the namespace of the pod in whose proxy's container this runs.
fn own_pod() -> Option<(String, String)> {
    let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
    Some((variable("POD_NAME")?, variable("POD_NAMESPACE")?))
}

fn target(
    args: &DoctorArgs,
    default_namespace: &str,
    own: Option<(String, String)>,
) -> Option<Target> {
    let (own_name, own_namespace) = own.unzip();
    let own_name = own_name.as_deref();
    let namespace = args.namespace.as_deref().or(own_namespace.as_deref());
    let namespace = namespace.unwrap_or(default_namespace);
    let is_here = own_namespace.as_deref() == Some(namespace);
    let name = args.pod.as_deref().or_else(|| own_name.filter(|_| is_here))?;
    let is_own = is_here && own_name == Some(name);
    Some(Target { namespace: namespace.to_owned(), name: name.to_owned(), is_own })
}

async fn manager(asked: &Asked, args: &DoctorArgs) -> ManagerFacts {
    let client = || asked.client.clone();
    let webhooks = asked.get(Api::all(client()), WEBHOOKS).await;
    let (of_service, name) = service(&webhooks);
    let namespace = args.manager_namespace.clone().or(of_service);
    let namespace = namespace.unwrap_or_else(|| MANAGER_NAMESPACE.to_owned());
    let name = name.unwrap_or_else(|| MANAGER.to_owned());
    ManagerFacts {
        has_definition: has_definition(asked).await,
        webhooks,
        deployment: asked.get(Api::namespaced(client(), &namespace), &name).await,
        lease: asked.get(Api::namespaced(client(), &namespace), &name).await,
        proxy_role: asked.get(Api::all(client()), companions::ROLE).await,
        namespace,
        name,
    }
}

/// The namespace and the name of the webhooks' Service: the manager's, by the chart.
fn service(
    webhooks: &Looked<Option<MutatingWebhookConfiguration>>,
) -> (Option<String>, Option<String>) {
    let webhooks = webhooks.as_ref().ok().and_then(Option::as_ref);
    let all = webhooks.and_then(|webhooks| webhooks.webhooks.as_ref());
    let mut services =
        all.into_iter().flatten().filter_map(|hook| hook.client_config.service.as_ref());
    let service = services.next();
    (service.map(|service| service.namespace.clone()), service.map(|service| service.name.clone()))
}

/// Whether the API server knows ShardingConfigs, by its discovery, which every account may read.
pub(crate) async fn has_definition(asked: &Asked) -> Looked<bool> {
    let kind = Kind::ShardingConfig.api_resource();
    let path = format!("/apis/{}", kind.api_version);
    let answer = asked.path(&path, &path, "").await?.answer;
    let resources: Option<Value> = serde_json::from_str(&answer.body).ok();
    match (answer.code, resources) {
        (404, _) => Ok(false),
        (200, Some(list)) => {
            let mut all = list["resources"].as_array().into_iter().flatten();
            Ok(all.any(|resource| resource["name"] == *kind.plural))
        }
        (code, _) => Err(CannotLook::Failed(format!("{path} has the code {code}"))),
    }
}

/// The Services of all admission webhooks.
async fn hooks(asked: &Asked) -> Looked<Vec<AdmissionHook>> {
    let everything = ListParams::default;
    let client = || asked.client.clone();
    let mutating = asked.list(Api::<MutatingWebhookConfiguration>::all(client()), everything());
    let validating = asked.list(Api::<ValidatingWebhookConfiguration>::all(client()), everything());
    let mutating = mutating.await?.into_iter().flat_map(|all| all.webhooks.unwrap_or_default());
    let validating = validating.await?.into_iter().flat_map(|all| all.webhooks.unwrap_or_default());
    let services = mutating
        .map(|hook| hook.client_config.service)
        .chain(validating.map(|hook| hook.client_config.service));
    let hook = |service: ServiceReference| AdmissionHook {
        namespace: service.namespace,
        service: service.name,
        port: service.port,
    };
    Ok(services.flatten().map(hook).collect())
}

/// The namespaces with a ShardingConfig or a pod that asks for injection.
async fn namespaces(asked: &Asked) -> Looked<Vec<NamespaceFacts>> {
    let client = || asked.client.clone();
    let kind = Kind::ShardingConfig.api_resource();
    let configs: Api<DynamicObject> = Api::all_with(client(), &kind);
    let configs = asked.list_metadata(configs, &plural(), ListParams::default()).await?;
    let mut names: BTreeSet<_> =
        configs.into_iter().filter_map(|config| config.metadata.namespace).collect();
    for prefix in [keys::PREFIX, keys::KRIDGE_PREFIX] {
        let params = ListParams::default().labels(&format!("{prefix}{}=true", keys::ENABLE_PROXY));
        let pods: Api<Pod> = Api::all(client());
        let pods = asked.list_metadata(pods, "pods", params).await?;
        names.extend(pods.into_iter().filter_map(|pod| pod.metadata.namespace));
    }
    let mut all = Vec::new();
    for name in names {
        all.push(namespace(asked, &name).await);
    }
    Ok(all)
}

/// The plural of ShardingConfigs as RBAC names it.
fn plural() -> String {
    let kind = Kind::ShardingConfig.api_resource();
    format!("{}.{}", kind.plural, kind.group)
}

async fn namespace(asked: &Asked, name: &str) -> NamespaceFacts {
    let client = || asked.client.clone();
    let kind = Kind::ShardingConfig.api_resource();
    let configs = Api::namespaced_with(client(), name, &kind);
    let everything = ListParams::default;
    NamespaceFacts {
        namespace: asked.get(Api::<Namespace>::all(client()), name).await,
        configs: asked.list_dynamic(configs, &plural()).await,
        pods: asked.list(Api::namespaced(client(), name), everything()).await,
        bundle: asked.get(Api::namespaced(client(), name), companions::BUNDLE_MAP).await,
        bindings: asked.list(Api::namespaced(client(), name), everything()).await,
        roles: asked.list(Api::namespaced(client(), name), everything()).await,
        services: asked.list(Api::namespaced(client(), name), everything()).await,
        network_policies: asked.list(Api::namespaced(client(), name), everything()).await,
        quotas: asked.list(Api::namespaced(client(), name), everything()).await,
        limit_ranges: asked.list(Api::namespaced(client(), name), everything()).await,
        refused: asked
            .list(Api::namespaced(client(), name), everything().fields("reason=FailedCreate"))
            .await,
        name: name.to_owned(),
    }
}

/// The pod with the answers of its proxy: from inside by loopback, else through the API server.
async fn pod(asked: &Asked, Target { namespace, name, is_own }: Target) -> PodFacts {
    let object = asked.get(Api::namespaced(asked.client.clone(), &namespace), &name).await;
    let page = async |page: &str| {
        if is_own {
            return own::page(page).await;
        }
        let port = sidecar::ADMIN_PORT;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{page}");
        let place = format!(" in namespace {namespace}");
        Ok(asked.path(&path, "pods/proxy", &place).await?.answer)
    };
    let (readyz, metrics) = (page("/readyz").await, page("/metrics").await);
    PodFacts { pod: object, readyz, metrics, namespace, name }
}

#[cfg(test)]
mod tests;
