//! The seeds hold in every target, and those that were written by hand also cut short and damaged.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use ctrlmesh_fuzz::TARGETS;

type Seeds = BTreeMap<String, Vec<u8>>;

/// The entries of a folder, by name.
fn entries(folder: &Path) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path)).collect()
}

fn seeds() -> BTreeMap<String, Seeds> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let read = |folder: &Path| {
        let files = entries(folder).into_iter();
        files.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
    };
    entries(&corpus).into_iter().map(|(name, folder)| (name, read(&folder))).collect()
}

#[test]
fn every_target_has_seeds_and_every_seed_a_target() {
    let seeds = seeds();
    let targets: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    let mut sorted = targets.clone();
    sorted.sort_unstable();
    assert_eq!(seeds.keys().map(String::as_str).collect::<Vec<_>>(), sorted);
    for (target, seeds) in seeds {
        assert!(!seeds.is_empty(), "{target}");
        for (name, seed) in seeds {
            assert!((1..8192).contains(&seed.len()), "{target}/{name}");
        }
    }
}

/// Whether libFuzzer named it. Such seeds are many, and it has looked at what they turn into.
fn is_found(name: &str) -> bool {
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[test]
fn seeds_hold_whole_cut_short_and_damaged() {
    let seeds = seeds();
    for (target, run) in TARGETS {
        for (name, seed) in &seeds[target] {
            // Seen in the output of a test that fails.
            println!("{target}/{name}");
            run(seed);
            if is_found(name) {
                continue;
            }
            for place in (0..seed.len()).step_by(1 + seed.len() / 24) {
                run(&seed[..place]);
                for damage in [1, 0x20, 0xff] {
                    let mut damaged = seed.clone();
                    damaged[place] ^= damage;
                    run(&damaged);
                }
            }
        }
    }
}
