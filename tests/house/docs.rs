//! The documentation names tests and reasons: each of them must exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use ctrlmesh::{cli::doctor::Check, policy::Refusal};
use strum::VariantArray;

use crate::direction::files_below;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The folders with tests.
const FOLDERS: [&str; 3] = ["tests", "init/tests", "src"];

/// The names of all test functions in a folder, each with the text of the parts it uses.
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
                let parts = parts(&text);
                let made_of = |name: &str| (name.to_owned(), reached(&parts, name));
                names.extend(functions(&text).map(made_of));
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

/// The functions and constants of a file by name, each with its text, as rustfmt lays them out.
fn parts(text: &str) -> BTreeMap<&str, String> {
    let mut parts = BTreeMap::new();
    let lines: Vec<_> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let declared = line.trim_start();
        let indent = &line[..line.len() - declared.len()];
        let words = ["fn ", "async fn ", "pub fn ", "pub async fn ", "const "];
        let Some(rest) = words.iter().find_map(|word| declared.strip_prefix(word)) else {
            continue;
        };
        let end = match declared.strip_prefix("const ") {
            Some(_) => lines[at..].iter().position(|line| line.ends_with(';')),
            None => lines[at..].iter().position(|line| line.strip_prefix(indent) == Some("}")),
        };
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
        let length = end.map_or(1, |end| end + 1);
        parts.insert(name, lines[at..at + length].join("\n"));
    }
    parts
}

/// The text of a part and of all parts of its file that it names.
fn reached(parts: &BTreeMap<&str, String>, name: &str) -> String {
    let (mut text, mut seen, mut open) = (String::new(), BTreeSet::from([name]), vec![name]);
    while let Some(name) = open.pop() {
        let Some(part) = parts.get(name) else { continue };
        text.push_str(part);
        let words = part.split(|c: char| !c.is_alphanumeric() && c != '_');
        open.extend(words.filter(|word| parts.contains_key(word) && seen.insert(word)));
    }
    text
}

#[test]
fn a_test_is_made_of_what_it_names_in_its_file() {
    let file = "const A: &str =\n    \"a\";\n\nfn b() {\n    c();\n}\n\nfn c() {\n    A;\n}\n\n\
                fn d() {\n    \"d\";\n}\n";
    let parts = parts(file);
    assert_eq!(parts.keys().copied().collect::<Vec<_>>(), ["A", "b", "c", "d"]);
    let text = reached(&parts, "b");
    assert!(text.contains("\"a\"") && !text.contains("\"d\""), "{text}");
}

/// A code block in a comment is a test of rustdoc, which `scripts/test` does not run.
#[test]
fn comments_have_no_code_that_is_never_run() {
    let root = Path::new(ROOT);
    let folders = ["src", "init/src"].map(|folder| root.join(folder));
    let is_block = |line: &str| {
        let text = line.trim_start();
        (text.starts_with("///") || text.starts_with("//!")) && text.contains("```")
    };
    let files = folders.into_iter().flat_map(files_below);
    let with_code: Vec<_> =
        files.filter(|(_, text)| text.lines().any(is_block)).map(|(path, _)| path).collect();
    assert!(with_code.is_empty(), "make a test of the code blocks in {with_code:?}");
}

/// One case of the table.
struct Row {
    case: String,
    reasons: BTreeSet<String>,
    tests: BTreeSet<String>,
}

fn rows() -> Vec<Row> {
    rows_of(&fs::read_to_string(Path::new(ROOT).join("docs/bad-input.md")).unwrap())
}

/// The rows of all tables. A table has no blank lines: a header, a rule, rows. A row outside of a
/// table is rendered as text.
fn rows_of(text: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with('|') {
            continue;
        }
        let columns = cells(line).len();
        assert!(line.starts_with("| case |"), "a row outside of a table: {line}");
        let rule = lines.next().unwrap_or_default();
        assert!(rule.starts_with("|--"), "a table without a rule under its header: {line}");
        while let Some(line) = lines.next_if(|line| line.starts_with('|')) {
            assert_eq!(cells(line).len(), columns, "a row with other columns: {line}");
            rows.push(row(line));
        }
    }
    rows
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').collect()
}

fn row(line: &str) -> Row {
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let cells = cells(line);
    let [case, .., reasons, tests] = &cells[..] else { panic!("too few columns: {line}") };
    let row = Row { case: (*case).into(), reasons: quoted(reasons), tests: quoted(tests) };
    assert!(!row.tests.is_empty(), "a row without a test: {line}");
    row
}

#[test]
#[should_panic(expected = "a row outside of a table: | lost | `x` | `test` |")]
fn a_row_that_a_blank_line_cuts_off_is_noticed() {
    rows_of(
        "| case | metric | test |\n|---|---|---|\n| one | – | `test` |\n\n| lost | `x` | `test` |\n",
    );
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

/// The labels of the reasons why connections end: the names of the variants, in snake case.
fn closed_labels() -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(ROOT).join("src/proxy/outcome.rs")).unwrap();
    let (_, rest) = text.split_once("\npub(super) enum Closed {\n").unwrap();
    let (body, _) = rest.split_once("\n}\n").unwrap();
    let names = body.lines().filter_map(|line| line.strip_prefix("    ")?.strip_suffix(','));
    let snake = |name: &str| {
        let mut label = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() && !label.is_empty() {
                label.push('_');
            }
            label.push(letter.to_ascii_lowercase());
        }
        label
    };
    names.map(snake).collect()
}

#[test]
fn every_reason_has_a_case_of_bad_input_and_a_test_that_asks_for_it() {
    let closed = closed_labels();
    assert!(closed.contains("panicked") && closed.len() > 10, "{closed:?}");
    let refusals = Refusal::VARIANTS.iter().map(|refusal| refusal.label());
    let all: BTreeSet<_> = refusals.chain(closed.iter().map(String::as_str)).collect();
    let tests: BTreeMap<_, _> = FOLDERS.into_iter().flat_map(tests).collect();
    let mut asked_for = BTreeSet::from(["finished"]); // An orderly end is not counted.
    let rows = rows();
    for row in &rows {
        for reason in row.reasons.iter().filter(|reason| !reason.starts_with("ctrlmesh_")) {
            assert!(all.contains(reason.as_str()), "{}: {reason} is no reason", row.case);
            let asks = |test: &String| tests.get(test).is_some_and(|text| quotes(text, reason));
            if row.tests.iter().any(asks) {
                asked_for.insert(reason);
            }
        }
    }
    let missing: Vec<_> = all.difference(&asked_for).collect();
    assert!(missing.is_empty(), "no case of docs/bad-input.md has a test for {missing:#?}");
}

/// Whether a label stands between quotes, which may be escaped.
fn quotes(text: &str, label: &str) -> bool {
    [format!("\"{label}\""), format!("\"{label}\\\"")].iter().any(|quoted| text.contains(quoted))
}

/// The first cells of the tables of docs/metrics.md, without their quotes, and the second ones.
fn reference() -> BTreeMap<String, String> {
    let text = fs::read_to_string(Path::new(ROOT).join("docs/metrics.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `")).map(cells);
    rows.map(|cells| (cells[0].replace('`', "").trim().into(), cells[1].trim().into())).collect()
}

#[test]
fn the_reference_has_every_metric_refusal_and_close_reason() {
    let golden = ["metrics.txt", "metrics-manager.txt"]
        .map(|name| fs::read_to_string(Path::new(ROOT).join("tests/golden").join(name)).unwrap());
    let metrics = golden.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let (name, kind) = line.strip_prefix("TYPE ")?.split_once(' ')?;
        Some(if kind == "counter" { format!("{name}_total") } else { name.to_owned() })
    });
    let labels = Refusal::VARIANTS.iter().map(|refusal| refusal.label().to_owned());
    let reference = reference();
    // An orderly end is not counted.
    let closed = closed_labels().into_iter().filter(|label| label != "finished");
    let there: BTreeSet<_> = metrics.chain(labels).chain(closed).collect();
    let told: BTreeSet<_> = reference.keys().cloned().collect();
    let differ: Vec<_> = there.symmetric_difference(&told).collect();
    assert!(differ.is_empty(), "docs/metrics.md and the code have not both: {differ:#?}");
    for refusal in Refusal::VARIANTS {
        let code = refusal.because("").status.code.to_string();
        assert_eq!(reference[refusal.label()], code, "{}", refusal.label());
    }
}

#[test]
fn the_reference_has_every_check_of_the_doctor() {
    let text = fs::read_to_string(Path::new(ROOT).join("docs/doctor.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| D")).map(cells);
    let mut told: Vec<_> =
        rows.map(|cells| (cells[0].trim().to_owned(), cells[1].trim().to_owned())).collect();
    // They are told by what they look at.
    told.sort();
    let checks = Check::VARIANTS.iter();
    let there: Vec<_> =
        checks.map(|check| (check.id().to_owned(), check.about().to_owned())).collect();
    assert_eq!(told, there, "docs/doctor.md and the code have not the same");
}

/// README.md, with a blank for each line break.
fn readme_in_one_line() -> String {
    let text = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text between two headings of the README.
fn section(heading: &str) -> String {
    let text = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

#[test]
fn every_promise_of_the_readme_has_its_test() {
    let table = fs::read_to_string(Path::new(ROOT).join("docs/promises.md")).unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| README"));
    let rows: Vec<_> = rows.map(cells).collect();
    let said: Vec<_> = rows.iter().map(|cells| cells[0].trim()).collect();
    let readme = readme_in_one_line();
    let unsaid: Vec<_> = said.iter().filter(|words| !readme.contains(**words)).collect();
    assert!(unsaid.is_empty(), "README.md does not say {unsaid:#?}");

    let there: BTreeSet<_> = FOLDERS.into_iter().flat_map(tests).map(|(name, _)| name).collect();
    for cells in &rows {
        let named: Vec<_> = cells[1].split('`').skip(1).step_by(2).collect();
        let is_told = !named.is_empty() || cells[1].trim().starts_with("none: ");
        assert!(is_told, "no test and no reason: {}", cells[0]);
        let missing: Vec<_> = named.iter().filter(|name| !there.contains(**name)).collect();
        assert!(missing.is_empty(), "{}: no test is named {missing:?}", cells[0]);
    }

    let what_they_do = readme_table("| what the controller does |");
    let untold: Vec<_> =
        what_they_do.iter().filter(|cell| !said.contains(&cell.as_str())).collect();
    assert!(untold.is_empty(), "docs/promises.md does not have {untold:#?}");
    for heading in ["What holds", "Limits"] {
        for point in section(heading).split("\n- ").skip(1) {
            let point = point.split_whitespace().collect::<Vec<_>>().join(" ");
            let is_told = said.iter().any(|words| point.contains(words));
            assert!(is_told, "docs/promises.md does not have: {point}");
        }
    }
}

/// The first cells of the table of the README with this header.
fn readme_table(header: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with(header)).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.map(|row| cells(row)[0].trim().to_owned()).collect()
}

/// The fields of a schema that hold no others, but for those of label selectors, by path.
fn fields(schema: &serde_json::Value, path: &str, found: &mut BTreeSet<String>) {
    let properties = schema["properties"].as_object();
    let is_selector = properties.is_some_and(|all| all.contains_key("matchLabels"));
    if let Some(items) =
        schema["items"].as_object().filter(|items| items.contains_key("properties"))
        && !path.ends_with("ranges")
    {
        return fields(&items.clone().into(), &format!("{path}[]"), found);
    }
    match properties.filter(|_| !is_selector) {
        Some(all) => {
            all.iter().for_each(|(name, one)| fields(one, &format!("{path}.{name}"), found));
        }
        None => drop(found.insert(path.to_owned())),
    }
}

#[test]
fn every_field_of_a_config_has_its_rule_and_every_rule_its_test() {
    let crds = fs::read_to_string(Path::new(ROOT).join("deploy/crds.yaml")).unwrap();
    let mut found = BTreeSet::new();
    for crd in crds.split("---\n").filter(|document| !document.is_empty()) {
        let crd = ctrlmesh::cli::yaml::parse(crd).unwrap().unwrap();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        fields(spec, "spec", &mut found);
    }
    // Kridge's has its limits there, too.
    found.retain(|field| !field.starts_with("spec.limits[].objectSelector."));
    found.insert("spec.limits[].objectSelector".to_owned());
    // The limits of a root are limits.
    let (of_root, limits) = ("spec.root.resourceSelector", "spec.limits");
    let as_limit = |field: String| field.replace(&format!("{of_root}[]"), &format!("{limits}[]"));
    let mut found: BTreeSet<_> = found.into_iter().map(as_limit).collect();
    found.insert(of_root.to_owned());
    let text = fs::read_to_string(Path::new(ROOT).join("docs/config.md")).unwrap();
    let quoted = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("| ")).map(cells).collect();
    let told: BTreeSet<_> = rows.iter().flat_map(|row| quoted(row[0])).collect();
    let untold: Vec<_> = found.difference(&told).collect();
    assert!(untold.is_empty(), "docs/config.md has no rule of {untold:#?}");
    let parents = |field: &&String| !found.iter().any(|leaf| leaf.starts_with(&***field));
    let unknown: Vec<_> = told.iter().filter(parents).collect();
    assert!(unknown.is_empty(), "docs/config.md has rules of no field: {unknown:#?}");
    let tests: BTreeSet<_> = FOLDERS.iter().flat_map(|folder| tests(folder).into_keys()).collect();
    for row in rows.iter().filter(|row| !row[0].contains("---")) {
        let named = quoted(row.last().unwrap());
        assert!(!named.is_empty() || row.last().unwrap().trim() == "test", "no test: {row:?}");
        for test in named {
            assert!(tests.contains(&test), "docs/config.md names a test that is not there: {test}");
        }
    }
}
