//! The cluster of the user's kubeconfig.
//!
//! Hides the client, which is created at its first use, and paging. Of policies it knows only the
//! labels that they need.

use std::{
    collections::BTreeMap, convert::Infallible, error::Error, fmt, io, str::FromStr, time::Duration,
};

use http::Request;
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Namespace, Pod},
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Preconditions},
    discovery::{Discovery, verbs},
};
use serde::de::DeserializeOwned;
use tokio::{sync::OnceCell, time::timeout};

use ctrlmesh_api::ObservedRequests;
use ctrlmesh_base::sidecar::ADMIN_PORT;
use ctrlmesh_net::tls;
use ctrlmesh_policy::{
    Checked, ControllerShards, Kind, NamespaceLabels, Policy, ShardingDraft, draft, shard_of,
};

const PAGE: u32 = 500;
/// The time that a proxy has to answer: its pod may stand still.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Cluster {
    client: OnceCell<Client>,
    namespaces: OnceCell<NamespaceLabels>,
}

impl Cluster {
    /// The namespace of names without one.
    pub(super) async fn default_namespace(&self) -> Result<String, ClusterError> {
        Ok(self.client().await?.default_namespace().to_owned())
    }

    pub(super) async fn pod_labels(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<BTreeMap<String, String>, ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client().await?, namespace);
        let pod = pods.get_metadata(name).await;
        let pod = pod.map_err(|error| failed(format!("pod {namespace}/{name}"), error))?;
        Ok(pod.metadata.labels.unwrap_or_default())
    }

    /// All ShardingConfigs of a namespace, or of all, each checked by itself.
    pub(super) async fn configs(
        &self,
        namespace: Option<&str>,
    ) -> Result<Vec<Checked>, ClusterError> {
        let all = self.config_objects(namespace).await?;
        Ok(all.iter().map(|config| draft(Kind::ShardingConfig, config)).collect())
    }

    /// The ShardingConfigs of a namespace, or of all, as they are stored.
    pub(super) async fn config_objects(
        &self,
        namespace: Option<&str>,
    ) -> Result<Vec<DynamicObject>, ClusterError> {
        let kind = Kind::ShardingConfig.api_resource();
        let client = self.client().await?;
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &kind),
            None => Api::all_with(client, &kind),
        };
        let list = api.list(&ListParams::default()).await;
        let list = list.map_err(|error| failed(within(&kind.plural, namespace), error))?;
        Ok(list.items)
    }

    /// The objects of a kind with a label, in a namespace or in all.
    pub(super) async fn labelled<K>(
        &self,
        namespace: Option<&str>,
        label: &str,
        plural: &str,
    ) -> Result<Vec<K>, ClusterError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + fmt::Debug,
    {
        let client = self.client().await?;
        let api: Api<K> = match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let list = api.list(&ListParams::default().labels(label)).await;
        Ok(list.map_err(|error| failed(within(plural, namespace), error))?.items)
    }

    /// Deletes a pod at once, if it is the one with this uid.
    pub(super) async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<(), ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client().await?, namespace);
        let only = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(only),
            ..DeleteParams::default()
        };
        let deleted = pods.delete(name, &params).await;
        let asked = || format!("the deletion of pod {namespace}/{name}");
        deleted.map(drop).map_err(|error| failed(asked(), error))
    }

    /// The policy, with the current labels of the namespaces, which are listed only if it needs
    /// them.
    pub(super) async fn resolve(&self, draft: &ShardingDraft) -> Result<Policy, ClusterError> {
        if let Ok(policy) = draft.resolve(None) {
            return Ok(policy);
        }
        let known = self.namespaces.get_or_try_init(|| self.list_namespaces()).await?;
        draft.resolve(Some(known)).map_err(|error| unavailable("namespaces".into(), error))
    }

    /// The shards of the controller of `own`, with the current labels of the namespaces. The namespaces are
    /// listed only if one of the shards needs them. `None` if the controller has no webhook.
    pub(super) async fn siblings(
        &self,
        own: &ShardingDraft,
        configs: &[Checked],
    ) -> Result<Option<ControllerShards>, ClusterError> {
        let needs = |checked| shard_of(checked).is_some_and(ShardingDraft::needs_namespaces);
        let needs_namespaces = own.needs_namespaces() || configs.iter().any(needs);
        let known = match own.webhook.is_some() && needs_namespaces {
            true => Some(self.namespaces.get_or_try_init(|| self.list_namespaces()).await?),
            false => None,
        };
        ControllerShards::of(own, configs, known)
            .map_err(|error| unavailable("namespaces".into(), error))
    }

    /// The labels of all namespaces, as they are now.
    pub(super) async fn list_namespaces(&self) -> Result<NamespaceLabels, ClusterError> {
        let api: Api<Namespace> = Api::all(self.client().await?);
        let mut namespaces = NamespaceLabels::new();
        let listed = all(&api, |meta| {
            let labels = meta.labels.unwrap_or_default();
            namespaces.insert(meta.name.unwrap_or_default(), labels.into());
        });
        let listed = listed.await;
        listed.map_err(|error| failed("namespaces, for their labels".into(), error))?;
        Ok(namespaces)
    }

    /// All resources that can be listed, each in its most stable version, by group and plural.
    pub(super) async fn resources(
        &self,
    ) -> Result<BTreeMap<(String, String), ApiResource>, ClusterError> {
        let discovery = Discovery::new(self.client().await?).run_aggregated().await;
        let discovery = discovery.map_err(|error| failed("its resources".into(), error))?;
        let mut resources = BTreeMap::new();
        for group in discovery.groups() {
            for (resource, may) in group.resources_by_stability() {
                if may.supports_operation(verbs::LIST) {
                    let key = (resource.group.clone(), resource.plural.clone());
                    resources.entry(key).or_insert(resource);
                }
            }
        }
        Ok(resources)
    }

    /// The metadata of an object.
    pub(super) async fn metadata(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<ObjectMeta, ClusterError> {
        let client = self.client().await?;
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let found = api.get_metadata(name).await;
        let asked = || {
            format!(
                "{} {}{name}",
                resource.plural,
                namespace.map(|at| format!("{at}/")).unwrap_or_default()
            )
        };
        found.map(|found| found.metadata).map_err(|error| failed(asked(), error))
    }

    /// What the controller of a pod has asked of the API server, by its proxy.
    pub(super) async fn observed(
        &self,
        namespace: &str,
        pod: &str,
    ) -> Result<ObservedRequests, ClusterError> {
        let asked = || format!("/observed of pod {namespace}/{pod}");
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{ADMIN_PORT}/proxy/observed");
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|error| failed(asked(), kube::Error::HttpError(error)))?;
        let client = self.client().await?;
        match timeout(ANSWERS_WITHIN, client.request(request)).await {
            Ok(answered) => answered.map_err(|error| failed(asked(), error)),
            Err(_) => {
                let why = format!("the proxy did not answer within {ANSWERS_WITHIN:?}");
                Err(unavailable(asked(), io::Error::new(io::ErrorKind::TimedOut, why)))
            }
        }
    }

    /// Calls `each` with the metadata of all objects of a resource, in the order of their names.
    pub(super) async fn list(
        &self,
        resource: &ApiResource,
        each: impl FnMut(ObjectMeta),
    ) -> Result<(), ClusterError> {
        let api: Api<DynamicObject> = Api::all_with(self.client().await?, resource);
        let listed = all(&api, each).await;
        listed.map_err(|error| failed(format!("all {}", resource.plural), error))
    }

    async fn client(&self) -> Result<Client, ClusterError> {
        let client = self.client.get_or_try_init(|| async {
            // The only process-wide setting: the kube crate's TLS requires it.
            let _ = rustls::crypto::CryptoProvider::install_default(tls::provider_value());
            let config = kube::Config::infer().await;
            let config = config.map_err(|error| unavailable("the kubeconfig".into(), error))?;
            Client::try_from(config).map_err(|error| unavailable("the kubeconfig".into(), error))
        });
        client.await.cloned()
    }
}

/// The name of an object, with its namespace if that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectName {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl FromStr for ObjectName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, text),
        };
        Ok(Self { namespace, name: name.to_owned() })
    }
}

/// A request to the cluster that failed.
#[derive(Debug, thiserror::Error)]
#[error("{asked}")]
pub struct ClusterError {
    asked: String,
    #[source]
    source: Box<dyn Error + Send + Sync>,
    pub(super) exit_code: u8,
}

/// Lists page by page.
async fn all<K>(api: &Api<K>, mut each: impl FnMut(ObjectMeta)) -> Result<(), kube::Error>
where
    K: Clone + DeserializeOwned + fmt::Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list_metadata(&params).await?;
        page.items.into_iter().for_each(|item| each(item.metadata));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

fn within(plural: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("{plural} of namespace {namespace}"),
        None => format!("{plural} of all namespaces"),
    }
}

fn failed(what: String, error: kube::Error) -> ClusterError {
    let exit_code = match &error {
        kube::Error::Api(status) => match status.code {
            401 | 403 => 77,
            404 => 64,
            _ => 69,
        },
        _ => 69,
    };
    ClusterError {
        asked: format!("the cluster was asked for {what}"),
        source: error.into(),
        exit_code,
    }
}

fn unavailable(what: String, error: impl Error + Send + Sync + 'static) -> ClusterError {
    let asked = format!("the cluster cannot be asked: {what}");
    ClusterError { asked, source: error.into(), exit_code: 69 }
}
