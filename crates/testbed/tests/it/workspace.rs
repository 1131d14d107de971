//! Rules of the workspace: the dependencies of each crate, and the place of versions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use syn::visit::{self, Visit};

use crate::language::product_files;

/// For each crate, the crates of the workspace that its code may use. Tests may use more: see
/// `TEST_DEPENDENCIES`. The picture is in ARCHITECTURE.md; to change an arrow is to change the design.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 19] = [
    ("bowline-api", &[]),
    ("bowline-plugin", &["bowline-api"]),
    ("bowline-plugin-wire", &["bowline-api", "bowline-plugin"]),
    ("bowline-plugin-host", &["bowline-api", "bowline-plugin", "bowline-plugin-wire"]),
    (
        "bowline-plugin-check",
        &["bowline-api", "bowline-plugin", "bowline-plugin-host", "bowline-plugin-wire"],
    ),
    ("bowline-plugin-sdk", &["bowline-api", "bowline-plugin", "bowline-plugin-wire"]),
    ("bowline-plugin-fixture", &["bowline-plugin-sdk"]),
    ("bowline-plugin-local-volume", &["bowline-plugin-sdk"]),
    ("bowline-cluster", &["bowline-api", "bowline-plugin"]),
    ("bowline-store", &["bowline-api", "bowline-plugin"]),
    ("bowline-repository", &[]),
    ("bowline-engine", &["bowline-api", "bowline-cluster", "bowline-plugin", "bowline-store"]),
    (
        "bowline-server",
        &[
            "bowline-api",
            "bowline-engine",
            "bowline-plugin",
            "bowline-plugin-host",
            "bowline-store",
        ],
    ),
    ("bowline-test-features", &[]),
    ("bowline-testbed", &[]),
    // The engine plans a restore with `--dry-run`; the test bed is what `bowline demo` starts.
    (
        "bowline-cli",
        &[
            "bowline-api",
            "bowline-engine",
            "bowline-plugin",
            "bowline-plugin-check",
            "bowline-plugin-host",
            "bowline-server",
            "bowline-store",
            "bowline-testbed",
        ],
    ),
    (
        "bowline-bench",
        &["bowline-api", "bowline-engine", "bowline-server", "bowline-store", "bowline-testbed"],
    ),
    (
        "bowline-simulation",
        &[
            "bowline-api",
            "bowline-cluster",
            "bowline-engine",
            "bowline-plugin",
            "bowline-plugin-host",
            "bowline-server",
            "bowline-store",
            // It runs like the tests of other crates, and so builds like them.
            "bowline-test-features",
        ],
    ),
    (
        "bowline-fuzz",
        &[
            "bowline-api",
            "bowline-cli",
            "bowline-cluster",
            "bowline-engine",
            "bowline-plugin",
            "bowline-plugin-wire",
            "bowline-repository",
            "bowline-server",
            "bowline-store",
        ],
    ),
];

/// Dependencies that the tests of any crate may use.
const TEST_DEPENDENCIES: [&str; 5] = [
    "bowline-api",
    "bowline-plugin-check",
    "bowline-plugin-host",
    "bowline-test-features",
    "bowline-testbed",
];

#[test]
fn crates_use_only_what_the_architecture_allows() {
    let allowed: BTreeMap<_, BTreeSet<_>> = ALLOWED_DEPENDENCIES
        .iter()
        .map(|(krate, uses)| (*krate, uses.iter().copied().collect()))
        .collect();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let members: BTreeSet<String> = packages.iter().map(|p| text(&p["name"])).collect();
    let known: BTreeSet<String> = allowed.keys().map(|&name| name.to_owned()).collect();
    assert_eq!(
        members, known,
        "every crate of the workspace has a row in ALLOWED_DEPENDENCIES, and no other"
    );

    let mut wrong = Vec::new();
    for package in packages {
        let user = text(&package["name"]);
        for dependency in package["dependencies"].as_array().unwrap() {
            let target = text(&dependency["name"]);
            let in_tests =
                dependency["kind"] == "dev" && TEST_DEPENDENCIES.contains(&target.as_str());
            // A crate uses itself in its tests with a feature for tests.
            if members.contains(&target)
                && target != user
                && !in_tests
                && !allowed[user.as_str()].contains(target.as_str())
            {
                wrong.push(format!("{user} → {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "not allowed by ALLOWED_DEPENDENCIES: {wrong:?}");
}

/// Modules of the engine that no other module may use, except for those named. What they share is in a module of its
/// own: `csi`, `unpack`, `lookup`, …
const CLOSED_MODULES: [(&str, &[&str]); 3] = [
    // The built-in actions read the pods of a backup.
    ("backup", &["action"]),
    ("restore", &["testing"]),
    ("delete", &[]),
];

/// Finds the first module of each path that begins with `crate`, in `use` and elsewhere.
#[derive(Default)]
struct UsedModules(BTreeSet<String>);

impl UsedModules {
    fn add_tree(&mut self, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => drop(self.0.insert(path.ident.to_string())),
            syn::UseTree::Name(name) => drop(self.0.insert(name.ident.to_string())),
            syn::UseTree::Rename(name) => drop(self.0.insert(name.ident.to_string())),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.add_tree(item)),
            syn::UseTree::Glob(_) => {}
        }
    }
}

impl<'ast> Visit<'ast> for UsedModules {
    fn visit_use_tree(&mut self, tree: &'ast syn::UseTree) {
        if let syn::UseTree::Path(path) = tree
            && path.ident == "crate"
        {
            self.add_tree(&path.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments = path.segments.iter();
        if segments.next().is_some_and(|first| first.ident == "crate")
            && let Some(module) = segments.next()
        {
            self.0.insert(module.ident.to_string());
        }
        visit::visit_path(self, path);
    }
}

fn used_modules(file: &syn::File) -> BTreeSet<String> {
    let mut used = UsedModules::default();
    used.visit_file(file);
    used.0
}

#[test]
fn backups_restores_and_deletions_share_only_modules_of_their_own() {
    let mut wrong = Vec::new();
    let mut modules = BTreeSet::new();
    for (path, file) in product_files() {
        let Ok(inner) = path.strip_prefix("crates/engine/src") else { continue };
        let module = inner.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        modules.insert(module.to_owned());
        let used = used_modules(&file);
        for (closed, users) in CLOSED_MODULES {
            if module != closed && !users.contains(&module) && used.contains(closed) {
                wrong.push(format!("{} uses {closed}", path.display()));
            }
        }
    }
    for module in CLOSED_MODULES.map(|(closed, _)| closed) {
        assert!(modules.contains(module), "{module} is not in {modules:?}");
    }
    assert!(wrong.is_empty(), "move what they share to a module of its own:\n{}", wrong.join("\n"));
}

#[test]
fn used_modules_are_found_in_imports_and_in_paths() {
    let file = syn::parse_file(
        "use crate::backup::csi; use crate::{item::Object, delete}; use super::x;
        fn f(restore: u8) -> crate::restore::Run { journal::crate_it() }",
    );
    let found: Vec<String> = used_modules(&file.unwrap()).into_iter().collect();
    assert_eq!(found, ["backup", "delete", "item", "restore"]);
}

#[test]
fn versions_are_written_in_one_place() {
    let mut wrong = Vec::new();
    for package in metadata()["packages"].as_array().unwrap() {
        let path = package["manifest_path"].as_str().unwrap();
        let manifest: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let table = manifest.get(section).and_then(toml::Value::as_table);
            for (name, value) in table.into_iter().flatten() {
                if value.get("workspace") != Some(&toml::Value::Boolean(true)) {
                    wrong.push(format!("{path}: {name}"));
                }
            }
        }
        if manifest.get("lints").and_then(|lints| lints.get("workspace")).is_none() {
            wrong.push(format!("{path}: no `lints.workspace`"));
        }
    }
    assert!(wrong.is_empty(), "write `workspace = true`: {wrong:?}");
}

#[test]
fn release_binary_contains_neither_test_bed_nor_fakes() {
    let has_package = |tree: &BTreeSet<PackageFeatures>, name: &str| {
        tree.iter().any(|package| package.name() == name)
    };
    let with_test_features = |tree: BTreeSet<PackageFeatures>| -> Vec<PackageFeatures> {
        let is_for_tests = |feature: &str| matches!(feature, "testing" | "test-util");
        tree.into_iter().filter(|it| it.features.split(',').any(is_for_tests)).collect()
    };
    let default = tree(&["--package=bowline-cli", "--edges=normal"]);
    assert!(has_package(&default, "bowline-testbed"), "`cargo run -- demo` needs it");
    let tests = with_test_features(tree(&["--package=bowline-engine", "--edges=normal,dev"]));
    assert!(tests.iter().any(|package| package.name() == "bowline-cluster"), "{tests:?}");

    let release = tree(&["--package=bowline-cli", "--edges=normal", "--no-default-features"]);
    assert!(has_package(&release, "bowline-cluster"));
    assert!(!has_package(&release, "bowline-testbed"));
    assert!(!has_package(&release, "bowline-test-features"));
    let fakes = with_test_features(release);
    assert!(fakes.is_empty(), "{fakes:?}");
    // The shipped binary is built that way.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let image = std::fs::read_to_string(root.join("Dockerfile")).unwrap();
    let builds: Vec<_> = image.lines().filter(|line| line.contains("cargo build")).collect();
    assert!(!builds.is_empty());
    assert!(builds.iter().all(|line| line.contains("--no-default-features")), "{builds:?}");
}

/// Otherwise `cargo test -p …` builds dependencies again that `cargo test --workspace` has built, and the reverse.
#[test]
fn tests_of_one_crate_and_of_all_build_the_same_dependencies() {
    let everything = tree(&["--workspace", "--edges=normal,dev,build"]);
    let mut wrong = Vec::new();
    for package in metadata()["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let alone = tree(&[&format!("--package={name}"), "--edges=normal,dev,build"]);
        wrong.extend(alone.difference(&everything).map(|other| format!("{name}: {other:?}")));
    }
    let hint = "not the features of `--workspace`; add the dependency that turns on more of them to \
                crates/test-features/Cargo.toml";
    assert!(wrong.is_empty(), "{hint}: {wrong:#?}");
}

/// A package with the features that it is built with.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PackageFeatures {
    /// Name and version, and the folder of a crate of the workspace.
    package: String,
    /// Separated by commas.
    features: String,
}

impl PackageFeatures {
    fn name(&self) -> &str {
        self.package.split(' ').next().unwrap_or_default()
    }
}

/// The packages that `cargo tree` shows.
fn tree(arguments: &[&str]) -> BTreeSet<PackageFeatures> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--prefix=none", "--format={p}|{f}", "--offline"])
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let packages = text.lines().filter_map(|line| {
        // Packages that are shown already end with `(*)`.
        let (package, features) = line.trim_end_matches(" (*)").split_once('|')?;
        Some(PackageFeatures { package: package.to_owned(), features: features.trim().to_owned() })
    });
    packages.collect()
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
