//! What Cargo's manifests cannot say of the packages: names that some must not use, and the size of files and folders.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The packages of the library, in folders of `src`.
pub(super) const PACKAGES: [&str; 9] =
    ["api", "wire", "policy", "net", "base", "inject", "proxy", "manager", "cli"];

/// Names that must not occur in the modules without input and output.
const FOREIGN: [&str; 5] = ["std::net", "std::fs", "std::thread", "Instant::now", "SystemTime"];

/// Names of the HTTP engines, and the files of the proxy that may name them.
const ENGINES: [&str; 3] = ["Incoming", "h2::", "hyper::client"];
const OF_ENGINES: [&str; 5] =
    ["enrol/ask.rs", "legs.rs", "upstream/body.rs", "upstream/connection.rs", "upstream/http2.rs"];

pub(super) fn source(package: &str) -> Vec<(PathBuf, String)> {
    files_below(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(package))
}

/// The sources in a folder and below it, without tests, to which these rules do not apply.
pub(super) fn files_below(folder: PathBuf) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.retain(|path| !path.iter().any(|part| part == "tests" || part == "tests.rs"));
    files.into_iter().map(read).collect()
}

fn read(path: PathBuf) -> (PathBuf, String) {
    let text = fs::read_to_string(&path).unwrap();
    let own = without_tests(&text).to_owned();
    (path, own)
}

/// A source up to its inline module of tests. Where the module is only declared, code follows.
fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod tests {").map_or(text, |(own, _)| own)
}

/// The code without its comments, with single white space.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

#[test]
fn requests_and_streams_name_no_http_engine() {
    let mut wrong = Vec::new();
    for (path, text) in source("proxy") {
        let code = code(&text);
        let named = ENGINES.iter().find(|name| code.contains(**name));
        if let Some(name) = named
            && !OF_ENGINES.iter().any(|file| path.ends_with(file))
        {
            wrong.push(format!("{} names {name}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_package_is_known_to_this_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name());
    let mut found: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
    found.retain(|name| !matches!(&**name, "lib.rs" | "main.rs"));
    found.sort();
    let mut known = PACKAGES;
    known.sort();
    assert_eq!(found, known);
    assert!(PACKAGES.into_iter().all(|package| !source(package).is_empty()));
}

#[test]
fn wire_and_policy_are_functions_of_values() {
    let mut wrong = Vec::new();
    for (path, text) in ["wire", "policy"].into_iter().flat_map(source) {
        let code = code(&text);
        for foreign in FOREIGN.iter().filter(|foreign| code.contains(**foreign)) {
            wrong.push(format!("{} mentions {foreign}", path.display()));
        }
        // `use std::{net::…, time::Instant}` hides the names of the list above.
        for name in ["Instant", "TcpStream", "SocketAddr", "JoinHandle"] {
            let is_word = |at: usize| {
                let before = code[..at].chars().next_back().unwrap_or(' ');
                let after = code[at + name.len()..].chars().next().unwrap_or(' ');
                !before.is_alphanumeric() && !after.is_alphanumeric()
            };
            if code.match_indices(name).any(|(at, _)| is_word(at)) {
                wrong.push(format!("{} mentions {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The packages that a package needs, by a lock file: those of its tests and of features that others have, too.
fn needed<'l>(lock: &'l str, package: &'l str) -> BTreeSet<&'l str> {
    let quoted = |line: &'l str| line.split('"').nth(1).unwrap_or_default();
    let entries = lock.split("[[package]]\n").skip(1).map(|entry| {
        let name = entry.lines().find(|line| line.starts_with("name = ")).map(quoted);
        let listed = entry.lines().filter(|line| line.starts_with(" \""));
        let names = listed.map(|line| quoted(line).split(' ').next().unwrap_or_default());
        (name.unwrap_or_default(), names.collect::<Vec<_>>())
    });
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, names) in entries {
        all.entry(name).or_default().extend(names);
    }
    let mut found = BTreeSet::new();
    let mut open = vec![package];
    while let Some(name) = open.pop() {
        if found.insert(name) {
            open.extend(all.get(name).into_iter().flatten());
        }
    }
    found
}

#[test]
fn wire_and_policy_bring_no_runtime() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock");
    let lock = fs::read_to_string(path).unwrap();
    for package in ["ctrlmesh-wire", "ctrlmesh-policy", "ctrlmesh-api"] {
        let needed = needed(&lock, package);
        assert!(needed.len() > 20, "{needed:?}");
        for runtime in ["tokio", "hyper", "rustls"] {
            assert!(!needed.contains(runtime), "{package} brings {runtime}: {needed:?}");
        }
    }
    assert!(needed(&lock, "ctrlmesh-net").contains("tokio"), "it is found where it is");
    assert!(!needed(&lock, "ctrlmesh-proxy").contains("ctrlmesh-manager"));
    assert!(!needed(&lock, "ctrlmesh-manager").contains("ctrlmesh-proxy"));
}

#[test]
fn only_an_inline_module_of_tests_is_cut() {
    let declared = "mod a;\n#[cfg(test)]\nmod tests;\n\nuse crate::b::B;\n";
    assert_eq!(without_tests(declared), declared);
    let inline = "use crate::b::B;\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n}\n";
    assert_eq!(without_tests(inline), "use crate::b::B;\n\n");
}

/// The line limit of a file, without its tests, and the file limit of a folder.
const LINES: usize = 500;
const FILES: usize = 12;

#[test]
fn files_and_folders_stay_small() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for (path, text) in
        ["src", "init/src"].into_iter().flat_map(|from| files_below(root.join(from)))
    {
        let lines = text.lines().count();
        assert!(
            lines < LINES,
            "{} has {lines} lines: it holds more than one thing",
            path.display()
        );
        *folders.entry(path.parent().unwrap().to_owned()).or_default() += 1;
    }
    let full: Vec<_> = folders.iter().filter(|(_, files)| **files > FILES).collect();
    assert!(!folders.is_empty() && full.is_empty(), "more than {FILES} files: {full:?}");
}
