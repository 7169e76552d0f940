//! The documentation names tests and reasons: each of them must be there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Where tests may be.
const FOLDERS: [&str; 3] = ["tests", "init/tests", "src"];

/// The names of all test functions in a folder, with the text of their file.
fn tests(folder: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let mut folders = vec![Path::new(ROOT).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(path).unwrap();
                names.extend(functions(&text).map(|name| (name.to_owned(), text.clone())));
            }
        }
    }
    names
}

fn functions(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    text.lines().map(str::trim).filter_map(move |line| {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
            return None;
        }
        let (_, rest) = line.split_once("fn ").filter(|_| std::mem::take(&mut is_test))?;
        rest.split('(').next()
    })
}

/// One case of the table.
struct Row {
    case: String,
    reasons: BTreeSet<String>,
    tests: BTreeSet<String>,
}

fn rows() -> Vec<Row> {
    let table = fs::read_to_string(Path::new(ROOT).join("docs/bad-input.md")).unwrap();
    let is_case = |line: &&str| line.starts_with("| ") && !line.starts_with("| case");
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split('|').collect();
        let [case, .., reasons, tests] = &cells[..] else { panic!("too few columns: {line}") };
        let row = Row { case: (*case).into(), reasons: quoted(reasons), tests: quoted(tests) };
        assert!(!row.tests.is_empty(), "a row without a test: {line}");
        row
    };
    table.lines().filter(is_case).map(row).collect()
}

#[test]
fn every_case_of_bad_input_has_its_test() {
    let named: BTreeSet<_> = rows().into_iter().flat_map(|row| row.tests).collect();
    let there: BTreeSet<_> = FOLDERS.into_iter().flat_map(tests).map(|(name, _)| name).collect();
    let missing: Vec<_> = named.difference(&there).collect();
    assert!(missing.is_empty(), "docs/bad-input.md names tests that are not there: {missing:#?}");
    let untold: Vec<_> = there.difference(&named).filter(|name| name.starts_with("bad_")).collect();
    assert!(untold.is_empty(), "tests that docs/bad-input.md does not name: {untold:#?}");
}

/// The labels in the `fn label` of a type, which names every variant.
fn labels(path: &str, of: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    let (_, rest) = text.split_once(&format!("\nimpl {of} {{\n")).unwrap();
    let (_, rest) = rest.split_once("fn label(self)").unwrap();
    let (body, _) = rest.split_once("\n    }\n").unwrap();
    body.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_reason_has_a_case_of_bad_input_and_a_test_that_asks_for_it() {
    let refusals = labels("src/policy/refusal.rs", "Refusal");
    let known: BTreeSet<_> = ctrlmesh::policy::Refusal::ALL.iter().map(|r| r.label()).collect();
    assert!(known.iter().copied().eq(refusals.iter().map(String::as_str)), "{refusals:?}");
    let closed = labels("src/proxy/outcome.rs", "Closed");
    assert!(closed.contains("panicked") && closed.len() > 10, "{closed:?}");
    let rows = rows();
    let tests: BTreeMap<_, _> = FOLDERS.into_iter().flat_map(tests).collect();
    let asks = |row: &Row, label: &str| {
        let quoted = format!("\"{label}\"");
        row.tests.iter().any(|test| tests[test].contains(&quoted))
    };
    let has_case =
        |label: &&String| rows.iter().any(|row| row.reasons.contains(*label) && asks(row, label));
    // An orderly end is no bad input, and is not counted.
    let missing: Vec<_> = refusals
        .union(&closed)
        .filter(|label| *label != "finished")
        .filter(|label| !has_case(label))
        .collect();
    assert!(missing.is_empty(), "docs/bad-input.md has no case for {missing:#?}");
    let all: BTreeSet<_> = refusals.union(&closed).cloned().collect();
    for row in rows {
        let unknown: Vec<_> = row
            .reasons
            .iter()
            .filter(|r| !r.starts_with("ctrlmesh_") && !all.contains(*r))
            .collect();
        assert!(unknown.is_empty(), "{}names unknown reasons {unknown:?}", row.case);
    }
}
