//! Parser of the kernel's own listing (`iptables-save -t nat`).
//!
//! Only our own rules are parsed strictly: of a foreign rule, its position and its target are
//! enough.

mod commit;

use std::fmt;
use std::net::IpAddr;

use crate::rules::{Chain, FamilyRules, PREFIX, Rule, RuleTarget};

/// Table `nat` of one family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Saved {
    chains: Vec<SavedChain>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SavedChain {
    name: String,
    rules: Vec<SavedRule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SavedRule {
    /// The rule's text, verbatim, without `-A CHAIN`.
    text: String,
    /// The target of `-j` or `-g`.
    target: Option<String>,
    /// The parsed rule. `None` if it is of a kind that we do not write.
    rule: Option<Rule>,
}

/// A jump from any foreign chain to one of ours.
#[derive(Debug)]
pub(crate) struct OwnJump<'a> {
    pub(crate) chain: &'a str,
    pub(crate) target: &'a str,
    pub(crate) text: &'a str,
}

impl Saved {
    /// Reads the output of `iptables-save`. Tables other than `nat` are skipped.
    pub fn parse(output: &[u8]) -> Result<Self, SavedError> {
        let output = String::from_utf8_lossy(output);
        let mut saved = Self::default();
        let mut table = None;
        for (number, line) in logical_lines(&output) {
            let unreadable = || SavedError::unreadable(number, line);
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('*') {
                table = Some(name);
            } else if table.is_none() {
                return Err(unreadable());
            } else if line == "COMMIT" {
                table = None;
            } else if table == Some("nat") {
                saved.push(line).ok_or_else(unreadable)?;
            }
        }
        match table {
            None => Ok(saved),
            Some(_) => Err(SavedError::Truncated),
        }
    }

    fn push(&mut self, line: &str) -> Option<()> {
        if let Some(declaration) = line.strip_prefix(':') {
            let name = declaration.split_whitespace().next()?.to_owned();
            self.chains.push(SavedChain { name, rules: Vec::new() });
            return Some(());
        }
        let (name, text) = line.strip_prefix("-A ")?.split_once(' ')?;
        let chain = self.chains.iter_mut().find(|chain| chain.name == name)?;
        let words = words(text);
        chain.rules.push(SavedRule {
            text: text.to_owned(),
            target: words.as_deref().and_then(target),
            rule: words.as_deref().and_then(Rule::from_words),
        });
        Some(())
    }

    /// The names of our chains, of any version.
    pub(crate) fn own_chains(&self) -> impl Iterator<Item = &str> {
        self.chains.iter().map(|chain| chain.name.as_str()).filter(|name| name.starts_with(PREFIX))
    }

    /// Every jump from a foreign chain into one of ours.
    pub(crate) fn own_jumps(&self) -> impl Iterator<Item = OwnJump<'_>> {
        self.chains.iter().filter(|chain| !chain.name.starts_with(PREFIX)).flat_map(|chain| {
            chain.rules.iter().filter_map(|rule| {
                let target = rule.target.as_deref().filter(|name| name.starts_with(PREFIX))?;
                Some(OwnJump { chain: &chain.name, target, text: &rule.text })
            })
        })
    }

    /// Whether `jump` is the first rule of its built-in chain and the only jump to `chain`.
    pub(crate) fn has_only_jump(&self, chain: Chain, jump: &Rule) -> bool {
        let is_first =
            self.rule(chain.hook(), 0).is_some_and(|found| found.rule.as_ref() == Some(jump));
        is_first && self.own_jumps().filter(|jump| jump.target == chain.name()).count() == 1
    }

    /// Whether a chain of ours exists.
    pub(crate) fn has_own(&self) -> bool {
        self.own_chains().next().is_some()
    }

    /// Our part of the listing.
    pub(crate) fn own_text(&self) -> String {
        let mut lines: Vec<String> =
            self.own_jumps().map(|jump| format!("-A {} {}", jump.chain, jump.text)).collect();
        for chain in self.chains.iter().filter(|chain| chain.name.starts_with(PREFIX)) {
            lines.extend(chain.rules.iter().map(|rule| format!("-A {} {}", chain.name, rule.text)));
        }
        lines.join("\n")
    }

    /// The differences from `wanted`, position by position. Empty if the listing equals it.
    pub fn differences(&self, wanted: &FamilyRules) -> Vec<Mismatch> {
        let mut differences = Vec::new();
        for rules in &wanted.chains {
            let chain = rules.chain;
            if !self.has_only_jump(chain, &rules.jump()) {
                let found = self.rule(chain.hook(), 0);
                differences.push(Mismatch::new(chain.hook(), 0, Some(&rules.jump()), found));
            }
            let found = self.chains.iter().find(|found| found.name == chain.name());
            let found = found.map_or(&[][..], |found| &found.rules);
            for position in 0..rules.body.len().max(found.len()) {
                let (wanted, found) = (rules.body.get(position), found.get(position));
                if wanted.is_none() || found.and_then(|found| found.rule.as_ref()) != wanted {
                    differences.push(Mismatch::new(chain.name(), position, wanted, found));
                }
            }
        }
        let is_wanted = |name: &str| wanted.chains.iter().any(|rules| rules.chain.name() == name);
        for name in self.own_chains().filter(|name| !is_wanted(name)) {
            differences.push(Mismatch::new(name, 0, None, None));
        }
        differences
    }

    fn rule(&self, chain: &str, position: usize) -> Option<&SavedRule> {
        self.chains.iter().find(|found| found.name == chain)?.rules.get(position)
    }
}

/// One position at which the kernel's rule differs from the wanted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    chain: String,
    position: usize,
    wanted: String,
    found: String,
}

impl Mismatch {
    fn new(chain: &str, index: usize, wanted: Option<&Rule>, found: Option<&SavedRule>) -> Self {
        Self {
            chain: chain.to_owned(),
            position: index + 1,
            wanted: wanted.map_or_else(|| "nothing".to_owned(), |rule| format!("`{rule}`")),
            found: found.map_or_else(|| "nothing".to_owned(), |rule| format!("`{}`", rule.text)),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chain, position, wanted, found } = self;
        write!(f, "{chain} {position}: wanted {wanted}, found {found}")
    }
}

/// The reason why a listing cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SavedError {
    #[error("the listing ends before COMMIT")]
    Truncated,
    #[error("line {number} of the listing is not understood: `{line}`")]
    Unreadable {
        /// The number of the line, from 1.
        number: usize,
        /// The line's first 120 characters.
        line: String,
    },
}

impl SavedError {
    fn unreadable(number: usize, line: &str) -> Self {
        Self::Unreadable { number, line: line.chars().take(120).collect() }
    }
}

impl Rule {
    /// Parses a saved rule. `None` if it has a part that we never write, so that it can equal none
    /// of ours. `-m` of a known match module is ignored: it has no meaning of its own, and builds
    /// of iptables differ in writing it.
    fn from_words(words: &[String]) -> Option<Self> {
        let (mut destination, mut port, mut owner) = (None, None, None);
        let (mut comment, mut action, mut is_tcp) = (String::new(), None, false);
        let mut words = words.iter().map(String::as_str);
        while let Some(option) = words.next() {
            let value = words.next()?;
            match option {
                "-d" => destination = Some(host_address(value)?),
                "-p" => is_tcp = matches!(value, "tcp" | "6"),
                "-m" if matches!(value, "tcp" | "owner" | "comment") => {}
                "--dport" => port = Some(value.parse().ok()?),
                "--uid-owner" => owner = Some(value.parse().ok()?),
                "--comment" => comment = value.to_owned(),
                "-j" => action = Some(value),
                "--to-ports" if action == Some("REDIRECT") => {
                    let action = RuleTarget::Redirect(value.parse().ok()?);
                    let complete = is_tcp && words.next().is_none();
                    return complete.then_some(Self { destination, port, owner, comment, action });
                }
                _ => return None,
            }
        }
        let action = match action? {
            "ACCEPT" => RuleTarget::Accept,
            chain if chain.starts_with(PREFIX) => RuleTarget::Jump(chain.to_owned()),
            _ => return None,
        };
        is_tcp.then_some(Self { destination, port, owner, comment, action })
    }
}

fn host_address(text: &str) -> Option<IpAddr> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address.parse::<IpAddr>().ok()?, Some(length)),
        None => (text.parse().ok()?, None),
    };
    let full = if address.is_ipv4() { "32" } else { "128" };
    length.is_none_or(|length| length == full).then_some(address)
}

fn target(words: &[String]) -> Option<String> {
    let at = words.iter().position(|word| word == "-j" || word == "-g")?;
    words.get(at + 1).cloned()
}

/// The words of a line. Double quotes group; a backslash inside them escapes the next character.
/// `None` if a quote stays open.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut characters = line.chars().peekable();
    loop {
        while characters.next_if(|character| character.is_whitespace()).is_some() {}
        if characters.peek().is_none() {
            return Some(words);
        }
        let mut word = String::new();
        let mut is_quoted = false;
        while let Some(character) =
            characters.next_if(|character| is_quoted || !character.is_whitespace())
        {
            match character {
                '"' => is_quoted = !is_quoted,
                '\\' if is_quoted => word.push(characters.next()?),
                other => word.push(other),
            }
        }
        if is_quoted {
            return None;
        }
        words.push(word);
    }
}

/// Lines of the listing with their numbers. A line break inside quotes (of a foreign comment) does
/// not end a line.
fn logical_lines(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let (mut start, mut first, mut number) = (0, 1, 1);
    let (mut is_quoted, mut is_escaped, mut is_remark) = (false, false, false);
    for (at, character) in text.char_indices() {
        if at == start {
            is_remark = character == '#';
        }
        let escapes = is_quoted && character == '\\' && !is_escaped;
        if character == '"' && !is_escaped && !is_remark {
            is_quoted = !is_quoted;
        }
        if character == '\n' {
            number += 1;
            if !is_quoted {
                lines.push((first, &text[start..at]));
                (start, first) = (at + 1, number);
            }
        }
        is_escaped = escapes;
    }
    lines.push((first, &text[start..]));
    lines
}

#[cfg(test)]
mod tests;
