//! Commits the rules to the kernel, one transaction per family, and reads them back.

use std::fs;

use crate::exit::InitError;
use crate::family::Family;
use crate::plan::BackendChoice;
use crate::rules::{FamilyRules, RuleSet};
use crate::tool::{Backend, Tool, ToolError};

/// The number of attempts of a transaction. The kernel answers EBUSY or a generation conflict if
/// the table changed between read and commit; its protocol is to read and commit again
/// (`nfnetlink_rcv_batch`). Three changes in a row are a fight with another program: reported.
const TRANSACTIONS: usize = 3;

/// Makes the kernel hold exactly `rules`. A crash between families leaves each whole; the next run
/// completes the set.
pub fn commit(backend: Backend, rules: &RuleSet) -> Result<(), InitError> {
    for rules in rules.families() {
        let tool = Tool { backend, family: rules.family };
        if rules.is_empty() {
            drop_unneeded(tool);
        } else {
            transact(tool, rules)?;
        }
    }
    Ok(())
}

/// Compares the kernel's listing with `rules`, in order, and logs it.
pub fn read_back(backend: Backend, rules: &RuleSet) -> Result<(), InitError> {
    for rules in rules.families().iter().filter(|rules| !rules.is_empty()) {
        let family = rules.family;
        let saved = Tool { backend, family }.save()?;
        tracing::info!("{family} rules in place ({backend}):\n{}", saved.own_text());
        let differences = saved.differences(rules);
        if !differences.is_empty() {
            return Err(InitError::Differs { family, differences });
        }
    }
    Ok(())
}

/// Removes our rules in both families and in each backend of `choice` that can hold any.
pub fn clean(choice: BackendChoice) -> Result<(), InitError> {
    let backends: &[Backend] = match choice {
        BackendChoice::Auto => &[Backend::Nft, Backend::Legacy],
        BackendChoice::Nft => &[Backend::Nft],
        BackendChoice::Legacy => &[Backend::Legacy],
    };
    let mut last_missing = None;
    let mut readable = 0;
    for &backend in backends {
        for family in Family::ALL {
            let tool = Tool { backend, family };
            if backend == Backend::Legacy && !has_legacy_table(family) {
                continue;
            }
            match tool.save() {
                Ok(saved) if saved.has_own() => {
                    transact(tool, &FamilyRules::none(family))?;
                    tracing::info!("{family} rules removed ({backend})");
                }
                Ok(_) => tracing::info!("{family}: nothing to remove ({backend})"),
                Err(error @ ToolError::NotPermitted { .. }) => return Err(error.into()),
                Err(error) => {
                    tracing::info!("{family}: cannot be read ({backend}): {error}");
                    last_missing = Some(error);
                    continue;
                }
            }
            readable += 1;
        }
    }
    match last_missing {
        Some(error) if readable == 0 => Err(error.into()),
        _ => Ok(()),
    }
}

fn transact(tool: Tool, rules: &FamilyRules) -> Result<(), InitError> {
    let mut attempt = 1;
    loop {
        let found = tool.save()?;
        match tool.restore(&rules.restore_text(&found)) {
            Ok(()) => return Ok(()),
            Err(ToolError::Conflict { text, .. }) if attempt < TRANSACTIONS => {
                tracing::warn!("{}: changed by someone else meanwhile: {text}", tool.family);
                attempt += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes the rules of an earlier plan from a family that this plan does not need. Errors are only
/// logged: an unneeded family must not fail the run.
fn drop_unneeded(tool: Tool) {
    let family = tool.family;
    if tool.backend == Backend::Legacy && !has_legacy_table(family) {
        return;
    }
    let outcome = match tool.save() {
        Ok(saved) if saved.has_own() => transact(tool, &FamilyRules::none(family)),
        Ok(_) => return,
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => tracing::info!("{family}: rules of an earlier plan removed"),
        Err(error) => tracing::info!("{family} is not needed and was left alone: {error}"),
    }
}

/// Whether this namespace has the legacy table `nat`. The legacy tool is not asked: it would create
/// the table, and may load its modules on the node.
fn has_legacy_table(family: Family) -> bool {
    let names = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "nat"))
}
