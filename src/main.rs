//! The `ctrlmesh` binary: parse, build, run.

use std::{error::Error, process::ExitCode};

use clap::{Parser, Subcommand};
use ctrlmesh::{
    cli::{crds, explain, inject, log, log::LogError, mesh_ca, wait},
    net::{drain, tls},
    proxy::{Config, ProxyArgs, start::Proxy},
    sidecar,
};
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
};

/// Usage or configuration (sysexits EX_USAGE).
const USAGE: u8 = 64;
/// Something that is needed is missing (EX_UNAVAILABLE).
const UNAVAILABLE: u8 = 69;
/// An internal error (EX_SOFTWARE).
const SOFTWARE: u8 = 70;

/// Runs any Kubernetes controller as several shards, without changing a line of it
#[derive(Debug, Parser)]
#[command(name = "ctrlmesh", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy between a controller and the API server
    #[command(name = sidecar::PROXY)]
    Proxy(Box<ProxyArgs>),
    /// Make a mesh CA: a directory with ca.crt and ca.key
    MeshCa(mesh_ca::MeshCaArgs),
    /// Print workloads with the init container and the proxy added, for `kubectl apply -f -`
    Inject(inject::InjectArgs),
    /// Print how the proxy would treat a request to the API server, and why; or the objects that a
    /// change of policy would move between shards
    Explain(Box<explain::ExplainArgs>),
    /// Print the custom resource definitions
    Crds,
    /// Wait until the proxy in this pod is ready
    #[command(name = sidecar::WAIT, hide = true)]
    Wait(wait::WaitArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match cli.command {
        Command::Proxy(args) => proxy(*args),
        Command::MeshCa(args) => match mesh_ca::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, USAGE),
        },
        Command::Inject(args) => match inject::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, USAGE),
        },
        Command::Explain(args) => match explain::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, error.exit_code()),
        },
        Command::Crds => print_crds(),
        Command::Wait(args) => match wait::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, UNAVAILABLE),
        },
    }
}

fn proxy(args: ProxyArgs) -> ExitCode {
    let config = match Config::new(args) {
        Ok(config) => config,
        Err(error) => return fail(&error, USAGE),
    };
    let _log = match log::start() {
        Ok(log) => log,
        Err(error @ LogError::Filter { .. }) => return fail(&error, USAGE),
        Err(error @ LogError::Thread(_)) => return fail(&error, SOFTWARE),
    };
    // The only process-wide setting: the kube crate's TLS requires it.
    let _ = rustls::crypto::CryptoProvider::install_default(tls::provider_value());
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, SOFTWARE),
    };
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> ExitCode {
    let drain_timeout = config.drain_timeout;
    let proxy = match Proxy::build(config).await {
        Ok(proxy) => proxy,
        Err(error) => return fail(&error, error.exit_code()),
    };
    let (mut term, mut int) =
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(term), Ok(int)) => (term, int),
            (Err(error), _) | (_, Err(error)) => return fail(&error, SOFTWARE),
        };
    let (drain, draining) = drain::channel();
    let asked_to_end = async {
        first_of(&mut term, &mut int).await;
        tracing::info!("draining");
        drain.start(drain_timeout);
        first_of(&mut term, &mut int).await;
        tracing::warn!("ending at once");
    };
    tokio::select! {
        () = asked_to_end => ExitCode::SUCCESS,
        served = proxy.run(draining) => match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, error.exit_code()),
        },
    }
}

async fn first_of(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

fn print_crds() -> ExitCode {
    use std::io::Write;

    match crds::yaml() {
        Ok(yaml) => match std::io::stdout().write_all(yaml.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, SOFTWARE),
        },
        Err(error) => fail(&error, SOFTWARE),
    }
}

/// Prints the error and each of its causes, one per line.
fn fail(error: &dyn Error, code: u8) -> ExitCode {
    use std::io::Write;

    let mut text = format!("ctrlmesh: {error}\n");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!("  because: {error}\n"));
        cause = error.source();
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::from(code)
}
