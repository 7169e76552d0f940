//! The documentation names tests: each of them must be there.

use std::{collections::BTreeSet, fs, path::Path};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The names of all test functions in a folder.
fn tests(folder: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders = vec![Path::new(ROOT).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(path).unwrap();
                let mut is_test = false;
                for line in text.lines().map(str::trim) {
                    if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                        is_test = true;
                    } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                        names.insert(rest.split('(').next().unwrap_or_default().to_owned());
                        is_test = false;
                    }
                }
            }
        }
    }
    names
}

/// The cells in backquotes of the last column.
fn named(table: &str) -> Vec<String> {
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| case"));
    rows.flat_map(|row| {
        let cell = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let names: Vec<_> = cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(!names.is_empty(), "a row without a test: {row}");
        names
    })
    .collect()
}

#[test]
fn every_case_of_bad_input_has_its_test() {
    let table = fs::read_to_string(Path::new(ROOT).join("docs/bad-input.md")).unwrap();
    let named: BTreeSet<_> = named(&table).into_iter().collect();
    let there: BTreeSet<_> = ["tests", "init/tests", "src"].into_iter().flat_map(tests).collect();
    let missing: Vec<_> = named.difference(&there).collect();
    assert!(missing.is_empty(), "docs/bad-input.md names tests that are not there: {missing:#?}");
    let bad: BTreeSet<_> =
        tests("tests/proxy").into_iter().filter(|name| name.starts_with("bad_")).collect();
    let untold: Vec<_> = bad.difference(&named).collect();
    assert!(untold.is_empty(), "tests that docs/bad-input.md does not name: {untold:#?}");
}
