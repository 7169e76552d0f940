//! A ratchet for words: type names with two meanings, and words that a newcomer stumbles over, may only
//! get fewer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::direction::{PACKAGES, source};

/// The type names that stand twice in a package. Take a name out where one of its types gets another.
const REPEATED: [&str; 16] = [
    "cli Asked",
    "cli Facts",
    "cli Output",
    "cli Server",
    "manager Config",
    "manager Stamped",
    "manager Verdict",
    "policy Write",
    "proxy Answer",
    "proxy Failed",
    "proxy Held",
    "proxy Inbound",
    "proxy Shown",
    "proxy Stop",
    "wire Events",
    "wire Reader",
];

/// Words that have a plainer one, and how often they stand in comments, texts and documents. Lower the number
/// where there are fewer.
const BANNED: [(&str, usize); 10] = [
    ("anew", 3),
    ("beside", 19),
    ("whoever", 1),
    ("nobody", 32),
    ("somebody", 0),
    ("goes by", 2),
    ("is told", 3),
    ("as it should be", 1),
    ("what is", 27),
    ("by now", 0),
];

/// Most words of the first sentence of a doc comment.
const FIRST_SENTENCE: usize = 20;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The name of the type that a line declares at the left margin.
fn declared(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => line,
    };
    let (kind, rest) = line.split_once(' ')?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len());
    ["struct", "enum", "trait", "type"].contains(&kind).then(|| &rest[..end])
}

#[test]
fn the_name_of_a_declared_type_is_found() {
    assert_eq!(declared("pub(in crate::a) struct Scope<S> {"), Some("Scope"));
    assert_eq!(declared("type Found = u8;"), Some("Found"));
    assert_eq!(declared("    struct Inner;"), None);
    assert_eq!(declared("pub fn scope() {}"), None);
}

#[test]
fn a_type_name_has_one_meaning_in_a_package() {
    let mut repeated = BTreeSet::new();
    for package in PACKAGES {
        let mut count: BTreeMap<String, usize> = BTreeMap::new();
        for (_, text) in source(package) {
            for name in text.lines().filter_map(declared) {
                *count.entry(name.to_owned()).or_default() += 1;
            }
        }
        let twice = count.into_iter().filter(|(_, count)| *count > 1);
        repeated.extend(twice.map(|(name, _)| format!("{package} {name}")));
    }
    let known: BTreeSet<String> = REPEATED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(repeated, known, "give new types another name; take out what is unique");
}

/// The sources and documents, with their paths. The changelog keeps its words.
fn texts() -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    let mut left: Vec<PathBuf> = vec![root().to_owned()];
    while let Some(path) = left.pop() {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_skipped = ["target", "house", "node_modules", "CHANGELOG.md"].contains(&name);
        if is_skipped || (name.starts_with('.') && path != root()) {
            continue;
        }
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|end| end == "rs" || end == "md") {
            let text = fs::read_to_string(&path).unwrap();
            all.push((path, text));
        }
    }
    all
}

/// How often a word stands in a text as a whole word.
fn count(text: &str, word: &str) -> usize {
    let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let is_whole = |at: usize| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_of_word) && !after.is_some_and(is_of_word)
    };
    text.match_indices(word).filter(|(at, _)| is_whole(*at)).count()
}

#[test]
fn whole_words_are_counted() {
    assert_eq!(count("nobody, nobody's, for_nobody, nobodys", "nobody"), 2);
}

#[test]
fn words_that_have_a_plainer_one_get_fewer() {
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in texts() {
        let is_document = path.extension().is_some_and(|end| end == "md");
        for line in text.lines() {
            // Code is excepted.
            if is_document || line.contains('"') || line.contains("//") {
                let line = line.to_lowercase();
                for (word, _) in BANNED {
                    *found.entry(word).or_default() += count(&line, word);
                }
            }
        }
    }
    let known: BTreeMap<&str, usize> = BANNED.into_iter().collect();
    assert_eq!(found, known, "use a plainer word; lower the number where there are fewer");
}

/// The first sentences of the doc comments of a file, each with its line.
fn first_sentences(text: &str) -> Vec<(usize, String)> {
    let mut sentences = Vec::new();
    let mut paragraph: Option<(usize, String)> = None;
    let mut is_inside = false;
    for (at, line) in text.lines().chain([""]).enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
        match doc {
            Some(doc) if !is_inside => {
                is_inside = true;
                paragraph = Some((at + 1, doc.trim().to_owned()));
            }
            Some(doc) if !doc.trim().is_empty() => {
                if let Some((_, text)) = &mut paragraph {
                    text.push(' ');
                    text.push_str(doc.trim());
                }
            }
            doc => {
                sentences.extend(paragraph.take());
                is_inside = doc.is_some();
            }
        }
    }
    let first = |(at, text): (usize, String)| {
        let end = [". ", ": "].iter().filter_map(|end| text.find(end)).min();
        (at, text[..end.unwrap_or(text.len())].to_owned())
    };
    sentences.into_iter().map(first).collect()
}

#[test]
fn the_first_sentence_ends_at_a_stop() {
    let text = "//! One two. Three.\n//!\n//! Four.\n\n/// Five\n/// six: seven\nfn eight() {}\n";
    let found = first_sentences(text);
    assert_eq!(found, [(1, "One two".to_owned()), (5, "Five six".to_owned())]);
}

#[test]
fn the_first_sentence_of_a_doc_comment_is_short() {
    let mut long = Vec::new();
    for (path, text) in texts().into_iter().filter(|(path, _)| path.extension().unwrap() == "rs") {
        for (line, sentence) in first_sentences(&text) {
            if sentence.split_whitespace().count() > FIRST_SENTENCE {
                long.push(format!("{}:{line}: {sentence}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "say it in {FIRST_SENTENCE} words:\n{}", long.join("\n"));
}
