//! The language of the code: names that docs/glossary.md rules out fail here, with the word to use; so do errors that
//! are text, and decisions by the text of an error.

mod text_comparison;
mod text_error;

use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// Words that no name contains, and what to write instead.
const WORDS: [(&[&str], &str); 4] = [
    (&["told", "tell", "tells", "telling"], "report_…, log_… or error_chain"),
    (&["fate", "standing", "sight"], "…State, …Availability or …Watch, with the noun in front"),
    (&["nobody", "somebody", "whoever"], "the thing itself: server, process, caller, user"),
    (&["bury", "herald", "audience"], "clean_up_…, publisher"),
];

/// Whole names that say nothing where they are used, and what to write instead.
const NAMES: [(&[&str], &str); 8] = [
    (&["look", "looks"], "check_…, read_… or observe_…, with the object"),
    (&["note", "noted", "notes"], "journal_… or record_…, with the object"),
    (&["left"], "leftover…, remaining… or orphan…"),
    (&["go", "go_on", "goes_on", "carry_on", "carry_out"], "resume_…, drive_… or apply_…"),
    (&["kit", "course", "crew"], "RunResources, BackupRun, RestoreRun, TaskSet"),
    (&["then", "how", "why", "way"], "a noun: NextStage, …Context, …Reason, Destination"),
    (
        &["taken", "tried", "brought", "begun", "kept", "held", "made", "seen"],
        "a noun: …Outcome, …Attempt",
    ),
    (
        &["door", "hope", "patience", "pace", "witness", "mood", "pen", "diary"],
        "subresource, retry, limiter, reporter",
    ),
];

/// Splits `errorChain`, `ErrorChain` and `error_chain` into words in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() {
            words.push(String::new());
        }
        if letter != '_' {
            words.last_mut().unwrap().extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Replacement for a name that contains a ruled-out word.
fn replacement_of_word(name: &str) -> Option<&'static str> {
    let words = words(name);
    let found = WORDS.iter().find(|(out, _)| words.iter().any(|word| out.contains(&&**word)));
    found.map(|(_, instead)| *instead)
}

/// Replacement for a name, if it is ruled out.
fn replacement(name: &str) -> Option<&'static str> {
    let whole = words(name).join("_");
    let by_name = NAMES.iter().find(|(out, _)| out.contains(&&*whole));
    replacement_of_word(name).or(by_name.map(|(_, instead)| *instead))
}

/// Collects names where they are defined.
#[derive(Default)]
struct Definitions {
    names: Vec<String>,
    /// Variants are read after the name of their enum, so one may be a participle.
    variants: Vec<String>,
}

impl Definitions {
    fn add(&mut self, name: &syn::Ident) {
        self.names.push(name.to_string());
    }
}

impl<'ast> Visit<'ast> for Definitions {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Const(item) => self.add(&item.ident),
            syn::Item::Enum(item) => self.add(&item.ident),
            syn::Item::Mod(item) => self.add(&item.ident),
            syn::Item::Static(item) => self.add(&item.ident),
            syn::Item::Struct(item) => self.add(&item.ident),
            syn::Item::Trait(item) => self.add(&item.ident),
            syn::Item::Type(item) => self.add(&item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.add(&signature.ident);
        visit::visit_signature(self, signature);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if let syn::ImplItem::Const(item) = item {
            self.add(&item.ident);
        }
        visit::visit_impl_item(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.names.extend(field.ident.as_ref().map(ToString::to_string));
        visit::visit_field(self, field);
    }

    /// Parameters of functions and closures, variables, and names in patterns.
    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.add(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_use_rename(&mut self, rename: &'ast syn::UseRename) {
        self.add(&rename.rename);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.variants.push(variant.ident.to_string());
        visit::visit_variant(self, variant);
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// All source files that are written by hand.
fn written_by_hand() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in ["bench", "crates", "plugins"] {
        sources(&root.join(folder), &mut files);
    }
    files.retain(|file| !file.components().any(|part| part.as_os_str() == "generated"));
    assert!(files.len() > 500, "only {} files were found", files.len());
    files
}

/// The same files without tests, with their paths from the root of the repository.
pub(crate) fn product_files() -> Vec<(PathBuf, syn::File)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let is_test = |path: &Path| {
        let test_folder = path.components().any(|part| part.as_os_str() == "tests");
        test_folder || path.file_stem().is_some_and(|stem| stem == "tests")
    };
    let relative = |file: PathBuf| (file.strip_prefix(&root).unwrap().to_owned(), file);
    let files = written_by_hand().into_iter().map(relative).filter(|(path, _)| !is_test(path));
    let parse = |file: &Path| syn::parse_file(&std::fs::read_to_string(file).unwrap()).unwrap();
    files.map(|(path, file)| (path, parse(&file))).collect()
}

/// True for what only tests compile: `#[test]`, `#[tokio::test]`, `#[cfg(test)]`, `#[cfg(any(test, …))]`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = attribute.path().segments.last().is_some_and(|last| last.ident == "test");
        let is_cfg_test = attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let words = list.tokens.to_string();
                words == "test" || words.starts_with("any (test")
            });
        is_test || is_cfg_test
    })
}

#[test]
fn no_name_is_one_that_the_glossary_rules_out() {
    let mut wrong = Vec::new();
    for file in written_by_hand() {
        let parsed = syn::parse_file(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let mut found = Definitions::default();
        found.visit_file(&parsed);
        let names = found.names.iter().map(|name| (name, replacement(name)));
        let variants = found.variants.iter().map(|name| (name, replacement_of_word(name)));
        for (name, instead) in names.chain(variants) {
            if let Some(instead) = instead {
                wrong.push(format!("{}: `{name}`; use {instead}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "see docs/glossary.md:\n{}", wrong.join("\n"));
}

#[test]
fn names_are_judged_by_their_words() {
    for out in ["told", "tell_progress", "TellAll", "RunStanding", "look", "Then", "Taken", "go_on"]
    {
        assert!(replacement(out).is_some(), "{out}");
    }
    for fine in
        ["lookup", "look_up_pod", "stellar", "leftovers", "BackupOutcome", "thaw", "then_resume"]
    {
        assert!(replacement(fine).is_none(), "{fine}");
    }
}

#[test]
fn names_are_read_wherever_they_are_defined() {
    let source = "use a as b; struct C { d: u8 } fn e(f: u8) { let g = |h| match h { Some(i) => i, _ => 0 }; }";
    let mut found = Definitions::default();
    found.visit_file(&syn::parse_str(source).unwrap());
    assert_eq!(found.names, ["b", "C", "d", "e", "f", "g", "h", "i"]);
}
