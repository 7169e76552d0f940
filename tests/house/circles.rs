//! The graph of the files: which file names items of which other. It has no circle, and neither has
//! the graph of the children of a folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::direction::{PACKAGES, files_below};

/// The path of a module from the root of its crate; the path of an item, too.
type Names = Vec<String>;

/// The names of items by which a file depends on another: `(from, to)` to names.
type Edges = BTreeMap<(String, String), BTreeSet<String>>;

/// The content of a module, as far as dependencies go.
#[derive(Default)]
struct Module {
    file: String,
    imports: Vec<Import>,
    /// The paths in its code.
    paths: Vec<Names>,
    /// The names of its own items.
    items: BTreeSet<String>,
}

/// One leaf of a `use`.
struct Import {
    path: Names,
    /// Its name here; `*` for all items.
    name: String,
}

impl Module {
    fn of(file: &str) -> Self {
        Self { file: file.to_owned(), ..Self::default() }
    }
}

/// A module that is being read.
struct Open {
    path: Names,
    module: Module,
    /// Number of braces around it.
    depth: usize,
}

/// The words in front of the name of an item.
const ITEMS: [&str; 8] = ["struct", "enum", "fn", "trait", "type", "const", "static", "union"];

/// The modules of one crate.
#[derive(Default)]
struct Modules(BTreeMap<Names, Module>);

/// The words and signs of a source, without comments, texts and lifetimes.
fn tokens(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let mut is_token = false;
        let length = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |at| at + 2),
            '"' => text_length(rest),
            '\'' => quote_length(rest),
            _ if is_of_word(first) => raw_text_length(rest).unwrap_or_else(|| {
                is_token = true;
                word_length(rest)
            }),
            _ => {
                is_token = !first.is_whitespace();
                if rest.starts_with("::") { 2 } else { first.len_utf8() }
            }
        };
        let (token, behind) = rest.split_at(length);
        found.extend(is_token.then_some(token));
        rest = behind;
    }
    found
}

fn is_of_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn word_length(rest: &str) -> usize {
    rest.find(|character| !is_of_word(character)).unwrap_or(rest.len())
}

fn text_length(rest: &str) -> usize {
    let mut is_escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, character)| {
        let ends = *character == '"' && !is_escaped;
        is_escaped = *character == '\\' && !is_escaped;
        ends
    });
    end.map_or(rest.len(), |(at, _)| at + 1)
}

fn raw_text_length(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].iter().find(|prefix| **prefix == &rest[..word_length(rest)])?;
    let behind = rest[prefix.len()..].trim_start_matches('#');
    let hashes = rest.len() - prefix.len() - behind.len();
    let text = behind.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(rest.len() - text.len() + text.find(&end)? + end.len())
}

/// The length of a character, or of a lifetime.
fn quote_length(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(2);
    match (rest[1..].chars().next(), characters.next()) {
        (Some('\\'), _) => rest[3..].find('\'').map_or(rest.len(), |at| at + 4),
        (_, Some((at, '\''))) => at + 1,
        _ => 1 + word_length(&rest[1..]),
    }
}

/// Reads the tree of a `use` from its tokens, and returns those behind it.
fn read_use<'t, 's>(
    mut tokens: &'t [&'s str],
    before: &[String],
    found: &mut Vec<Import>,
) -> &'t [&'s str] {
    let mut path = before.to_vec();
    while let Some((token, behind)) = tokens.split_first() {
        tokens = behind;
        match *token {
            "::" => continue,
            "*" => {
                found.push(Import { path, name: "*".to_owned() });
                return tokens;
            }
            "{" => {
                while tokens.first().is_some_and(|token| *token != "}") {
                    tokens = read_use(tokens, &path, found);
                    tokens = tokens.strip_prefix(&[","]).unwrap_or(tokens);
                }
                return tokens.get(1..).unwrap_or_default();
            }
            word => path.push(word.to_owned()),
        }
        if tokens.first() == Some(&"::") {
            continue;
        }
        // `a::{self}` is `a`.
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if let ["as", alias, behind @ ..] = tokens {
            name = (*alias).to_owned();
            tokens = behind;
        }
        found.push(Import { path, name });
        break;
    }
    tokens
}

/// Reads the path at the start of the tokens.
fn read_path(tokens: &[&str]) -> Names {
    let mut path = Names::new();
    for two in tokens.chunks(2).take_while(|two| two[0].starts_with(is_of_word)) {
        path.push(two[0].to_owned());
        if two.get(1) != Some(&"::") {
            break;
        }
    }
    path
}

impl Modules {
    /// The modules of the files of a crate, whose paths start at its root.
    fn read<'f>(files: impl IntoIterator<Item = (&'f str, &'f str)>) -> Self {
        let mut modules = Self::default();
        for (file, text) in files {
            let mut path: Names = file.trim_end_matches(".rs").split('/').map(Into::into).collect();
            path.pop_if(|last| last == "mod" || last == "lib");
            modules.read_file(file, path, &tokens(text));
        }
        modules
    }

    fn read_file(&mut self, file: &str, path: Names, mut tokens: &[&str]) {
        let new = |path, depth| Open { path, depth, module: Module::of(file) };
        // The modules around the token; the file's own ends with the tokens.
        let mut open = vec![new(path, usize::MAX)];
        let mut depth = 0_usize;
        let (mut last, mut second_last) = ("", "");
        while let (Some(Open { path, module, depth: outside }), Some(token)) =
            (open.last_mut(), tokens.first())
        {
            let mut taken = 1;
            match (*token, tokens.get(1), tokens.get(2)) {
                ("use", Some(next), _) if *next != "<" => {
                    taken = tokens.len() - read_use(&tokens[1..], &[], &mut module.imports).len();
                }
                ("mod", Some(name), Some(&"{")) => {
                    let inner = [path.clone(), vec![(*name).to_owned()]].concat();
                    open.push(new(inner, depth));
                    depth += 1;
                    taken = 3;
                }
                ("{", ..) => depth += 1,
                ("}", ..) => {
                    depth -= 1;
                    if *outside == depth {
                        self.0.extend(open.pop().map(|open| (open.path, open.module)));
                    }
                }
                (word, Some(name), _) if ITEMS.contains(&word) => {
                    module.items.insert((*name).to_owned());
                }
                (word, Some(&"::"), _) if word.starts_with(is_of_word) => {
                    let path = read_path(tokens);
                    taken = 2 * path.len() - 1;
                    // `pub(in crate::a)` names no item; `.collect::<Vec<_>>()` is a method.
                    if (second_last, last) != ("(", "in") && last != "." && last != "::" {
                        module.paths.push(path);
                    }
                }
                _ => {}
            }
            second_last = if taken > 1 { "" } else { last };
            last = tokens[taken - 1];
            tokens = &tokens[taken..];
        }
        self.0.extend(open.into_iter().map(|open| (open.path, open.module)));
    }

    /// The module at which a path starts, and the rest of the path. `None` if it starts in another
    /// crate.
    fn start<'p>(&self, at: &Names, path: &'p [String]) -> Option<(Names, &'p [String])> {
        let mut module = at.clone();
        let mut rest = path;
        if let [first, behind @ ..] = path
            && first == "crate"
        {
            return Some((Names::new(), behind));
        }
        while let [first, behind @ ..] = rest
            && (first == "self" || first == "super")
        {
            if first == "super" {
                module.pop();
            }
            rest = behind;
        }
        let first = rest.first();
        let is_known = first.is_some_and(|first| {
            let is_import = |import: &Import| import.name == *first && import.path != path;
            self.0.contains_key(&[at.clone(), vec![first.clone()]].concat())
                || self.0[at].imports.iter().any(is_import)
        });
        (rest.len() < path.len() || is_known).then_some((module, rest))
    }

    /// The module of the item at a path in a module, with the item's name: re-exports are followed.
    /// No name if the path is that of a module; `None` for an item of another crate.
    fn find(&self, at: &Names, path: &[String], depth: usize) -> Option<(Names, Option<String>)> {
        let [first, rest @ ..] = path else { return Some((at.clone(), None)) };
        let module = self.0.get(at)?;
        let inner = [at.clone(), vec![first.clone()]].concat();
        if self.0.contains_key(&inner) {
            return self.find(&inner, rest, depth);
        }
        // A longer chain of re-exports is one that ends nowhere.
        let depth = depth.checked_sub(1)?;
        let target = |import: &Import| {
            let (start, rest) = self.start(at, &import.path)?;
            self.find(&start, rest, depth)
        };
        if let Some(import) = module.imports.iter().find(|import| import.name == *first) {
            let (found, item) = target(import)?;
            return match item {
                None => self.find(&found, rest, depth),
                item => Some((found, item)),
            };
        }
        let item = Some(first.clone());
        if module.items.contains(first) {
            return Some((at.clone(), item));
        }
        let globs = module.imports.iter().filter(|import| import.name == "*");
        let within = globs.filter_map(target).find(|(found, _)| {
            self.0.get(found).is_some_and(|module| module.items.contains(first))
        });
        Some((within.map_or_else(|| at.clone(), |(found, _)| found), item))
    }

    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (at, module) in &self.0 {
            let imports = module.imports.iter().map(|import| (&import.path, import.name == "*"));
            let paths = module.paths.iter().map(|path| (path, false));
            for (path, is_glob) in imports.chain(paths) {
                let start = self.start(at, path);
                let Some((found, item)) = start.and_then(|(at, rest)| self.find(&at, rest, 16))
                else {
                    continue;
                };
                // The import of a module alone names no item: the paths that start there do.
                let name = match item {
                    None if is_glob => "*".to_owned(),
                    None => continue,
                    Some(name) => name,
                };
                let to = self.0.get(&found).map_or(&module.file, |found| &found.file);
                if *to != module.file {
                    let ends = (module.file.clone(), to.clone());
                    edges.entry(ends).or_default().insert(name);
                }
            }
        }
        edges
    }
}

/// The files that a file depends on, also through others.
fn reached<'e>(from: &'e str, direct: &BTreeMap<&'e str, Vec<&'e str>>) -> BTreeSet<&'e str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        let files = direct.get(file).into_iter().flatten().copied();
        next.extend(files.filter(|file| reached.insert(*file)));
    }
    reached
}

/// The strongly connected components of more than one file.
fn circles(edges: &Edges) -> BTreeSet<Vec<String>> {
    let mut direct: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        direct.entry(from).or_default().push(to);
    }
    let all: BTreeMap<_, _> = direct.keys().map(|from| (*from, reached(from, &direct))).collect();
    let circle = |file: &str| -> Vec<String> {
        let is_back = |other: &&&str| all.get(*other).is_some_and(|reached| reached.contains(file));
        all[file].iter().filter(is_back).map(|other| (*other).to_owned()).collect()
    };
    all.keys().map(|file| circle(file)).filter(|circle| !circle.is_empty()).collect()
}

/// A circle with its edges, for people.
fn told(circle: &[String], edges: &Edges) -> String {
    let is_inside = |file: &String| circle.contains(file);
    let mut text = format!("circle of {}\n", circle.len());
    for ((from, to), names) in
        edges.iter().filter(|((from, to), _)| is_inside(from) && is_inside(to))
    {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        text.push_str(&format!("  {from} -> {to}: {}\n", names.join(", ")));
    }
    text
}

/// The dependencies between the children of each folder: its files, and its folders with all below.
///
/// The file of a module, `a/mod.rs` or `a.rs`, is a child of `a` as others are: a folder that needs the
/// module's file cannot be read before it, so that the file must not need the folder. Between `a` and
/// its siblings it counts for `a`.
fn between_children(edges: &Edges) -> Edges {
    let files = edges.keys().flat_map(|(from, to)| [from, to]);
    let folders: BTreeSet<&str> = files.filter_map(|file| Some(file.rsplit_once('/')?.0)).collect();
    let place = |file: &str| -> Names {
        let file = file.trim_end_matches(".rs");
        let own = folders.contains(file).then_some("mod");
        file.split('/').chain(own).map(Into::into).collect()
    };
    let mut found = Edges::new();
    for ((from_file, to_file), names) in edges {
        let (from, to) = (place(from_file), place(to_file));
        let shared = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
        let child = |of: &Names| of[..=shared].join("/");
        let names = names.iter().map(|name| format!("{name} for {from_file}"));
        found.entry((child(&from), child(&to))).or_default().extend(names);
    }
    found
}

/// The edges between the files of a crate, named by their paths in the repository.
fn edges_of_crate(folder: &str) -> Edges {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files: Vec<_> = files_below(root.clone())
        .into_iter()
        .map(|(path, text)| (path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(), text))
        // A crate of its own, which no file can name.
        .filter(|(path, _)| path != "main.rs")
        .collect();
    let modules = Modules::read(files.iter().map(|(path, text)| (path.as_str(), text.as_str())));
    let named = |file: String| format!("{folder}/{file}");
    let edges = modules.edges().into_iter();
    edges.map(|((from, to), names)| ((named(from), named(to)), names)).collect()
}

fn edges_of_all() -> Edges {
    let packages = PACKAGES.map(|name| format!("src/{name}"));
    let mut edges = edges_of_crate("init/src");
    edges.extend(packages.iter().flat_map(|folder| edges_of_crate(folder)));
    assert!(edges.len() > 100, "only {} dependencies were found", edges.len());
    edges
}

#[test]
fn files_form_no_circle() {
    let edges = edges_of_all();
    let found: String = circles(&edges).iter().map(|circle| told(circle, &edges)).collect();
    assert!(found.is_empty(), "{found}");
}

#[test]
fn the_children_of_a_folder_form_no_circle() {
    let edges = between_children(&edges_of_all());
    let found: String = circles(&edges).iter().map(|circle| told(circle, &edges)).collect();
    assert!(found.is_empty(), "{found}");
}

fn found_in(files: &[(&str, &str)]) -> Vec<String> {
    let edges = Modules::read(files.iter().copied()).edges();
    circles(&edges).iter().map(|circle| told(circle, &edges)).collect()
}

#[test]
fn a_circle_is_told_with_its_edges() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::{b::{self, B as Other}, c::C}; pub struct A;"),
        ("b.rs", "pub struct B; fn f(_: &'static str) { 'x'; r#\"\"\"#; super::a::A; }"),
        ("c.rs", "pub struct C; // crate::a::A\n const D: &str = \"crate::a::A\";"),
    ];
    assert_eq!(found_in(&files), ["circle of 2\n  a.rs -> b.rs: B\n  b.rs -> a.rs: A\n"]);
}

#[test]
fn a_re_export_is_the_childs_item() {
    let module = "mod a; mod b; pub use self::a::A; pub use b::B; pub struct M;";
    let siblings = [
        ("m/mod.rs", module),
        ("m/a.rs", "pub struct A;"),
        ("m/b.rs", "use super::A; pub struct B;"),
    ];
    assert_eq!(found_in(&siblings), [""; 0]);
    let child = [siblings[0], siblings[1], ("m/b.rs", "pub struct B(super::M);")];
    assert_eq!(
        found_in(&child),
        ["circle of 2\n  m/b.rs -> m/mod.rs: M\n  m/mod.rs -> m/b.rs: B\n"]
    );
    let declared = [("m/mod.rs", "mod b; pub struct M;"), child[2]];
    assert_eq!(found_in(&declared), [""; 0]);
}

#[test]
fn children_form_a_circle_where_their_files_form_none() {
    let circles_of = |files: &[(&str, &str)]| -> Vec<String> {
        let all = Modules::read(files.iter().copied()).edges();
        assert_eq!(circles(&all), BTreeSet::new());
        let edges = between_children(&all);
        circles(&edges).iter().map(|circle| told(circle, &edges)).collect()
    };
    let w = ("w/mod.rs", "mod a; mod b;");
    let a = ("w/a/mod.rs", "mod x; pub use x::X; pub struct A(super::b::y::Y);");
    let x = ("w/a/x.rs", "pub struct X;");
    let b = ("w/b.rs", "pub mod y; pub struct B(super::a::X);");
    let y = ("w/b/y.rs", "pub struct Y;");
    assert_eq!(
        circles_of(&[w, a, x, b, y]),
        ["circle of 2\n  w/a -> w/b: Y for w/a/mod.rs\n  w/b -> w/a: X for w/b.rs\n"]
    );
    let alone = ("w/b.rs", "pub mod y; pub struct B;");
    assert_eq!(circles_of(&[w, a, x, alone, y]), [""; 0]);
    let w = ("w/mod.rs", "mod a; mod b; pub struct W(a::X);");
    assert_eq!(circles_of(&[w, a, x, alone, y]), [""; 0]);
    let z = ("w/a/z.rs", "pub struct Z(super::super::W);");
    assert_eq!(
        circles_of(&[w, a, x, z, alone, y]),
        ["circle of 2\n  w/a -> w/mod: W for w/a/z.rs\n  w/mod -> w/a: X for w/mod.rs\n"]
    );
    let b = ("w/b.rs", "pub mod y; pub struct B(y::Y);");
    let y = ("w/b/y.rs", "pub mod z; pub struct Y;");
    let z = ("w/b/y/z.rs", "pub struct Z(super::super::B);");
    assert_eq!(
        circles_of(&[b, y, z]),
        ["circle of 2\n  w/b/mod -> w/b/y: Y for w/b.rs\n  w/b/y -> w/b/mod: B for w/b/y/z.rs\n"]
    );
}

#[test]
fn paths_through_modules_globs_and_blocks_are_found() {
    let through = |inner: &str| {
        let a = format!("mod inner {{ {inner} }} pub struct A;");
        let b = "use crate::a::A; pub struct B;";
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", a.as_str()), ("b.rs", b)];
        found_in(&files).len()
    };
    assert_eq!(through("use super::super::b; fn f() -> b::B {}"), 1);
    assert_eq!(through("pub(in crate::b) fn f() {}"), 0);
    assert_eq!(through("use crate::b::*;"), 1);
}
