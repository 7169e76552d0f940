//! The sources of a policy: a file, standard input, the cluster.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::args::ExplainArgs;
use crate::cluster::{Cluster, ClusterError, ObjectName};
use ctrlmesh_policy as policy;
use ctrlmesh_policy::{BadDocument, Checked, Draft, ShardingDraft, object_of};

/// The argument that stands for the policy in the cluster.
const CLUSTER: &str = "cluster";

/// The reason why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum BadSource {
    #[error("no policy is chosen: give --pod or --shard, and --policy if it is in a file")]
    Unnamed,
    #[error("{}", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    #[error("{}", .0.display())]
    Document(PathBuf, #[source] BadDocument),
    #[error("{} has no ShardingConfig: give a file with one", .0.display())]
    Which(PathBuf),
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

/// A change of one shard: its name, and its policies before and after. It is `None` where the shard is not
/// there.
pub(super) type Change = (String, [Option<ShardingDraft>; 2]);

/// The changes between two sources: of the one shard that is named, or that each has; else of all.
pub(super) async fn of_change(
    args: &ExplainArgs,
    [old, new]: [&Path; 2],
    cluster: &Cluster,
) -> Result<Vec<Change>, BadSource> {
    let text = |path: &Path| match path.to_str() {
        Some(CLUSTER) => Ok(None),
        _ => Text::read(path).map(Some),
    };
    let texts = [text(old)?, text(new)?];
    let draft = async |one: &Option<Text>, name: &ObjectName| match one {
        Some(text) => text.draft(name, args),
        None => of_cluster(name, args, cluster).await,
    };
    if let Some([old, new]) = only(args, &texts)? {
        let both = [draft(&texts[0], &old).await?, draft(&texts[1], &new).await?];
        return Ok(vec![(new.to_string(), both.map(Some))]);
    }
    let mut names = BTreeMap::new();
    for text in texts.iter().flatten() {
        names.extend(text.names()?.into_iter().map(|name| (name.to_string(), name)));
    }
    let mut changes = Vec::new();
    for (shown, name) in names {
        let mut sides = [None, None];
        for (side, text) in sides.iter_mut().zip(&texts) {
            let is_there = match text {
                Some(text) => text.names()?.iter().any(|one| one.to_string() == shown),
                None => is_in_cluster(&name, args, cluster).await?,
            };
            if is_there {
                *side = Some(draft(text, &name).await?);
            }
        }
        changes.push((shown, sides));
    }
    Ok(changes)
}

/// The names of the one shard that a change is of: the two files may name it otherwise. `None` if a file has
/// several shards, and none is named.
fn only(
    args: &ExplainArgs,
    texts: &[Option<Text>; 2],
) -> Result<Option<[ObjectName; 2]>, BadSource> {
    if let Some(name) = &args.shard {
        return Ok(Some([name.clone(), name.clone()]));
    }
    let mut names = [None, None];
    for (name, text) in names.iter_mut().zip(texts) {
        let Some(text) = text else { continue };
        let mut of_file = text.names()?;
        *name = of_file.pop();
        match name {
            None => return Err(BadSource::Which(text.path.clone())),
            Some(_) if !of_file.is_empty() => return Ok(None),
            Some(_) => {}
        }
    }
    match names {
        [Some(old), Some(new)] => Ok(Some([old, new])),
        [one, other] => match one.or(other) {
            Some(name) => Ok(Some([name.clone(), name])),
            None => Err(BadSource::Unnamed),
        },
    }
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

    /// The names of its ShardingConfigs.
    fn names(&self) -> Result<Vec<ObjectName>, BadSource> {
        let names = policy::names(&self.bytes)
            .map_err(|error| BadSource::Document(self.path.clone(), error))?;
        Ok(names.into_iter().map(|(namespace, name)| ObjectName { namespace, name }).collect())
    }
}

/// Whether a config of this name is in the cluster.
async fn is_in_cluster(
    name: &ObjectName,
    args: &ExplainArgs,
    cluster: &Cluster,
) -> Result<bool, BadSource> {
    let namespace = namespace_of(name, args, cluster).await?;
    let configs = cluster.configs(Some(&namespace)).await?;
    Ok(configs.iter().any(|config| *object_of(config).name == *name.name))
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: ExplainArgs,
    }

    fn config(name: &str, namespaces: &str) -> String {
        format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
             metadata: {{name: {name}, namespace: ops}}\n\
             spec: {{selector: {{matchLabels: {{shard: {name}}}}}, \
             limits: [{{namespaces: {{names: {namespaces}}}, clusterScoped: Exclude}}]}}\n---\n"
        )
    }

    /// The shards of a change between two files, each with whether it is there before and after.
    async fn changes(files: [&str; 2], more: &[&str]) -> Result<Vec<(String, [bool; 2])>, String> {
        let dir = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
        fs::write(&old, files[0]).unwrap();
        fs::write(&new, files[1]).unwrap();
        let [old_text, new_text] = [&old, &new].map(|path| path.to_str().unwrap());
        let args = [&["explain", "--diff", old_text, new_text], more].concat();
        let args = Command::try_parse_from(args).unwrap_or_else(|error| panic!("{error}")).args;
        let found = of_change(&args, [&old, &new], &Cluster::default()).await;
        let found = found.map_err(|error| error.to_string())?;
        let is_there = |sides: [Option<ShardingDraft>; 2]| sides.map(|side| side.is_some());
        Ok(found.into_iter().map(|(name, sides)| (name, is_there(sides))).collect())
    }

    #[tokio::test]
    async fn files_with_several_configs_are_compared_shard_by_shard() {
        let [blue, green] = [config("blue", "[a]"), config("green", "[b]")];
        let old = format!("{blue}{green}");
        let new = format!("{}{}", config("red", "[b]"), config("blue", "[a, b]"));
        let found = changes([&old, &new], &[]).await.unwrap();
        let expected =
            [("ops/blue", [true, true]), ("ops/green", [true, false]), ("ops/red", [false, true])];
        assert_eq!(found, expected.map(|(name, sides)| (name.to_owned(), sides)));
        let one = changes([&old, &new], &["--shard", "ops/blue"]).await.unwrap();
        assert_eq!(one, [("ops/blue".to_owned(), [true, true])]);
        // One config a file is one shard, however each names it.
        let one = changes([&blue, &green], &[]).await.unwrap();
        assert_eq!(one, [("ops/green".to_owned(), [true, true])]);
    }

    #[tokio::test]
    async fn bad_file_without_a_config_is_named() {
        let error = changes([&config("blue", "[a]"), "kind: Pod\napiVersion: v1\n"], &[]).await;
        let error = error.unwrap_err();
        assert!(error.ends_with("new has no ShardingConfig: give a file with one"), "{error}");
    }
}
