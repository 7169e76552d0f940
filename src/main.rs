//! The `ctrlmesh` binary: parse, build, run.

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand};
use ctrlmesh::{
    cli::{
        crds, doctor, explain, handover, inject, log, log::LogError, mesh_ca, shard, status,
        uninstall_check, wait,
    },
    manager::{self, ManagerArgs, start::Manager},
    net::{
        drain::{self, Draining},
        tls,
    },
    proxy::{Config, ProxyArgs, start::Proxy},
    sidecar,
};
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
};

/// Exit code for usage or configuration (sysexits EX_USAGE).
const USAGE: u8 = 64;
/// Exit code for something missing (sysexits EX_UNAVAILABLE).
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
    /// Run the manager of the mesh: it injects pods and signs the certificates of their proxies
    Manager(Box<ManagerArgs>),
    /// Make a mesh CA: a directory with ca.crt and ca.key
    MeshCa(mesh_ca::MeshCaArgs),
    /// Print workloads with the init container and the proxy added, for `kubectl apply -f -`
    Inject(inject::InjectArgs),
    /// Print how the proxy would treat a request, and why; or the objects that a change of policy moves
    Explain(Box<explain::ExplainArgs>),
    /// Print which shard of a ring has what, and which pods wait for which
    Handover(handover::HandoverArgs),
    /// Show ShardingConfigs, their scope and problems; or the owner of an object
    Status(status::StatusArgs),
    /// Find out why a pod of the mesh does not come up; reads, and changes nothing
    Doctor(doctor::DoctorArgs),
    /// Print how a workload becomes several shards, and why; with --apply, do it
    Shard(shard::ShardArgs),
    /// Take back what `ctrlmesh shard` has done: the workload gets each field back
    Unshard(shard::UnshardArgs),
    /// Print the custom resource definitions
    Crds,
    /// Fail if pods are still injected, and name them: the chart asks before it is uninstalled
    UninstallCheck,
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
    let ran = match cli.command {
        Command::Proxy(args) => proxy(*args),
        Command::Manager(args) => manager(*args),
        Command::MeshCa(args) => mesh_ca::run(args).map_err(with(USAGE)),
        Command::Inject(args) => inject::run(args).map_err(with(USAGE)),
        Command::Explain(args) => {
            explain::run(&args).map_err(|error| with(error.exit_code())(error))
        }
        Command::Handover(args) => {
            handover::run(&args).map_err(|error| with(error.exit_code())(error))
        }
        Command::Status(args) => status::run(&args).map_err(|error| with(error.exit_code())(error)),
        Command::Doctor(args) => {
            install_crypto();
            doctor::run(&args).map_err(with(UNAVAILABLE))
        }
        Command::Shard(args) => {
            install_crypto();
            shard::run(&args).map_err(|error| with(error.exit_code())(error))
        }
        Command::Unshard(args) => {
            install_crypto();
            shard::run_back(&args).map_err(|error| with(error.exit_code())(error))
        }
        Command::Crds => print_crds(),
        Command::UninstallCheck => {
            install_crypto();
            uninstall_check::run().map_err(with(UNAVAILABLE))
        }
        Command::Wait(args) => wait::run(&args).map_err(with(UNAVAILABLE)),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn proxy(args: ProxyArgs) -> Result<(), Failure> {
    let config = Config::new(args).map_err(with(USAGE))?;
    run(async {
        let drain_timeout = config.plain.drain_timeout();
        let proxy = Proxy::build(config).await;
        let proxy = proxy.map_err(|error| with(error.exit_code())(error))?;
        let serve = async |draining| {
            proxy.run(draining).await.map_err(|error| with(error.exit_code())(error))
        };
        until_asked_to_end(drain_timeout, serve).await
    })
}

fn manager(args: ManagerArgs) -> Result<(), Failure> {
    let config = manager::Config::new(args).map_err(with(USAGE))?;
    run(async {
        let drain_timeout = config.drain_timeout;
        let manager = Manager::build(config).await;
        let manager = manager.map_err(|error| with(error.exit_code())(error))?;
        let serve = async |draining| manager.run(draining).await.map_err(with(SOFTWARE));
        until_asked_to_end(drain_timeout, serve).await
    })
}

/// The only process-wide setting: the kube crate's TLS requires it.
fn install_crypto() {
    let _ = rustls::crypto::CryptoProvider::install_default(tls::provider_value());
}

/// Runs a process that serves, with its log.
fn run(served: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let _log = log::start().map_err(|error| match error {
        LogError::Filter { .. } => with(USAGE)(error),
        LogError::Thread(_) => with(SOFTWARE)(error),
    })?;
    install_crypto();
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(with(SOFTWARE))?.block_on(served)
}

/// Serves until a signal asks for the end: the first starts a drain, the second ends it.
async fn until_asked_to_end(
    drain_timeout: Duration,
    serve: impl AsyncFnOnce(Draining) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut term = signal(SignalKind::terminate()).map_err(with(SOFTWARE))?;
    let mut int = signal(SignalKind::interrupt()).map_err(with(SOFTWARE))?;
    let (drain, draining) = drain::channel();
    let asked_to_end = async {
        first_of(&mut term, &mut int).await;
        tracing::info!("draining");
        drain.start(drain_timeout);
        first_of(&mut term, &mut int).await;
        tracing::warn!("ending at once");
    };
    tokio::select! {
        () = asked_to_end => Ok(()),
        served = serve(draining) => served,
    }
}

async fn first_of(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

fn print_crds() -> Result<(), Failure> {
    let yaml = crds::yaml().map_err(with(SOFTWARE))?;
    io::stdout().write_all(yaml.as_bytes()).map_err(with(SOFTWARE))
}

/// An error, and the exit code for it.
struct Failure {
    error: Box<dyn Error>,
    code: u8,
}

/// Gives an error its exit code.
fn with<E: Error + 'static>(code: u8) -> impl FnOnce(E) -> Failure {
    move |error| Failure { error: error.into(), code }
}

impl Failure {
    /// Prints the error and each of its causes, one per line.
    fn report(self) -> ExitCode {
        let mut text = format!("ctrlmesh: {}\n", self.error);
        let mut cause = self.error.source();
        while let Some(error) = cause {
            text.push_str(&format!("  because: {error}\n"));
            cause = error.source();
        }
        let _ = io::stderr().write_all(text.as_bytes());
        ExitCode::from(self.code)
    }
}
