//! The test bed on the command line: a cluster that runs until Ctrl-C, and its requirements.

use std::{
    io::{Write, stdout},
    path::PathBuf,
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use ctrlmesh_e2e::{
    ApiServer, AuditLevel, Families, Image, Node, all_clients, deps, images, kube_binary, sweep,
};
use nix::sys::signal::{SigSet, Signal};

/// Real Kubernetes clusters on this machine, each gone without a trace when it ends
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the test bed needs of this machine, where root may, or name it
    Deps,
    /// Build the Kubernetes binary, if its sources changed, and print its path
    Build,
    /// Build the clients of the tests in all languages, if their sources changed, and print their paths
    Clients,
    /// Run etcd and an API server until Ctrl-C or SIGTERM
    Apiserver(ApiserverArgs),
    /// Run a whole node until Ctrl-C or SIGTERM; needs root
    Node(NodeArgs),
    /// Build the images of the proxy and of the init container, and print their archives
    Images(ImagesArgs),
    /// Remove what killed test beds left; running ones are not touched
    Sweep,
}

#[derive(Args)]
struct ApiserverArgs {
    /// Feature gates of the API server, such as `ShardedListAndWatch=true`
    #[arg(long, value_name = "GATE=BOOL", value_delimiter = ',', value_parser = feature_gate)]
    feature_gates: Vec<(String, bool)>,
    /// Log the bodies of all requests in the audit log too
    #[arg(long)]
    audit_bodies: bool,
}

#[derive(Args)]
struct NodeArgs {
    #[command(flatten)]
    api: ApiserverArgs,
    /// Give pods and Services IPv6 addresses next to IPv4
    #[arg(long)]
    dual_stack: bool,
    /// Import this static binary as the image of the proxy
    #[arg(long, value_name = "FILE")]
    proxy: Option<PathBuf>,
    /// Import this static binary as the image of the init container
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
}

#[derive(Args)]
struct ImagesArgs {
    /// The static `ctrlmesh`
    #[arg(long, value_name = "FILE")]
    proxy: PathBuf,
    /// The static `ctrlmesh-init`
    #[arg(long, value_name = "FILE")]
    init: PathBuf,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    // Before any thread starts: a blocked signal stays pending until `wait`.
    let ends = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    ends.thread_block()?;
    match cli.command {
        Command::Deps => print(&facts("installed", deps::install()?)),
        Command::Build => print(&[("kube", kube_binary()?.display().to_string())]),
        Command::Clients => {
            print(&facts("client", all_clients()?.iter().map(|path| path.display())))
        }
        Command::Apiserver(args) => run_apiserver(&args, &ends),
        Command::Node(args) => run_node(&args, &ends),
        Command::Images(args) => {
            let images = [images::proxy(&args.proxy)?, images::init(&args.init)?];
            let archive = |image: &Image| format!("{} {}", image.name, image.archive.display());
            print(&facts("image", images.iter().map(archive)))
        }
        Command::Sweep => print(&facts("swept", sweep()?.iter().map(|swept| swept.bed.display()))),
    }
}

fn run_apiserver(args: &ApiserverArgs, ends: &SigSet) -> Result<()> {
    let mut builder = ApiServer::builder().audit(args.audit_level());
    for (gate, on) in &args.feature_gates {
        builder = builder.feature_gate(gate, *on);
    }
    let api = builder.start()?;
    print(&described(&api)?)?;
    ends.wait()?;
    Ok(())
}

fn run_node(args: &NodeArgs, ends: &SigSet) -> Result<()> {
    let families = if args.dual_stack { Families::Dual } else { Families::Ipv4 };
    let mut builder = Node::builder().families(families).audit(args.api.audit_level());
    for (gate, on) in &args.api.feature_gates {
        builder = builder.feature_gate(gate, *on);
    }
    let node = builder.start()?;
    if let Some(binary) = &args.proxy {
        node.import_image(&images::proxy(binary)?)?;
    }
    if let Some(binary) = &args.init {
        node.import_image(&images::init(binary)?)?;
    }
    print(&described(node.api())?)?;
    ends.wait()?;
    Ok(())
}

/// The facts that a script or a person needs to use a cluster; `ready` comes last.
fn described(api: &ApiServer) -> Result<Vec<(&'static str, String)>> {
    let server = api.server_pid().context("the API server has just started")?;
    Ok(vec![
        ("url", api.url()),
        ("kubeconfig", api.kubeconfig().display().to_string()),
        ("audit", api.audit().path().display().to_string()),
        ("processes", format!("{} {server}", api.etcd_pid())),
        ("kubectl", api.kubectl_client().shown()),
        ("ready", "until Ctrl-C".to_owned()),
    ])
}

impl ApiserverArgs {
    fn audit_level(&self) -> AuditLevel {
        if self.audit_bodies { AuditLevel::RequestResponse } else { AuditLevel::Metadata }
    }
}

fn facts<T: ToString>(
    name: &'static str,
    values: impl IntoIterator<Item = T>,
) -> Vec<(&'static str, String)> {
    values.into_iter().map(|value| (name, value.to_string())).collect()
}

fn feature_gate(text: &str) -> Result<(String, bool), String> {
    let wrong = || format!("{text:?} is not GATE=true or GATE=false");
    let (gate, on) = text.split_once('=').ok_or_else(wrong)?;
    Ok((gate.to_owned(), on.parse().map_err(|_| wrong())?))
}

/// Prints one fact per line: name, a space, value. Scripts read it.
fn print(facts: &[(&str, String)]) -> Result<()> {
    let mut out = stdout().lock();
    for (name, value) in facts {
        writeln!(out, "{name} {value}")?;
    }
    Ok(out.flush()?)
}
