//! `ctrlmesh-init`: parse, run, exit with a code of the table.

use std::io;
use std::process;

use ctrlmesh_init::{ExitCode, InitError, Invocation, Pod, run};

fn main() -> process::ExitCode {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .init();
    let invocation = match Invocation::from_command_line(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(usage) => return print_usage(&usage),
    };
    let outcome = Pod::from_env()
        .map_err(InitError::from)
        .and_then(|pod| run(&invocation, &pod, &mut io::stdout().lock()));
    match outcome {
        Ok(()) => ExitCode::Done.into(),
        Err(error) => {
            let code = error.exit_code();
            tracing::error!("exit {}: {error}", code.code());
            if let Some(remedy) = error.remedy() {
                tracing::error!("{remedy}");
            }
            code.into()
        }
    }
}

/// Help and version exit with 0 (stdout); everything else is a usage error (64, stderr).
fn print_usage(usage: &clap::Error) -> process::ExitCode {
    let code = if usage.use_stderr() { ExitCode::Usage } else { ExitCode::Done };
    // With the stream closed, there is no place to report the error.
    let _ = usage.print();
    code.into()
}
