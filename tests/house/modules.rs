//! The Go modules of the test bed.

use std::{collections::BTreeMap, fs, path::Path};

const E2E: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e");

/// The version of each module that a `go.mod` names; a replacement counts.
fn versions(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let named = lines.filter_map(|line| {
        let line = line.replace("require ", "").replace("replace ", "");
        let mut words = line.split_whitespace();
        let (module, version) = (words.next()?, words.next_back()?);
        let is_version = version.starts_with('v') && module.contains('.');
        is_version.then(|| (module.to_owned(), version.to_owned()))
    });
    named.collect()
}

#[test]
fn a_replacement_is_the_version() {
    let text = "module a.example/b\n\ngo 1.26.0\n\nrequire k8s.io/api v0.0.0\nrequire (\n\
                \tgo.uber.org/zap v1.2.3 // indirect\n)\nreplace k8s.io/api => k8s.io/api v0.37.1\n";
    let named = [("go.uber.org/zap", "v1.2.3"), ("k8s.io/api", "v0.37.1")];
    assert_eq!(versions(text), named.map(|(a, b)| (a.to_owned(), b.to_owned())).into());
}

/// With one version of each, Go compiles what the cluster, the operator and the clients share once:
/// four CPU minutes less for the operator.
#[test]
fn go_modules_share_what_is_compiled() {
    let read = |of: &str| {
        let text = fs::read_to_string(Path::new(E2E).join(of).join("go.mod"));
        versions(&text.unwrap())
    };
    let cluster = read("cluster");
    for module in ["operator", "clients/go"] {
        let own = read(module);
        let shared = own.iter().filter(|(name, _)| cluster.contains_key(*name));
        assert!(shared.clone().count() > 20, "{own:?}");
        for (name, version) in shared {
            assert_eq!(Some(version), cluster.get(name), "{name} in tests/e2e/{module}/go.mod");
        }
    }
}
