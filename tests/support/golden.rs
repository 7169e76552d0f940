//! Golden files: output that people and machines read. `BLESS=1` rewrites them.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Compares with `tests/golden/NAME`.
pub fn check(name: &str, actual: &str) {
    check_file(&format!("tests/golden/{name}"), actual);
}

/// Compares with a file of the repository.
pub fn check_file(path: &str, actual: &str) {
    let path = repository().join(path);
    if env::var_os("BLESS").is_some() {
        fs::write(&path, actual).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == actual,
        "{} is not what we say now; look, then run with BLESS=1.\n--- golden\n{expected}\n--- now\n{actual}",
        path.display()
    );
}

/// The folder of the workspace, above that of the package whose tests run.
fn repository() -> PathBuf {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("Cargo.lock").exists()).unwrap().to_owned()
}
