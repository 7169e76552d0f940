//! The test executables that cargo has built, and the tests in each.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The executable with the end-to-end tests.
pub(crate) const E2E: &str = "e2e";

/// One test executable.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Executable {
    /// Its target: `e2e`, `proxy`; of a library or program, that of its package.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The root of its package, where cargo runs it.
    pub(crate) directory: PathBuf,
}

/// Reads the JSON lines that `cargo test --no-run --message-format=json` prints.
pub(crate) fn read(file: &Path) -> Result<Vec<Executable>> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let found = parse(&text).with_context(|| format!("{}", file.display()))?;
    ensure!(!found.is_empty(), "{} names no test executable", file.display());
    Ok(found)
}

fn parse(text: &str) -> Result<Vec<Executable>> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let is_test = message["profile"]["test"] == true;
        let Some(path) = message["executable"].as_str().filter(|_| is_test) else { continue };
        let manifest = message["manifest_path"].as_str().context("an artifact without manifest")?;
        let target = message["target"]["name"].as_str().context("an artifact without target")?;
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        let name = if kind == "test" { target.to_owned() } else { format!("{target}-{kind}") };
        let directory = Path::new(manifest).parent().context("a manifest in no directory")?;
        let one = Executable { name: name.clone(), path: path.into(), directory: directory.into() };
        ensure!(found.insert(name, one).is_none(), "two test executables of one name: {target}");
    }
    Ok(found.into_values().collect())
}

/// The names of all tests, by executable.
pub(crate) fn list(executables: &[Executable]) -> Result<BTreeMap<String, Vec<String>>> {
    let listed = executables.iter().map(|executable| {
        let mut command = Command::new(&executable.path);
        command.current_dir(&executable.directory).args(["--list", "--format", "terse"]);
        let output = command.output().with_context(|| executable.path.display().to_string())?;
        ensure!(output.status.success(), "{}: {}", executable.path.display(), output.status);
        let text = String::from_utf8(output.stdout)?;
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok((executable.name.clone(), names.map(str::to_owned).collect()))
    });
    listed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_cargos_messages() {
        let text = [
            r#"{"reason":"compiler-artifact","profile":{"test":false},"executable":"/t/bed"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/r/e/Cargo.toml","target":{"name":"e2e","kind":["test"]},"profile":{"test":true},"executable":"/t/e2e-1"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/r/Cargo.toml","target":{"name":"mesh","kind":["lib"]},"profile":{"test":true},"executable":"/t/mesh-1"}"#,
            r#"{"reason":"build-finished","success":true}"#,
        ];
        let found = parse(&text.join("\n")).unwrap();
        let named: Vec<_> = found.iter().map(|one| (&*one.name, &*one.directory)).collect();
        assert_eq!(named, [("e2e", Path::new("/r/e")), ("mesh-lib", Path::new("/r"))]);
    }
}
