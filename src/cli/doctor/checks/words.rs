//! Lists of names, and texts of others, in a line.

/// Names that are listed.
const NAMED: usize = 5;
/// The longest text of others, in characters.
const QUOTED: usize = 400;

/// `pod a`, `pods a, b`, `pods a, b, c, d, e and 3 more`.
pub(super) fn named(noun: &str, names: &[&str]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    let (first, rest) = names.split_at(names.len().min(NAMED));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    format!("{noun}{plural} {}{more}", first.join(", "))
}

/// The text of someone else in one line, cut off if it is long.
pub(super) fn quoted(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_end_and_texts_are_cut_off() {
        assert_eq!(named("pod", &["a"]), "pod a");
        assert_eq!(named("pod", &["a", "b", "c", "d", "e"]), "pods a, b, c, d, e");
        assert_eq!(named("pod", &["a", "b", "c", "d", "e", "f"]), "pods a, b, c, d, e and 1 more");
        assert_eq!(quoted(" a\n b\t c "), "a b c");
        let cut = quoted(&"é".repeat(QUOTED + 1));
        assert_eq!(cut, format!("{}…", "é".repeat(QUOTED)));
    }
}
