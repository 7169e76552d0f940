//! Follows objects with the `kube` crate, unmodified, as a controller does. Prints what it sees as
//! JSON lines: without a subcommand the ConfigMaps of a namespace, from a pod: `list` with the
//! names, then `wire` for each event of the watch; with `reflector` what a reflector's store is
//! told, with `upload` the bytes that it read again. Its standard input's end ends it.

mod reflector;
mod upload;

use std::{
    io::{Read, Write, stdin, stdout},
    thread,
};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use futures_util::{TryStreamExt, future, pin_mut};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// A client of the crate `kube` in a pod
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// URL of the API server, instead of the one that the kubelet names
    #[arg(long)]
    server: Option<String>,
    /// The namespace
    #[arg(long, default_value = "default")]
    namespace: String,
}

#[derive(Subcommand)]
enum Command {
    /// Keep a reflector, and print what its store is notified
    Reflector(reflector::Args),
    /// Create a ConfigMap of 1 MB, and read it again
    Upload(upload::Args),
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    match &cli.command {
        Some(Command::Reflector(args)) => return reflector::run(args),
        Some(Command::Upload(args)) => return upload::run(args),
        None => {}
    }
    let mut config = Config::incluster()?;
    if let Some(server) = &cli.server {
        config.cluster_url = server.parse().with_context(|| format!("--server {server}"))?;
    }
    let (end, ended) = oneshot::channel();
    thread::spawn(move || {
        // Its end is what counts, whether it is read or broken.
        let _ = stdin().read_to_end(&mut Vec::new());
        let _ = end.send(());
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let maps = Api::namespaced(Client::try_from(config)?, &cli.namespace);
        let followed = follow(&maps);
        pin_mut!(followed);
        match future::select(followed, ended).await {
            future::Either::Left((followed, _)) => followed,
            future::Either::Right(_) => Ok(()),
        }
    })
}

async fn follow(maps: &Api<ConfigMap>) -> Result<()> {
    let list = maps.list(&ListParams::default()).await?;
    let names: Vec<String> = list.items.iter().map(ResourceExt::name_any).collect();
    print(&json!({ "event": "list", "names": names }))?;
    let from = list.metadata.resource_version.context("a list has a resourceVersion")?;
    let events = maps.watch(&WatchParams::default(), &from).await?;
    pin_mut!(events);
    while let Some(event) = events.try_next().await? {
        let (kind, name) = match event {
            WatchEvent::Added(map) => ("ADDED", map.name_any()),
            WatchEvent::Modified(map) => ("MODIFIED", map.name_any()),
            WatchEvent::Deleted(map) => ("DELETED", map.name_any()),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        };
        print(&json!({ "event": "wire", "type": kind, "object": { "name": name } }))?;
    }
    Ok(())
}

fn print(line: &Value) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
