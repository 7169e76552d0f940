//! `ctrlmesh explain`: the effect on a request, the shard that answers a review, and the objects that a change of
//! policy would move to another shard. It uses the proxy's own decision code.

mod args;
mod change;
mod error;
mod moves;
mod observe;
mod request;
mod review;
mod source;

use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use tokio::runtime;

use self::args::Asked;
use self::request::Lines;
pub use self::{args::ExplainArgs, error::ExplainError, review::BadReview, source::BadSource};
pub use super::cluster::ClusterError;
use super::{cluster::Cluster, handover};
use ctrlmesh_base::cluster::chain;
use ctrlmesh_policy::{ByResource, Fence, ObjectSet, Sharding, ShardingDraft};

/// Prints the explanation. Fails with [`ExplainError`].
pub fn run(args: &ExplainArgs) -> Result<(), ExplainError> {
    // One thread is enough: it waits for one answer at a time.
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (text, rest) = runtime.block_on(explain(args))?;
    io::stdout().lock().write_all(text.as_bytes())?;
    rest.map_or(Ok(()), Err)
}

/// The pods of a shard of the cluster that do not show its written boundary. Each pod comes with the claim that
/// stands in the way.
async fn handed_over(args: &ExplainArgs, cluster: &Cluster, draft: &ShardingDraft) -> String {
    let mut lines = Lines::default();
    if args.policy.is_none() {
        let pod = args.pod.as_ref().map(|pod| &*pod.name);
        match handover::unsettled(cluster, draft, pod).await {
            Ok(unsettled) => unsettled.iter().for_each(|says| lines.add("handover", says)),
            Err(error) => lines.add("handover", &format!("is not known: {}", chain(&error))),
        }
    }
    lines.0
}

/// The explanation, and the error if it is incomplete.
async fn explain(args: &ExplainArgs) -> Result<(String, Option<ExplainError>), ExplainError> {
    let cluster = Cluster::default();
    if let Some(pod) = &args.observe {
        return Ok((observe::explain(&cluster, pod).await?, None));
    }
    if let (Some(Asked::Review), Some(path)) = (&args.asked, &args.target) {
        let (own, configs) = source::of_review(args, &cluster).await?;
        let siblings = cluster.siblings(&own, &configs).await?;
        let text = review::explain(&own.config.object, siblings.as_ref(), Path::new(path))
            .map_err(|error| ExplainError::Review(path.into(), error))?;
        return Ok((text, None));
    }
    if let (Some(Asked::Request(method)), Some(target)) = (&args.asked, &args.target) {
        let draft = source::of_request(args, &cluster).await?;
        let mut policy = cluster.resolve(&draft).await?;
        policy.fence = Arc::new(Fence::clone(&policy.fence).or_mode(args.fence));
        let mut text = request::explain(&policy, method, target)
            .map_err(|error| ExplainError::Target(target.clone(), error))?;
        text.push_str(&handed_over(args, &cluster, &draft).await);
        return Ok((text, None));
    }
    let Some([old, new]) = args.diff.as_deref() else { return Err(BadSource::Unnamed.into()) };
    let changes = source::of_change(args, [old, new], &cluster).await?;
    let (mut text, mut rest) = (String::new(), None);
    let has_several = changes.len() > 1;
    for (name, [old, new]) in changes {
        let Some([old, new]) = both(&cluster, [old, new]).await? else { continue };
        let (more, missing) = change::explain(&cluster, &old, &new, args.all).await?;
        if has_several {
            text.push_str(&format!("# shard {name}\n"));
        }
        text.push_str(&more);
        rest = rest.or(missing);
    }
    Ok((text, rest))
}

/// A shard before and after. Where it is not there, it has nothing of what it limits elsewhere.
async fn both(
    cluster: &Cluster,
    drafts: [Option<ShardingDraft>; 2],
) -> Result<Option<[Arc<Sharding>; 2]>, ClusterError> {
    let mut found = [None, None];
    for (found, draft) in found.iter_mut().zip(&drafts) {
        if let Some(draft) = draft {
            *found = Some(cluster.resolve(draft).await?.sharding);
        }
    }
    let nothing = |of: &Arc<Sharding>| {
        let area = of.area();
        let pieces = area.pieces().map(|(rule, _)| (rule.clone(), Some(ObjectSet::nothing())));
        of.within(&ByResource::new(pieces))
    };
    Ok(match found {
        [Some(old), Some(new)] => Some([old, new]),
        [Some(old), None] => Some([Arc::clone(&old), nothing(&old)]),
        [None, Some(new)] => Some([nothing(&new), new]),
        [None, None] => None,
    })
}
