//! The pod's own labels, as the kubelet writes them.

use std::{collections::BTreeMap, fs, path::Path};

/// Reads the file. Fails with a message for the administrator.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&text)
}

/// Parses labels as a downwardAPI volume writes them: one `key="value"` per line, the value quoted
/// as in Go, which for the characters of labels is as in JSON.
fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let bad = || format!("{line:?} is not KEY=\"VALUE\"");
            let (key, value) = line.split_once('=').ok_or_else(bad)?;
            let value = serde_json::from_str(value).map_err(|_| bad())?;
            Ok((key.to_owned(), value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_as_the_kubelet_writes_them() {
        let labels = parse("a.io/b=\"c\"\nempty=\"\"\n").unwrap();
        assert_eq!(labels["a.io/b"], "c");
        assert_eq!(labels["empty"], "");
        assert!(parse("a").is_err() && parse("a=b").is_err());
    }
}
