//! A ConfigMap of 1 MB.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

use crate::print;

const MEGABYTE: usize = 1_000_000;

/// The ConfigMap to create
#[derive(Parser)]
pub(crate) struct Args {
    /// The kubeconfig
    #[arg(long)]
    kubeconfig: PathBuf,
    /// The namespace
    #[arg(long)]
    namespace: String,
    /// Its name
    #[arg(long)]
    name: String,
    /// Its label `team`
    #[arg(long)]
    team: String,
}

/// Creates it, and reads it again.
pub(crate) fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(upload(args))
}

async fn upload(args: &Args) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig)?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = None;
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config)?, &args.namespace);
    let metadata = ObjectMeta {
        name: Some(args.name.clone()),
        labels: Some([("team".to_owned(), args.team.clone())].into()),
        ..ObjectMeta::default()
    };
    let data = [("large".to_owned(), "x".repeat(MEGABYTE))].into();
    let large = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    maps.create(&PostParams::default(), &large).await?;
    let stored = maps.get(&args.name).await?.data.context("it has data")?;
    let bytes = stored.get("large").map_or(0, String::len);
    print(&json!({ "event": "uploaded", "bytes": bytes }))
}
