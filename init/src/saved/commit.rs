//! The commit that makes the kernel's listing equal to the rules, as `iptables-restore` takes it.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::Saved;
use crate::rules::{FamilyRules, RuleSet};

impl FamilyRules {
    /// One commit that turns the kernel's rules (`found`) into exactly these rules.
    ///
    /// `:CHAIN - [0:0]` creates a chain or empties it inside the commit, so a rerun replaces bodies
    /// without a gap. Removing the rules first would unhook connection tracking and reset every
    /// open redirected connection. A misplaced jump is moved in the same commit. Our stale chains
    /// are deleted by name.
    pub(crate) fn restore_text(&self, found: &Saved) -> String {
        let mut text = String::from("*nat\n");
        let wanted: Vec<&str> = self.chains.iter().map(|rules| rules.chain.name()).collect();
        let stale: Vec<&str> = found.own_chains().filter(|name| !wanted.contains(name)).collect();
        let mut line = |words: fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{words}");
        };
        for name in wanted.iter().chain(&stale) {
            line(format_args!(":{name} - [0:0]"));
        }
        let in_place: BTreeSet<&str> = self
            .chains
            .iter()
            .filter(|rules| found.has_only_jump(rules.chain, &rules.jump()))
            .map(|rules| rules.chain.name())
            .collect();
        for jump in found.own_jumps().filter(|jump| !in_place.contains(jump.target)) {
            line(format_args!("-D {} {}", jump.chain, jump.text));
        }
        for rules in self.chains.iter().filter(|rules| !in_place.contains(rules.chain.name())) {
            line(format_args!("-I {} 1 {}", rules.chain.hook(), rules.jump()));
        }
        for rules in &self.chains {
            for rule in &rules.body {
                line(format_args!("-A {} {rule}", rules.chain.name()));
            }
        }
        for name in &stale {
            line(format_args!("-X {name}"));
        }
        line(format_args!("COMMIT"));
        text
    }
}

/// The restore text of each family that has rules, as for a namespace without any.
impl fmt::Display for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rules in self.families().iter().filter(|rules| !rules.is_empty()) {
            writeln!(f, "# {}: {}-restore --noflush", rules.family, rules.family.tool())?;
            f.write_str(&rules.restore_text(&Saved::default()))?;
        }
        Ok(())
    }
}
