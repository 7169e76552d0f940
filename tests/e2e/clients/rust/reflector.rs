//! A reflector of any resource. Prints `list` with all objects whenever its store was filled again,
//! `wire` for each event that it was told after that, `watch-error`, and for a line of standard
//! input `store` with what the store holds.

use std::{
    io::{BufRead, stdin},
    path::PathBuf,
    thread,
};

use anyhow::{Context, Result};
use clap::Parser;
use futures_util::{StreamExt, pin_mut};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{ApiResource, DynamicObject},
    client::{Body, ClientBuilder},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
    runtime::{
        WatchStreamExt,
        reflector::{self, Store},
        watcher::{self, Event, watcher},
    },
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tower::util::MapRequestLayer;

use crate::print;

/// Lines of standard input that wait for an answer.
const QUESTIONS: usize = 8;

/// The reflected resource, and how it is reflected
#[derive(Parser)]
pub(crate) struct Args {
    /// The kubeconfig
    #[arg(long)]
    kubeconfig: PathBuf,
    /// VERSION/KIND of the core group, or GROUP/VERSION/KIND
    #[arg(long, default_value = "v1/ConfigMap")]
    kind: String,
    /// Label selector
    #[arg(long, default_value = "")]
    selector: String,
    /// Field selector
    #[arg(long, default_value = "")]
    field_selector: String,
    /// Shard selector (KEP-5866), which is added to the requests behind the crate
    #[arg(long)]
    shard_selector: Option<String>,
    /// One namespace instead of all
    #[arg(long)]
    namespace: Option<String>,
    /// Stream the initial list (KEP-3157)
    #[arg(long)]
    streaming: bool,
}

/// Runs until standard input ends.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (ask, asked) = mpsc::channel(QUESTIONS);
    thread::spawn(move || {
        for _ in stdin().lock().lines().map_while(Result::ok) {
            // Who is asked has ended.
            let _ = ask.blocking_send(());
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(reflect(args, asked))
}

async fn reflect(args: &Args, mut asked: mpsc::Receiver<()>) -> Result<()> {
    let (group_version, kind) = args.kind.rsplit_once('/').context("--kind is VERSION/KIND")?;
    let (group, version) = group_version.rsplit_once('/').unwrap_or(("", group_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let client = client(args).await?;
    let api: Api<DynamicObject> = match &args.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    let mut config = watcher::Config::default();
    if args.streaming {
        config = config.streaming_lists();
    }
    if !args.selector.is_empty() {
        config = config.labels(&args.selector);
    }
    if !args.field_selector.is_empty() {
        config = config.fields(&args.field_selector);
    }
    let writer = reflector::store::Writer::new(resource);
    let store = writer.as_reader();
    let told = reflector::reflector(writer, watcher(api, config)).default_backoff();
    pin_mut!(told);
    loop {
        tokio::select! {
            question = asked.recv() => match question {
                Some(()) => print(&json!({ "event": "store", "objects": objects(&store) }))?,
                None => return Ok(()),
            },
            event = told.next() => match event.context("a watcher never ends")? {
                Ok(event) => tell(&event, &store)?,
                Err(error) => {
                    print(&json!({ "event": "watch-error", "why": error.to_string() }))?;
                }
            },
        }
    }
}

async fn client(args: &Args) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig)?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.proxy_url = None;
    let Some(selector) = &args.shard_selector else { return Ok(Client::try_from(config)?) };
    let selector = utf8_percent_encode(selector, NON_ALPHANUMERIC).to_string();
    let shard = MapRequestLayer::new(move |mut request: http::Request<Body>| {
        let separator = if request.uri().query().is_some() { '&' } else { '?' };
        let target = format!("{}{separator}shardSelector={selector}", request.uri());
        // What was a URI is one with a longer query.
        if let Ok(uri) = target.parse() {
            *request.uri_mut() = uri;
        }
        request
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&shard).build())
}

fn tell(event: &Event<DynamicObject>, store: &Store<DynamicObject>) -> Result<()> {
    let (kind, object) = match event {
        Event::Init | Event::InitApply(_) => return Ok(()),
        Event::InitDone => return print(&json!({ "event": "list", "objects": objects(store) })),
        Event::Apply(object) => ("APPLIED", object),
        Event::Delete(object) => ("DELETED", object),
    };
    print(&json!({ "event": "wire", "type": kind, "object": shown(object) }))
}

fn objects(store: &Store<DynamicObject>) -> Vec<Value> {
    store.state().iter().map(|object| shown(object)).collect()
}

fn shown(object: &DynamicObject) -> Value {
    let held = json!({ "metadata": object.metadata, "data": object.data });
    let digest = Sha256::digest(held.to_string());
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let data = object.data.get("data").or_else(|| object.data.get("spec"));
    json!({
        "uid": object.uid(),
        "rv": object.resource_version(),
        "ns": object.namespace(),
        "name": object.name_any(),
        "labels": object.metadata.labels,
        "data": data,
        "digest": digest,
    })
}
