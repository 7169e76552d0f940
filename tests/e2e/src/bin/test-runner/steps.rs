//! The steps before the tests, as the scripts wrote them down.

use std::{fs, path::Path};

use anyhow::{Context, Result};

/// One step of a script, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
}

pub(crate) fn read(file: &Path) -> Result<Vec<Step>> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    text.lines()
        .map(|line| parse(line).with_context(|| format!("{}: {line}", file.display())))
        .collect()
}

fn parse(line: &str) -> Result<Step> {
    let mut fields = line.split('\t');
    let mut next = || fields.next().context("wanted: name, wall seconds, CPU seconds");
    Ok(Step { name: next()?.to_owned(), wall: next()?.parse()?, cpu: next()?.parse()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_a_name_and_two_times() {
        let step = Step { name: "a step".to_owned(), wall: 3.0, cpu: 4.5 };
        assert_eq!(parse("a step\t3\t4.5").unwrap(), step);
        assert!(parse("a step\t3").is_err() && parse("a step\tx\t1").is_err());
    }
}
