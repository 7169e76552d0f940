//! `ctrlmesh shard`: a workload as its chart installs it becomes the shards of a root; `ctrlmesh unshard` takes
//! that back.
//!
//! `gather` asks, [`judge()`] decides by the facts alone, `root` writes the text that is printed and applied,
//! `apply` and `undo` write it, and `progress` tells when each shard has what it is to have.

mod apply;
mod args;
mod before;
mod error;
mod facts;
mod gather;
mod judge;
mod progress;
mod read;
mod root;
mod undo;

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use tokio::runtime;

pub use self::{
    args::{BadWorkload, By, ShardArgs, UnshardArgs, WorkloadName},
    error::ShardError,
};
use self::{
    error::Said,
    facts::Facts,
    judge::{Judgement, Wanted, Weight, judge},
};
use crate::doctor::collect::Asked;
use ctrlmesh_base::cluster::{OwnAccess, chain};

/// The least number of shards that is proposed.
const LEAST: u32 = 2;

/// Prints how a workload is sharded, and does it with `--apply`. Fails with [`ShardError`].
pub fn run(args: &ShardArgs) -> Result<(), ShardError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ShardError::Runtime)?.block_on(shard(args))
}

/// Takes back what [`run`] has done. Fails with [`ShardError`].
pub fn run_back(args: &UnshardArgs) -> Result<(), ShardError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ShardError::Runtime)?.block_on(async {
        let asked = asked().await?;
        let namespace =
            args.namespace.as_deref().unwrap_or_else(|| asked.client.default_namespace());
        let mut said = Said::within(args.timeout());
        undo::undo(&asked, namespace, &args.workload, &mut said).await
    })
}

async fn shard(args: &ShardArgs) -> Result<(), ShardError> {
    let asked = asked().await?;
    let namespace = args.namespace.as_deref().unwrap_or_else(|| asked.client.default_namespace());
    let facts = Box::pin(gather::gather(&asked, namespace, &args.workload)).await?;
    let wanted = wanted(args, &facts);
    let judgement = judge(&facts, &wanted);
    io::stdout().lock().write_all(text(&facts, &judgement, &wanted).as_bytes())?;
    if judgement.is_refused() {
        return Err(ShardError::Refused);
    }
    if !args.apply {
        return Ok(());
    }
    may_apply(&facts, &judgement)?;
    let mut said = Said::within(args.timeout());
    apply::apply(&asked, &facts, &judgement, &wanted, &mut said).await
}

/// Fails if its locks are not known because they may not be read: all shards would wait for one.
fn may_apply(facts: &Facts, judgement: &Judgement) -> Result<(), ShardError> {
    let is_new = before::root_of(facts).is_none();
    match &facts.leases {
        Err(why) if is_new && judgement.locks.is_empty() => Err(ShardError::Locks(why.clone())),
        _ => Ok(()),
    }
}

async fn asked() -> Result<Asked, ShardError> {
    let client = OwnAccess::Environment.client().await;
    Ok(Asked { client: client.map_err(|error| ShardError::Cluster(chain(&error)))? })
}

/// The layout that is asked for: by default as many shards as there are replicas, or were before it was scaled
/// to 0 by an earlier run.
fn wanted(args: &ShardArgs, facts: &Facts) -> Wanted {
    let before = before::root_of(facts).and_then(before::read).and_then(|before| before.replicas);
    let replicas = match facts.workload.replicas() {
        0 => before.unwrap_or(LEAST),
        replicas => replicas,
    };
    let shards = args.shards.unwrap_or_else(|| replicas.clamp(LEAST, 32));
    Wanted { shards, by: args.by, resources: args.resources.clone() }
}

/// The remarks as comments, the root and the patch.
fn text(facts: &Facts, judgement: &Judgement, wanted: &Wanted) -> String {
    let workload = &facts.workload;
    let mut text = format!(
        "# {}: {} now, {} by {}\n",
        workload.named(),
        counted(workload.replicas(), "replica"),
        counted(wanted.shards, "shard"),
        wanted.by.as_str().to_lowercase()
    );
    for remark in &judgement.remarks {
        let weight = match remark.weight {
            Weight::Refused => "refused",
            Weight::Warning => "warning",
            Weight::Unknown => "unknown",
        };
        let _ = writeln!(text, "# {weight}: {}", remark.says);
        if !remark.fix.is_empty() {
            let _ = writeln!(text, "#   fix: {}", remark.fix);
        }
    }
    match before::root_of(facts) {
        Some(_) => text.push_str(&format!(
            "# ShardingConfig {}/{} is there from an earlier run, and stays as it is\n",
            workload.namespace, workload.target.name
        )),
        None => text.push_str(&root::text(workload, judgement, wanted)),
    }
    let _ = writeln!(
        text,
        "---\n# The patch of {}. Its pods without a proxy are stopped first.",
        workload.named()
    );
    text.push_str(&root::patch_text(workload, wanted));
    text
}

fn counted(count: u32, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
