//! The allowed dependencies between modules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Each module of the library with the modules that it may use.
const MAY_USE: [(&str, &[&str]); 10] = [
    ("api", &[]),
    ("wire", &["api"]),
    ("policy", &["api", "wire"]),
    ("net", &[]),
    ("cluster", &[]),
    ("process", &["net"]),
    ("sidecar", &["net"]),
    ("proxy", &["api", "wire", "policy", "net", "cluster", "process", "sidecar"]),
    ("manager", &["api", "wire", "policy", "net", "cluster", "process", "sidecar"]),
    ("cli", &["api", "wire", "policy", "net", "cluster", "sidecar", "manager"]),
];

/// Names that must not occur in the modules without input and output.
const FOREIGN: [&str; 9] = [
    "tokio",
    "hyper",
    "rustls",
    "kube::Client",
    "std::net",
    "std::fs",
    "std::thread",
    "Instant::now",
    "SystemTime",
];

/// Names of the HTTP engines, and the files of the proxy that may name them.
const ENGINES: [&str; 3] = ["Incoming", "h2::", "hyper::client"];
const OF_ENGINES: [&str; 5] =
    ["enrol/ask.rs", "legs.rs", "upstream/body.rs", "upstream/connection.rs", "upstream/http2.rs"];

fn source(module: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let single = root.join(format!("{module}.rs"));
    let mut files = files_below(root.join(module));
    files.extend(single.exists().then(|| read(single)));
    files
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

/// The modules that follow `crate::` in a text, also inside `use crate::{a, b::c}`.
fn used(code: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut begins = true;
        for (at, c) in group.char_indices() {
            match c {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                ' ' => {}
                _ if begins && depth == 0 => {
                    found.insert(word(&group[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<_, _> = MAY_USE.into_iter().collect();
    let mut wrong = Vec::new();
    for (module, may_use) in &allowed {
        for (path, text) in source(module) {
            for other in used(&code(&text)) {
                let is_module = allowed.contains_key(other.as_str());
                if is_module && other != *module && !may_use.contains(&&*other) {
                    wrong.push(format!("{} uses {other}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
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
fn every_module_is_known_to_this_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let allowed: BTreeMap<_, _> = MAY_USE.into_iter().collect();
    for entry in fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(matches!(module, "lib" | "main") || allowed.contains_key(module), "{module}");
    }
    for (module, _) in MAY_USE {
        assert!(!source(module).is_empty(), "{module} is gone");
    }
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

#[test]
fn only_an_inline_module_of_tests_is_cut() {
    let declared = "mod a;\n#[cfg(test)]\nmod tests;\n\nuse crate::b::B;\n";
    assert_eq!(without_tests(declared), declared);
    let inline = "use crate::b::B;\n\n#[cfg(test)]\nmod tests {\n    use super::*;\n}\n";
    assert_eq!(without_tests(inline), "use crate::b::B;\n\n");
}

#[test]
fn uses_are_found() {
    let text = "use crate::a::b; // crate::no\nuse crate::{c::{d, e}, f,\n g::h}; crate::i::j();";
    let found: Vec<_> = used(&code(text)).into_iter().collect();
    assert_eq!(found, ["a", "c", "f", "g", "i"]);
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
