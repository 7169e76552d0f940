use std::fmt::Write as _;
use std::path::Path;

use super::ALL;
use crate::name::NameError;

#[test]
fn t72_errors_say_what_is_wrong_and_what_would_be_right() {
    let field = "metadata.name";
    let mut found = String::new();
    for error in [
        NameError::TooLarge(3_145_729),
        NameError::TooDeep,
        NameError::Repeated(field),
        NameError::WrongType { field, expected: "a string" },
        NameError::WrongType { field: "the whole", expected: "an object" },
        NameError::Indirect(field),
        NameError::NotJson,
        NameError::LineBreak(field),
    ]
    .into_iter()
    .chain(ALL.map(NameError::Malformed))
    {
        writeln!(found, "{error}").expect("memory");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("name/tests/golden/errors.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &found).expect("golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).expect("golden file, written with BLESS=1");
    assert_eq!(found, golden, "BLESS=1 rewrites {}", path.display());
}
