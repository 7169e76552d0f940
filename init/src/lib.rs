//! The redirect rules of a pod: from arguments to proven interception.
//!
//! The init container of a mesh pod programs the pod's own network namespace so that connections to
//! the API server reach the proxy, and ends. [`run`] makes one call per step, in this order:
//!
//! | step | module | result |
//! |---|---|---|
//! | 1. arguments | [`args`], [`plan`] | a [`Plan`]: validated data; the injector writes it, `ctrlmesh-init` reads it |
//! | 2. resolve | [`pod`], [`targets`] | [`Targets`]: the addresses to intercept and the families that need rules |
//! | 3. render | [`rules`] | a [`RuleSet`]: the rules of each family, as data |
//! | 4. routes | [`pod`] | the addresses that the pod has a route to, none of them its own |
//! | 5. choose | [`backend`] | the backend that this kernel accepts in a trial commit |
//! | 6. commit | [`apply`], [`saved`] | one atomic commit per family; existing rules are never removed first |
//! | 7. read back | [`apply`], [`saved`] | the kernel's own listing equals the rules, in order |
//! | 8. prove | [`prove`] | a connection to each address with a route arrives at our listener |
//! | 9. exit | [`exit`] | the [`ExitCode`] table |
//!
//! Invariants: only chains named `CTRLMESH_*` and the jumps to them are changed; a rerun with open
//! connections breaks none and lets none bypass the proxy; the kernel need not support a family
//! without rules.
//!
//! Out of scope: the listeners on the ports, capture of all traffic or of DNS, marks, TPROXY.

pub mod apply;
pub mod args;
pub mod backend;
pub mod exit;
pub mod family;
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
pub use crate::family::Family;
pub use crate::plan::env_from::{EnvFrom, EnvSource};
pub use crate::plan::{BackendChoice, Inbound, Plan, PlanError, ProxyUid, Upstream};
pub use crate::pod::Pod;
pub use crate::prove::Proof;
pub use crate::rules::RuleSet;
pub use crate::targets::Targets;

/// Carries out one invocation of `ctrlmesh-init` in the calling process' network namespace.
///
/// `out` receives only the rules of a dry run; progress is logged through `tracing`.
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
