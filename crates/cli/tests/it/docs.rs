//! Runs the commands that the documentation shows, page by page.

mod command;
mod output_match;
mod page;
mod world;

use std::collections::BTreeSet;
use std::time::Instant;

use crate::bowline::World;
use page::{Block, Page};

/// Blocks that no test can run: the page, the first command, and the reason on the page.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "cargo run -- demo", "the demo has tests of its own"),
    ("README.md", "cargo test --workspace", "it would run itself"),
    ("docs/cli.md", "source <(bowline completion zsh)", "these shells may not be installed"),
    ("docs/demo.md", "cargo run -- demo", "the demo has tests of its own"),
    (
        "docs/install.md",
        "docker build -t registry.example.com/bowline:v0.1.0 .",
        "needs a container engine and a registry",
    ),
    (
        "docs/operate.md",
        "kubectl -n velero logs -l app.kubernetes.io/name=bowline --prefix --tail=-1",
        "pods of the test run in name only",
    ),
    (
        "docs/plugins.md",
        "rustup target add x86_64-unknown-linux-musl",
        "needs another target, a container engine and a registry",
    ),
];

/// Languages of blocks that are not commands.
const READ_ONLY: [&str; 7] = ["", "dockerfile", "promql", "rust", "text", "toml", "yaml"];

#[test]
fn every_documented_command_and_flag_exists() {
    let mut wrong = Vec::new();
    let mut checked = BTreeSet::new();
    for page in page::all() {
        let typed = page.blocks.iter().flat_map(Block::steps).map(|step| (step.line, step.command));
        let inline = page.spans.iter().map(|span| (span.line, span.text.clone()));
        for (line, text) in typed.chain(inline) {
            for words in command::bowline_commands(&text) {
                let arguments = command::with_help_flag(&words);
                if !checked.insert(arguments.clone()) {
                    continue;
                }
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let ended = World::new().run(&arguments);
                if ended.code != Some(0) {
                    wrong.push(format!("{}:{line}: {text}: {}", page.name, ended.stderr.trim()));
                }
            }
        }
    }
    assert!(checked.len() > 100, "only {} commands were found", checked.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_block_is_run_or_listed_as_not_runnable() {
    let mut not_run = Vec::new();
    for page in page::all() {
        for block in &page.blocks {
            let position = format!("{}:{}", page.name, block.line);
            let language = block.language.as_str();
            if language != page::CONSOLE_LANGUAGE {
                let hint = "what is typed is `console`, with `$ ` before each command";
                assert!(READ_ONLY.contains(&language), "{position}: `{language}`: {hint}");
                continue;
            }
            let steps = block.steps();
            let first = steps.first().unwrap_or_else(|| panic!("{position}: no `$ ` in it"));
            assert_eq!(first.line, block.line + 1, "{position}: does not begin with `$ `");
            if let Some(reason) = &block.not_run {
                println!("not run: {position}: {}: {reason}", first.command);
                not_run.push((page.name.clone(), first.command.clone(), reason.clone()));
            }
        }
    }
    let own = |&(page, first, reason): &(&str, &str, &str)| {
        (page.to_owned(), first.to_owned(), reason.to_owned())
    };
    not_run.sort();
    let mut expected: Vec<_> = NOT_RUN.iter().map(own).collect();
    expected.sort();
    assert_eq!(not_run, expected);
}

#[test]
fn documented_commands_print_what_the_page_shows() {
    let only = std::env::var("BOWLINE_DOCS_PAGE").ok();
    let wanted = |page: &Page| only.as_ref().is_none_or(|only| page.name.ends_with(only.as_str()));
    let pages: Vec<Page> = page::all().into_iter().filter(wanted).collect();
    assert!(!pages.is_empty(), "there is no page {only:?}");
    let world = world::World::start();
    let mut wrong = Vec::new();
    for page in &pages {
        let started = Instant::now();
        wrong.extend(world.follow(page).err());
        println!("{}: {} s", page.name, started.elapsed().as_secs());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
