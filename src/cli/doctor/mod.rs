//! `ctrlmesh doctor`: the reason why a pod of the mesh does not come up, from outside the cluster or
//! from inside a pod. It reads, and changes nothing.
//!
//! `gather` asks, [`judge()`] decides by the facts alone, `print` reports.

mod args;
mod checks;
pub(crate) mod collect;
mod facts;
mod finding;
mod print;

use std::{
    error::Error,
    io::{self, Write},
};

use self::args::Output;
pub use self::{
    args::DoctorArgs,
    checks::judge,
    facts::{
        AdmissionHook, Answer, CannotLook, ClusterFacts, Facts, Looked, ManagerFacts,
        NamespaceFacts, OwnFile, PodFacts, Server,
    },
    finding::{Check, Finding, Severity},
    print::{json, text},
};

/// The reason why the doctor's exit code is not 0.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error("cannot write the findings")]
    Output(#[source] Box<dyn Error + Send + Sync>),
    #[error("cannot wait")]
    Runtime(#[source] io::Error),
    #[error("{}", if *.0 == 1 { "1 error is found".to_owned() } else { format!("{} errors are found", .0) })]
    Found(usize),
}

/// Prints the findings. Fails with [`DoctorError`] if one of them is an error.
pub fn run(args: &DoctorArgs) -> Result<(), DoctorError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let facts = runtime.map_err(DoctorError::Runtime)?.block_on(collect::gather(args));
    let findings = judge(&facts);
    let text = match args.output {
        Output::Text => text(&findings),
        Output::Json => json(&findings).map_err(|error| DoctorError::Output(error.into()))?,
    };
    let written = io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|error| DoctorError::Output(error.into()))?;
    match findings.iter().filter(|finding| finding.severity == Severity::Error).count() {
        0 => Ok(()),
        errors => Err(DoctorError::Found(errors)),
    }
}
