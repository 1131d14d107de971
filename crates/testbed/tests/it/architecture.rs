//! Checks ARCHITECTURE.md: each path exists, and each name is in the file beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A path of the page in the repository.
fn resolve(path: &str) -> PathBuf {
    let is_from_root =
        ["plugins/", "bench/", "docs/"].iter().any(|folder| path.starts_with(folder));
    if is_from_root { root().join(path) } else { root().join("crates").join(path) }
}

fn is_source_path(text: &str) -> bool {
    Path::new(text).extension().is_some_and(|extension| extension == "rs")
        && !text.contains(char::is_whitespace)
}

/// `run`, `Filter::item`: something that a source file defines.
fn is_name(text: &str) -> bool {
    let is_identifier = |part: &str| {
        !part.is_empty() && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    text.split("::").all(is_identifier)
}

/// Texts in backticks, each with the text between it and the one before.
fn code_spans(text: &str) -> Vec<(&str, &str)> {
    let mut parts = text.split('`');
    let mut spans = Vec::new();
    while let (Some(between), Some(code)) = (parts.next(), parts.next()) {
        spans.push((between, code));
    }
    spans
}

/// Definitions of source files, by file: functions, types, constants, modules and variants.
#[derive(Default)]
struct Definitions {
    by_file: BTreeMap<String, Vec<String>>,
}

impl Definitions {
    fn of(&mut self, path: &str) -> &[String] {
        self.by_file.entry(path.to_owned()).or_insert_with(|| {
            let source = std::fs::read_to_string(resolve(path)).unwrap_or_default();
            let mut found = Names::default();
            found.visit_file(&syn::parse_file(&source).unwrap());
            found.0
        })
    }

    /// True if a file defines the last part of a name: `item` of `Filter::item`.
    fn define(&mut self, path: &str, name: &str) -> bool {
        let last = name.rsplit("::").next().unwrap_or(name);
        self.of(path).iter().any(|defined| defined == last)
    }
}

#[derive(Default)]
struct Names(Vec<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Const(item) => self.0.push(item.ident.to_string()),
            syn::Item::Enum(item) => self.0.push(item.ident.to_string()),
            syn::Item::Static(item) => self.0.push(item.ident.to_string()),
            syn::Item::Struct(item) => self.0.push(item.ident.to_string()),
            syn::Item::Trait(item) => self.0.push(item.ident.to_string()),
            syn::Item::Type(item) => self.0.push(item.ident.to_string()),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.0.push(signature.ident.to_string());
        visit::visit_signature(self, signature);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.0.push(item.ident.to_string());
    }

    /// Macros define types too.
    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        let tokens = found.tokens.to_string();
        self.0.extend(tokens.split_whitespace().filter(|word| is_name(word)).map(str::to_owned));
    }

    /// `#[kube(kind = "Backup")]` defines the type `Backup`.
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if attribute.path().is_ident("kube")
            && let Ok(list) = attribute.meta.require_list()
        {
            let tokens = list.tokens.to_string();
            let words = tokens.split_whitespace().map(|word| word.trim_matches(['"', ',']));
            self.0.extend(words.filter(|word| is_name(word)).map(str::to_owned));
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.0.push(variant.ident.to_string());
        visit::visit_variant(self, variant);
    }
}

/// Names that a row of a table gives with their files: | question | files | names |.
fn names_in_rows(page: &str) -> Vec<(Vec<&str>, &str)> {
    let mut found = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [_, files, names] = cells.as_slice() else { continue };
        let files: Vec<&str> = code_spans(files).into_iter().map(|(_, code)| code).collect();
        let files: Vec<&str> = files.into_iter().filter(|path| is_source_path(path)).collect();
        if files.is_empty() {
            continue;
        }
        let names = code_spans(names).into_iter().map(|(_, code)| code);
        found.extend(names.filter(|name| is_name(name)).map(|name| (files.clone(), name)));
    }
    found
}

/// Names that a sentence gives with their files: "`name` in `file`", "`name` (`file`)" and "`file`: `name`".
fn names_in_sentences(page: &str) -> Vec<(Vec<&str>, &str)> {
    let spans = code_spans(page);
    let mut found = Vec::new();
    for pair in spans.windows(2) {
        let ((_, first), (between, second)) = (pair[0], pair[1]);
        match between.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["in" | "("] if is_name(first) && is_source_path(second) => {
                found.push((vec![second], first));
            }
            [":"] if is_source_path(first) && is_name(second) => found.push((vec![first], second)),
            _ => {}
        }
    }
    found
}

/// Names in the pictures of the flow of types: what a line shows in front of its files.
fn names_in_pictures(page: &str) -> Vec<(Vec<&str>, &str)> {
    let mut found = Vec::new();
    for picture in page.split("```").skip(1).step_by(2) {
        for line in picture.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let files: Vec<&str> = words.iter().map(|word| word.trim_end_matches(',')).collect();
            let Some(first) = files.iter().position(|word| is_source_path(word)) else { continue };
            let names =
                words[..first].iter().flat_map(|word| word.split([',', '<', '>', '(', ')']));
            let files: Vec<&str> = files.into_iter().filter(|word| is_source_path(word)).collect();
            let is_code = |name: &&str| {
                is_name(name)
                    && (name.contains("::")
                        || name.contains('_')
                        || name.contains(char::is_uppercase))
            };
            found.extend(names.filter(is_code).map(|name| (files.clone(), name)));
        }
    }
    found
}

#[test]
fn every_path_in_the_architecture_exists() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let words = page.split(|letter: char| letter.is_whitespace() || "`(),|[]".contains(letter));
    let words = words.map(|word| word.trim_end_matches([':', ';', '.']));
    let paths: Vec<&str> =
        words.filter(|word| is_source_path(word) && word.contains('/')).collect();
    assert!(paths.len() > 150, "only {} paths were found", paths.len());
    let missing: Vec<&str> = paths.into_iter().filter(|path| !resolve(path).is_file()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that do not exist: {missing:?}");
}

#[test]
fn every_name_in_the_architecture_is_defined_in_the_file_that_it_names() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut definitions = Definitions::default();
    let mut wrong = Vec::new();
    let pictures = page.find("## The crates").unwrap();
    let (pictures, text) = page.split_at(pictures);
    let text: String = text.split("```").step_by(2).collect();
    for (named, at_least) in [
        (names_in_rows(&text), 80),
        (names_in_sentences(&text), 40),
        (names_in_pictures(pictures), 60),
    ] {
        assert!(named.len() >= at_least, "only {} names were found: {named:?}", named.len());
        for (files, name) in named {
            if !files.iter().any(|file| definitions.define(file, name)) {
                wrong.push(format!("`{name}` is not defined in {}", files.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md is wrong:\n{}", wrong.join("\n"));
}

#[test]
fn names_are_found_with_their_files() {
    let rows = "| q | `a/b.rs` | `Filter::item`, and `not a name` |\n| q | `b` | `c` |";
    assert_eq!(names_in_rows(rows), [(vec!["a/b.rs"], "Filter::item")]);
    let sentences = "`run` in\n `a/b.rs` and `Other` (`c.rs`); `d.rs`: `visit`, `e`";
    let expected = [(vec!["a/b.rs"], "run"), (vec!["c.rs"], "Other"), (vec!["d.rs"], "visit")];
    assert_eq!(names_in_sentences(sentences), expected);
    let pictures = "```\nBackup {Request}  a/b.rs  the Words\n  ▼ one::two  a/c.rs, a/d.rs\n```";
    let expected = [(vec!["a/b.rs"], "Backup"), (vec!["a/c.rs", "a/d.rs"], "one::two")];
    assert_eq!(names_in_pictures(pictures), expected);
}
