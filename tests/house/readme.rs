//! The configs and commands in README.md match the program.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use ctrlmesh::policy::from_documents;
use serde_yaml::Value;

use crate::support::process::run;

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap()
}

/// The first block is a config, the second shows more limits.
#[test]
fn the_configs_of_the_readme_are_policies() {
    let readme = readme();
    let blocks: Vec<_> = readme.split("```yaml\n").skip(1).collect();
    let blocks: Vec<_> = blocks.iter().map(|block| block.split("```").next().unwrap()).collect();
    let [config, limits, root] = blocks[..] else { panic!("other blocks: {blocks:#?}") };
    let draft = |text: &str| from_documents(text.as_bytes(), "blue", None).unwrap();
    draft(config).resolve(None).unwrap();

    let mut config: Value = serde_yaml::from_str(config).unwrap();
    config["spec"]["limits"] = serde_yaml::from_str(limits).unwrap();
    let text = serde_yaml::to_string(&config).unwrap();
    let why = draft(&text).resolve(None).unwrap_err();
    assert!(why.field.starts_with("spec.limits[0].namespaces.selector"), "{}", why.field);

    // It can be used, and has no pods itself.
    let why = from_documents(root.as_bytes(), "my-operator", None).unwrap_err().to_string();
    assert!(why.ends_with("is a root, which has no pods: name the config of a shard"), "{why}");
}

/// The commands in the table of the README.
fn commands() -> BTreeSet<String> {
    let readme = readme();
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `ctrlmesh "));
    rows.map(|row| row.split([' ', '`']).next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_readme_has_every_command() {
    let (_, help) = run(&["--help".to_owned()]).await;
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let names = list.lines().take_while(|line| !line.is_empty());
    // Lines with more indentation continue a text.
    let names = names.filter_map(|line| line.strip_prefix("  ")?.split_once("  "));
    let names = names.map(|(name, _)| name.to_owned());
    let names: BTreeSet<_> = names.filter(|name| !["", "help"].contains(&name.as_str())).collect();
    assert_eq!(names, commands());
}

#[tokio::test]
async fn every_flag_has_the_variable_that_the_readme_promises() {
    // Variables with the names that Kubernetes uses.
    let bare = ["POD_NAME", "POD_NAMESPACE", "POD_UID"];
    for command in commands() {
        let (_, help) = run(&[command.clone(), "--help".to_owned()]).await;
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in help.split(" --").skip(1) {
            let flag = text.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap();
            if ["help", "diff", "delete-silent"].contains(&flag) {
                continue;
            }
            let variable = flag.to_uppercase().replace('-', "_");
            let is_bare = bare.contains(&variable.as_str());
            let wanted = if is_bare { variable } else { format!("CTRLMESH_{variable}") };
            let is_told = help.contains(&format!("[env: {wanted}="));
            assert!(is_told, "ctrlmesh {command} --{flag} without {wanted}");
        }
    }
}

/// The scripts that the documents name explain themselves, whatever is installed.
#[test]
fn every_script_that_is_named_says_how_it_is_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = BTreeSet::new();
    for file in ["README.md", "CONTRIBUTING.md", "deploy/chart/README.md", "deploy/Containerfile"] {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let word =
            |rest: &str| rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap().to_owned();
        named.extend(text.split("scripts/").skip(1).map(word));
    }
    assert!(named.len() >= 5, "{named:?}");
    for name in named {
        let script = root.join("scripts").join(&name);
        let said = Command::new(&script).arg("--help").output().unwrap();
        let help = String::from_utf8(said.stdout).unwrap();
        assert!(said.status.success(), "{name}");
        assert!(help.starts_with(&format!("usage: scripts/{name} ")), "{name}: {help}");
        let wrong = Command::new(&script).arg("--no-such-flag").output().unwrap();
        assert_eq!(wrong.status.code(), Some(64), "{name}");
    }
}
