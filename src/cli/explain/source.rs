//! The sources of a policy: a file, standard input, the cluster.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::args::ExplainArgs;
use crate::{
    cli::cluster::{Cluster, ClusterError, ObjectName},
    policy::{self, BadDocument, Checked, Draft, ShardingDraft, object_of},
};

/// The argument that stands for the policy in the cluster.
const CLUSTER: &str = "cluster";

/// The reason why there is no policy.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum BadSource {
    #[error("no policy is chosen: give --pod or --shard, and --policy if it is in a file")]
    Unnamed,
    #[error("{}", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    #[error("{}", .0.display())]
    Document(PathBuf, #[source] BadDocument),
    #[error("{} has {}: choose one of its ShardingConfigs by --shard", .0.display(), .1)]
    Which(PathBuf, String),
    #[error("in the cluster: {0}")]
    Config(String),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// The policy by which a request is explained.
pub(super) async fn of_request(
    args: &ExplainArgs,
    cluster: &Cluster,
) -> Result<ShardingDraft, BadSource> {
    match (&args.pod, &args.shard, &args.policy) {
        (Some(pod), ..) => of_pod(pod, args, cluster).await,
        (None, Some(shard), Some(path)) => Text::read(path)?.draft(shard, args),
        (None, Some(shard), None) => of_cluster(shard, args, cluster).await,
        (None, None, _) => Err(BadSource::Unnamed),
    }
}

/// The policy of the shard that gets a review, and the configs among which its siblings are.
pub(super) async fn of_review(
    args: &ExplainArgs,
    cluster: &Cluster,
) -> Result<(ShardingDraft, Vec<Checked>), BadSource> {
    if let (Some(shard), Some(path)) = (&args.shard, &args.policy) {
        let text = Text::read(path)?;
        return Ok((text.draft(shard, args)?, text.beside(shard, args)?));
    }
    let own = of_request(args, cluster).await?;
    let configs = cluster.configs(Some(&own.config.object.namespace)).await?;
    Ok((own, configs))
}

/// The two policies of a change.
pub(super) async fn of_change(
    args: &ExplainArgs,
    [old, new]: [&Path; 2],
    cluster: &Cluster,
) -> Result<[ShardingDraft; 2], BadSource> {
    let text = |path: &Path| match path.to_str() {
        Some(CLUSTER) => Ok(None),
        _ => Text::read(path).map(Some),
    };
    let (old, new) = (text(old)?, text(new)?);
    let draft = async |one: &Option<Text>, other: &Option<Text>| {
        let name = match (&args.shard, one.as_ref().or(other.as_ref())) {
            (Some(name), _) => name.clone(),
            (None, Some(text)) => text.sole()?,
            (None, None) => return Err(BadSource::Unnamed),
        };
        match one {
            Some(text) => text.draft(&name, args),
            None => of_cluster(&name, args, cluster).await,
        }
    };
    Ok([draft(&old, &new).await?, draft(&new, &old).await?])
}

/// The content of a file.
struct Text {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Text {
    /// Reads a file; `-` is standard input.
    fn read(path: &Path) -> Result<Self, BadSource> {
        let mut bytes = Vec::new();
        let read = match path.to_str() {
            Some("-") => io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes),
            _ => fs::read(path),
        };
        let bytes = read.map_err(|error| BadSource::Unreadable(path.to_owned(), error))?;
        Ok(Self { path: path.to_owned(), bytes })
    }

    fn draft(&self, name: &ObjectName, args: &ExplainArgs) -> Result<ShardingDraft, BadSource> {
        let namespace = args.pod_namespace.as_deref().or(name.namespace.as_deref());
        policy::from_documents(&self.bytes, &name.name, namespace)
            .map_err(|error| BadSource::Document(self.path.clone(), error))
    }

    /// All configs of the namespace of the one of this name.
    fn beside(&self, name: &ObjectName, args: &ExplainArgs) -> Result<Vec<Checked>, BadSource> {
        let namespace = args.pod_namespace.as_deref().or(name.namespace.as_deref());
        policy::all_of(&self.bytes, &name.name, namespace)
            .map_err(|error| BadSource::Document(self.path.clone(), error))
    }

    /// The name of its only ShardingConfig.
    fn sole(&self) -> Result<ObjectName, BadSource> {
        let names = policy::names(&self.bytes)
            .map_err(|error| BadSource::Document(self.path.clone(), error))?;
        match &names[..] {
            [(namespace, name)] => {
                Ok(ObjectName { namespace: namespace.clone(), name: name.clone() })
            }
            [] => Err(BadSource::Which(self.path.clone(), "no ShardingConfig".to_owned())),
            several => {
                let names: Vec<_> = several.iter().map(|(_, name)| name.as_str()).collect();
                let has = format!("several ShardingConfigs, {}", names.join(", "));
                Err(BadSource::Which(self.path.clone(), has))
            }
        }
    }
}

/// The namespace of a name: its own, else the pod's, else the kubeconfig's.
async fn namespace_of(
    name: &ObjectName,
    args: &ExplainArgs,
    cluster: &Cluster,
) -> Result<String, BadSource> {
    match name.namespace.as_ref().or(args.pod_namespace.as_ref()) {
        Some(namespace) => Ok(namespace.clone()),
        None => Ok(cluster.default_namespace().await?),
    }
}

async fn of_cluster(
    shard: &ObjectName,
    args: &ExplainArgs,
    cluster: &Cluster,
) -> Result<ShardingDraft, BadSource> {
    let namespace = namespace_of(shard, args, cluster).await?;
    let configs = cluster.configs(Some(&namespace)).await?;
    let name = &*shard.name;
    let found = configs.iter().find(|config| &*object_of(config).name == name);
    let found = found.ok_or_else(|| {
        let others: Vec<_> = configs.iter().map(|config| &*object_of(config).name).collect();
        let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        BadSource::Config(format!(
            "no ShardingConfig of namespace {namespace} is named {name:?}, there is {others}"
        ))
    })?;
    match found {
        Ok(Draft::Sharding(draft)) => Ok(draft.clone()),
        Ok(Draft::Root(_)) => Err(BadSource::Config(format!(
            "ShardingConfig {namespace}/{name} is a root, which has no pods: name one of its children"
        ))),
        Err(why) => Err(BadSource::Config(why.to_string())),
    }
}

/// The policy of a pod, chosen as its proxy does.
async fn of_pod(
    pod: &ObjectName,
    args: &ExplainArgs,
    cluster: &Cluster,
) -> Result<ShardingDraft, BadSource> {
    let namespace = namespace_of(pod, args, cluster).await?;
    let labels = cluster.pod_labels(&namespace, &pod.name).await?;
    let configs = cluster.configs(Some(&namespace)).await?;
    let chosen = policy::choose(&configs, &labels, &namespace, None);
    chosen.cloned().map_err(|why| BadSource::Config(why.to_string()))
}
