//! The redirect rules of a pod: from arguments to proven interception.
//!
//! A pod of the mesh starts with one container that programs the pod's own network namespace so
//! that connections to the API server reach the proxy, and ends. [`run`] is its whole life, a call
//! a step, in the order of the modules:
//!
//! | step | module | what it yields |
//! |---|---|---|
//! | 1. arguments | [`args`], [`plan`] | a [`Plan`]: checked data; the injector writes it, `ctrlmesh-init` reads it |
//! | 2. resolve | [`pod`], [`targets`] | [`Targets`]: the addresses to intercept and the families that need rules |
//! | 3. render | [`rules`] | a [`RuleSet`]: the rules as data and as `iptables-restore` text, one a family |
//! | 4. routes | [`pod`] | the addresses that the pod has a route to, none of them its own |
//! | 5. choose | [`backend`] | the backend that this kernel is shown to accept |
//! | 6. commit | [`apply`] | one atomic commit a family; what is in place is never removed first |
//! | 7. read back | [`apply`], [`saved`] | the kernel's own listing equals the rules, in order |
//! | 8. prove | [`prove`] | a connection to each address with a route arrives at our listener |
//! | 9. exit | [`exit`] | the [`ExitCode`] table |
//!
//! Invariants: only chains named `CTRLMESH_*` and the jumps to them are ever touched; a rerun under
//! live connections cuts none and lets none past the proxy; a family that nothing needs is not
//! required of the kernel.
//!
//! Not here: what listens on the ports, capture of all traffic or of DNS, marks, TPROXY.

pub mod apply;
pub mod args;
pub mod backend;
pub mod exit;
pub mod plan;
pub mod pod;
pub mod prove;
pub mod rules;
pub mod saved;
pub mod targets;
mod tool;

use std::io::Write;

pub use crate::args::{Action, Invocation};
pub use crate::exit::{ExitCode, InitError};
pub use crate::plan::{BackendChoice, Inbound, Plan, PlanError, ProxyUid, Upstream};
pub use crate::pod::Pod;
pub use crate::pod::env_from::{EnvFrom, Source};
pub use crate::prove::Proof;
pub use crate::rules::{Family, RuleSet};
pub use crate::targets::Targets;

/// Carries out one invocation of `ctrlmesh-init` in the calling process' network namespace.
///
/// `out` receives the rules of a dry run and nothing else; what happens is told through `tracing`.
pub fn run(invocation: &Invocation, pod: &Pod, out: &mut impl Write) -> Result<(), InitError> {
    let plan = &invocation.plan;
    if invocation.action == Action::Clean {
        return apply::clean(plan.backend());
    }
    let targets = Targets::resolve(plan, pod, targets::system_resolver)?;
    let rules = RuleSet::render(plan, &targets);
    if invocation.action == Action::DryRun {
        return out.write_all(rules.to_string().as_bytes()).map_err(InitError::Output);
    }
    prove::refuse_own_uid(plan.proxy_uid())?;
    tracing::info!("kernel {}; plan:\n{}", exit::kernel_release(), rules.to_string().trim_end());
    let reachable = pod::network::reachable(targets.outbound())?;
    let backend = backend::choose(plan.backend(), &rules)?;
    apply::commit(backend, &rules)?;
    apply::read_back(backend, &rules)?;
    let proof = prove::capture(plan, &reachable)?;
    tracing::info!("done: {proof}");
    Ok(())
}
